"""What the worker writes about a cluster's Kubernetes: what the server is, Kueue's queues, and how they drifted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.audit.services import event
from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.models import Cluster
from apps.core import clock
from apps.core.said import Said, said


def kubernetes_observed(settings: KubernetesSettings, observed: Mapping[str, Any]) -> bool:
    """Store what the server says of itself, where it differs; True when it did."""
    if settings.observed == dict(observed):
        return False
    KubernetesSettings.objects.filter(pk=settings.pk).update(observed=dict(observed))
    settings.observed = dict(observed)
    return True


def queues_observed(settings: KubernetesSettings, queues: Sequence[Mapping[str, Any]]) -> None:
    """Store Kueue's queues with quota and use, as they were read now."""
    rows = [dict(row) for row in queues]
    KubernetesSettings.objects.filter(pk=settings.pk).update(observed_queues=rows, queues_read_at=clock.now())
    settings.observed_queues = rows


def queues_message(settings: KubernetesSettings, words: Said | str) -> None:
    """Say how keeping the queues goes, where it is said otherwise now."""
    if settings.queues_message != words:
        KubernetesSettings.objects.filter(pk=settings.pk).update(queues_message=words)
        settings.queues_message = words


def drift_observed(
    cluster: Cluster, settings: KubernetesSettings, drift: Sequence[Mapping[str, Any]], *, is_told: bool
) -> bool:
    """Store what differs from what is wanted, and with ``is_told`` tell of it when it begins; True when it changed.

    ``drift`` are ``{kind, object, path, text}`` with a said text.
    """
    rows = [dict(row) for row in drift]
    if settings.drift == rows:
        return False
    begins = bool(rows) and settings.drift_since is None
    since = settings.drift_since or clock.now() if rows else None
    with transaction.atomic():
        KubernetesSettings.objects.filter(pk=settings.pk).update(drift=rows, drift_since=since)
        if begins and is_told:
            _queues_event(cluster, "QueuesDiffer", rows)
    settings.drift, settings.drift_since = rows, since
    return True


def queues_written(
    cluster: Cluster, settings: KubernetesSettings, digest: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    """All that is wanted was sent now; the next comparison tells whether it is there.

    ``digest`` is that of what is wanted: where it is the one written before, somebody else had changed something.
    """
    kind = "QueuesRepaired" if settings.queues_digest == digest else "QueuesWritten"
    now = clock.now()
    with transaction.atomic():
        KubernetesSettings.objects.filter(pk=settings.pk).update(queues_written_at=now, queues_digest=digest)
        _queues_event(cluster, kind, rows)
    settings.queues_written_at, settings.queues_digest = now, digest


def _queues_event(cluster: Cluster, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """The first place in words, and how many more."""
    more = len(rows) - 1
    text = said(_("%(first)s (and %(n)s more)"), first=rows[0]["text"], n=more) if more else rows[0]["text"]
    event("cluster", cluster.uid, kind, text, data={"places": [str(row["object"]) for row in rows][:20]})
