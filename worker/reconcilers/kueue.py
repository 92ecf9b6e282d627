"""Teams' shares in Kueue: compared with what is there, and where the cluster says so, written and repaired.

The key is the cluster's uid. Server-side apply said twice is said once, so a lost answer is written again.
"""

from __future__ import annotations

import hashlib

from django.utils.translation import gettext_noop as _

from apps.clusters import kube_observations as obs
from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.kube_selectors import kubernetes_of
from apps.clusters.kube_states import KubeScheduler
from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_by_uid
from apps.clusters.states import ClusterPhase, LimitsMode
from apps.core.said import said
from worker import kube_doors
from worker.arrangement import arrangement_of
from worker.engine import DONE, Outcome, again
from worker.providers.errors import AccessDenied, InvalidRequest, NotFound, ProviderError, QuotaExceeded
from worker.providers.kubernetes.kueue import Comparison, KueueKeeper
from worker.providers.kubernetes.kueue_objects import Difference

#: How often shares are compared; what changes a share, a quota or a namespace asks at once.
PERIOD_S = 30.0
#: After a refusal that only a person can end.
REFUSED_S = 300.0


def reconcile(uid: str) -> Outcome:
    """Read all of Kueue's objects once, compare, and write what differs; read again to see that it is there."""
    cluster = cluster_by_uid(uid)
    settings = kubernetes_of(cluster) if cluster is not None else None
    if cluster is None or settings is None or cluster.delete_requested_at is not None:
        return DONE
    if cluster.phase not in (ClusterPhase.READY, ClusterPhase.UNREACHABLE):
        return again(PERIOD_S)
    if settings.scheduler != KubeScheduler.KUEUE:
        obs.queues_message(settings, "")
        return DONE
    keeper = kube_doors.queue_keeper_for(cluster)
    if cluster.limits_mode == LimitsMode.OFF:
        obs.queues_observed(settings, keeper.read_queues())
        obs.drift_observed(cluster, settings, [], is_told=False)
        obs.queues_message(settings, "")
        return again(PERIOD_S)
    try:
        wanted = arrangement_of(cluster, settings)
        comparison = keeper.compare(wanted)
    except (InvalidRequest, AccessDenied) as error:
        obs.queues_message(settings, said(_("cannot be compared: %(error)s"), error=str(error)))
        return again(REFUSED_S)
    repairs = cluster.limits_mode == LimitsMode.ENFORCE
    digest = hashlib.sha256(repr(wanted).encode()).hexdigest()
    is_told = not repairs and settings.queues_digest in ("", digest)
    changed = _tell(cluster, settings, keeper, comparison, is_told=is_told)
    if not repairs or not comparison.differences:
        return again(PERIOD_S)
    return _write(cluster, settings, keeper, comparison, digest=digest, is_new=changed)


def _tell(
    cluster: Cluster, settings: KubernetesSettings, keeper: KueueKeeper, comparison: Comparison, *, is_told: bool
) -> bool:
    """Store what was found; whether what differs is not what differed the last time."""
    obs.queues_observed(settings, keeper.queues(comparison.found))
    apart = [*comparison.differences, *comparison.foreign]
    changed = obs.drift_observed(cluster, settings, [_place(one) for one in apart], is_told=is_told)
    if not comparison.differences:
        obs.queues_message(settings, "")
    return changed


def _place(one: Difference) -> dict[str, object]:
    name = f"{one.namespace}/{one.name}" if one.namespace else one.name
    text = said(one.text.template, **{k: str(v) for k, v in one.text.facts.items()})
    return {"kind": one.kind, "object": f"{one.object_kind} {name}", "path": one.path, "text": text}


def _write(
    cluster: Cluster,
    settings: KubernetesSettings,
    keeper: KueueKeeper,
    comparison: Comparison,
    *,
    digest: str,
    is_new: bool,
) -> Outcome:
    try:
        keeper.write(comparison)
    except (InvalidRequest, AccessDenied, NotFound, QuotaExceeded) as error:
        obs.queues_message(settings, said(_("not written: %(error)s"), error=str(error)))
        return again(REFUSED_S)
    except ProviderError as error:
        obs.queues_message(settings, said(_("not written: %(error)s"), error=str(error)))
        raise
    obs.queues_written(cluster, settings, digest, [_place(one) for one in comparison.differences])
    # What stays different after a write, somebody else writes at the same pace: it is not fought for every second.
    return again(0 if is_new else PERIOD_S)
