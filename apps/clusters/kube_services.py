"""What operators do with a cluster's Kubernetes: connect it, say who runs where, and share it out among teams."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.audit.services import event, record
from apps.catalog.selectors import type_by_name
from apps.clusters.kube_models import KubernetesSettings, TeamNamespace, TeamShare
from apps.clusters.kube_rules import NAME, refuse, settings_problems
from apps.clusters.kube_selectors import defaults_to, is_of_kubernetes, kubernetes_of
from apps.clusters.models import Cluster
from apps.clusters.permissions import can_operate_clusters
from apps.clusters.services import CLUSTER_INTENT, ClusterInUse
from apps.clusters.states import ClusterKind, ClusterPhase, LimitsMode
from apps.connections.models import CloudAccount
from apps.connections.services import account_claim
from apps.core.errors import FieldProblem, Forbidden, InvalidInput, TransitionConflict
from apps.intents.services import intent_ask
from apps.teams.models import Team
from apps.teams.permissions import Actor

#: The intent that compares Kueue's objects with what is wanted and repairs them.
QUEUES_INTENT = "cluster.queues"
SETTINGS = (
    "auth",
    "kubeconfig_ref",
    "context",
    "scheduler",
    "namespace_prefix",
    "default_kind",
    "default_image",
    "mounts",
    "service_account",
    "pull_secrets",
    "pod_priority_class",
    "priority_classes",
    "topology_level",
    "cohort",
    "allowances",
    "host_paths",
)
#: Columns of the cluster itself that belong to the same page.
CLUSTER_SETTINGS = ("exporter_url", "responds_to_findings", "outside_team", "limits_mode")
_CLUSTER_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,58}$")
MAX_GPUS = 1_000_000


def _operate(actor: Actor) -> None:
    if not can_operate_clusters(actor):
        raise Forbidden(_("only operators and administrators do this"))


def _ask_queues(cluster: Cluster) -> None:
    if cluster.limits_mode != LimitsMode.OFF:
        intent_ask(QUEUES_INTENT, cluster.uid)


def _plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        k: (v.slug if isinstance(v, Team) else v.name if isinstance(v, CloudAccount) else v) for k, v in spec.items()
    }


def kubernetes_connect(
    *, actor: Actor, name: str, account: CloudAccount | None = None, exporter_url: str = "", **settings: Any
) -> Cluster:
    """Record a Kubernetes cluster that no AWS service keeps and ask the worker to connect to it.

    Raises Forbidden, InvalidInput, AccountInUse.
    """
    _operate(actor)
    row = KubernetesSettings(**settings)
    problems = [] if _CLUSTER_NAME.fullmatch(name) else [_bad_name()]
    problems += settings_problems(row, ClusterKind.KUBERNETES, has_account=account is not None)
    problems += exporter_problems(exporter_url)
    refuse(problems)
    cluster = Cluster(name=name, kind=ClusterKind.KUBERNETES, account=account, exporter_url=exporter_url)
    try:
        with transaction.atomic():
            if account is not None:
                account_claim(account)
            cluster.save()
            row.cluster = cluster
            row.save()
            after = {"name": name, "kind": cluster.kind, "account": account.name if account else None}
            record(actor, "cluster.create", "cluster", cluster.uid, after=after | _plain(settings))
            event("cluster", cluster.uid, "ClusterCreated", f"created by {actor.name}")
            intent_ask(CLUSTER_INTENT, cluster.uid)
    except IntegrityError:
        text = _("a cluster named %(name)s exists") % {"name": name}
        raise InvalidInput(text, problems=[FieldProblem("/name", "taken", text)]) from None
    return cluster


def _bad_name() -> FieldProblem:
    return FieldProblem("/name", "invalid", _("lower-case letters, digits and dashes, at most 59"))


def exporter_problems(url: str) -> list[FieldProblem]:
    """What is wrong with the address of exporters."""
    if url and ("{node}" not in url or not re.match(r"^https?://", url)):
        return [FieldProblem("/exporter_url", "invalid", _("an http(s) address with {node} where the name goes"))]
    return []


def kubernetes_settings_put(*, actor: Actor, cluster: Cluster, expected_version: int | None, **changes: Any) -> None:
    """Say how jobs reach a cluster's Kubernetes, or correct it; what is not named stays.

    ``expected_version`` is that of the settings, None where there are none yet. Raises Forbidden, InvalidInput,
    StaleVersion, TransitionConflict for a cluster that is being deleted or runs no Kubernetes.
    """
    _operate(actor)
    if unknown := set(changes) - set(SETTINGS) - set(CLUSTER_SETTINGS):
        raise TypeError(f"not settings of a cluster's Kubernetes: {sorted(unknown)}")
    if not cluster.is_kubernetes:
        raise TransitionConflict(_("%(name)s runs no Kubernetes") % {"name": cluster.name})
    if cluster.delete_requested_at is not None:
        raise TransitionConflict(_("cluster %(name)s is being removed") % {"name": cluster.name})
    kept = kubernetes_of(cluster)
    own = {name: value for name, value in changes.items() if name in SETTINGS}
    row = KubernetesSettings(**{name: getattr(kept, name) for name in SETTINGS} | own if kept else own)
    problems = settings_problems(row, cluster.kind, has_account=cluster.account is not None)
    problems += exporter_problems(str(changes.get("exporter_url", "")))
    if changes.get("limits_mode", LimitsMode.OFF) not in LimitsMode.values:
        problems.append(FieldProblem("/limits_mode", "unknown", ", ".join(LimitsMode.values)))
    refuse(problems)
    of_cluster = {
        name: value for name, value in changes.items() if name in CLUSTER_SETTINGS and getattr(cluster, name) != value
    }
    changed = {name: value for name, value in own.items() if kept is None or getattr(kept, name) != value}
    before = {name: getattr(kept, name) for name in changed} if kept else {}
    before |= {name: getattr(cluster, name) for name in of_cluster}
    try:
        with transaction.atomic():
            if kept is None:
                row.cluster = cluster
                row.save()
                cluster.kubernetes = row
            elif changed or expected_version is not None:
                kept.spec_update(expected_version, **changed)
            if of_cluster:
                cluster.spec_update(**of_cluster)
            if kept is None or changed or of_cluster:
                after = _plain(changed | of_cluster)
                record(actor, "cluster.kubernetes", "cluster", cluster.uid, before=_plain(before), after=after)
                fields = list(after)
                event("cluster", cluster.uid, "KubernetesSettingsChanged", ", ".join(fields), data={"fields": fields})
                intent_ask(CLUSTER_INTENT, cluster.uid)
                _ask_queues(cluster)
    except IntegrityError:
        text = _("someone else entered them meanwhile; look again")
        raise TransitionConflict(text) from None


def jobs_of_team(cluster: Cluster, team: Team) -> int:
    """How many jobs of a team on a cluster have not ended."""
    # By the relation's name: jobs live on a higher floor.
    return int(getattr(cluster, "jobs").filter(team=team, ended_at__isnull=True).count())  # noqa: B009


def team_namespace_put(
    *,
    actor: Actor,
    cluster: Cluster,
    team: Team,
    namespace: str,
    queue: str = "",
    weight: Decimal = Decimal(1),
) -> TeamNamespace:
    """Say where a team's jobs run on a cluster; said again it is corrected.

    The namespace stays while jobs of the team live there. Raises Forbidden, InvalidInput, ClusterInUse.
    """
    _operate(actor)
    spec: dict[str, Any] = {"namespace": namespace.strip(), "queue": queue.strip(), "weight": weight}
    problems = []
    if not cluster.is_kubernetes:
        problems.append(FieldProblem("/cluster", "not-here", _("this cluster runs no Kubernetes")))
    if not NAME.fullmatch(spec["namespace"]):
        text = _("a name of a namespace: lower-case letters, digits and dashes, at most 63")
        problems.append(FieldProblem("/namespace", "invalid", text))
    if is_of_kubernetes(spec["namespace"]):
        problems.append(FieldProblem("/namespace", "kept", _("namespaces of Kubernetes itself are no team's")))
    elif (other := defaults_to(cluster, spec["namespace"])) is not None and other.pk != team.pk:
        text = _("jobs of team %(team)s run there by its name; give that team a row of its own first")
        problems.append(FieldProblem("/namespace", "taken", text % {"team": other.slug}))
    if spec["queue"] and not NAME.fullmatch(spec["queue"]):
        problems.append(FieldProblem("/queue", "invalid", _("lower-case letters, digits and dashes")))
    if not Decimal(0) <= weight <= Decimal(1000):
        problems.append(FieldProblem("/weight", "out-of-range", _("from 0 to 1,000")))
    refuse(problems)
    try:
        with transaction.atomic():
            row = TeamNamespace.objects.select_for_update().filter(cluster=cluster, team=team).first()
            before = {name: getattr(row, name) for name in spec} if row is not None else None
            if before == spec and row is not None:
                return row
            if row is None:
                row = TeamNamespace(cluster=cluster, team=team, **spec)
                row.save()
            else:
                if row.namespace != spec["namespace"]:
                    _refuse_live(cluster, team)
                row.spec_update(**spec)
            told = {k: str(v) for k, v in spec.items()}
            record(
                actor,
                "team_namespace.put",
                "cluster",
                cluster.uid,
                team_id=team.pk,
                before={k: str(v) for k, v in before.items()} if before else None,
                after={"team": team.slug, **told},
            )
            _ask_queues(cluster)
    except IntegrityError:
        text = _("another team has this namespace")
        raise InvalidInput(text, problems=[FieldProblem("/namespace", "taken", text)]) from None
    return row


def _refuse_live(cluster: Cluster, team: Team) -> None:
    if live := jobs_of_team(cluster, team):
        text = ngettext(
            "%(n)s job of the team has not ended there", "%(n)s jobs of the team have not ended there", live
        ) % {"n": live}
        raise ClusterInUse(text, problems=[FieldProblem("/namespace", "in-use", text)])


def team_namespace_remove(*, actor: Actor, row: TeamNamespace) -> None:
    """Forget where a team's jobs run: the cluster's prefix and the team's name hold again. The namespace stays.

    Raises Forbidden, ClusterInUse while jobs of the team live there.
    """
    _operate(actor)
    with transaction.atomic():
        _refuse_live(row.cluster, row.team)
        before = {"team": row.team.slug, "namespace": row.namespace, "queue": row.queue}
        record(actor, "team_namespace.remove", "cluster", row.cluster.uid, team_id=row.team_id, before=before)
        row.delete()
        _ask_queues(row.cluster)


def team_share_put(
    *,
    actor: Actor,
    cluster: Cluster,
    team: Team,
    instance_type: str,
    gpus: int,
    borrowing_gpus: int | None = None,
    lending_gpus: int | None = None,
) -> TeamShare:
    """Give a team GPUs of one type on a cluster; said again it is corrected. Raises Forbidden, InvalidInput."""
    _operate(actor)
    spec: dict[str, Any] = {"gpus": gpus, "borrowing_gpus": borrowing_gpus, "lending_gpus": lending_gpus}
    problems = []
    kind = type_by_name(instance_type)
    if kind is None or not kind.gpus:
        text = _("%(name)s is no instance type with GPUs that the catalog knows") % {"name": instance_type or "–"}
        problems.append(FieldProblem("/instance_type", "unknown", text))
    for name, value in spec.items():
        if value is not None and not 0 <= value <= MAX_GPUS:
            text = _("must be from %(low)s to %(high)s") % {"low": "0", "high": f"{MAX_GPUS:,}"}
            problems.append(FieldProblem(f"/{name}", "out-of-range", text))
    if lending_gpus is not None and lending_gpus > gpus:
        text = _("it can lend its own %(gpus)s at most") % {"gpus": gpus}
        problems.append(FieldProblem("/lending_gpus", "too-many", text))
    refuse(problems)
    with transaction.atomic():
        # The cluster's row serialises two people who enter the same share.
        Cluster.objects.select_for_update().get(pk=cluster.pk)
        row = TeamShare.objects.filter(cluster=cluster, team=team, instance_type=instance_type).first()
        before = {name: getattr(row, name) for name in spec} if row is not None else None
        if row is None:
            row = TeamShare(cluster=cluster, team=team, instance_type=instance_type, **spec)
            row.save()
        elif before != spec:
            row.spec_update(**spec)
        else:
            return row
        after = {"team": team.slug, "instance_type": instance_type, **spec}
        record(actor, "team_share.put", "cluster", cluster.uid, team_id=team.pk, before=before, after=after)
        _ask_queues(cluster)
    return row


def team_share_remove(*, actor: Actor, row: TeamShare) -> None:
    """Take a team's share away: it has none of its own there and only borrows. Raises Forbidden."""
    _operate(actor)
    with transaction.atomic():
        before = {"team": row.team.slug, "instance_type": row.instance_type, "gpus": row.gpus}
        record(actor, "team_share.remove", "cluster", row.cluster.uid, team_id=row.team_id, before=before)
        row.delete()
        _ask_queues(row.cluster)


def queues_compare(*, actor: Actor, cluster: Cluster) -> None:
    """Ask the worker to compare Kueue with what is wanted now, and where the cluster says so, to repair it.

    Raises Forbidden, TransitionConflict where nothing is kept there.
    """
    _operate(actor)
    if cluster.limits_mode == LimitsMode.OFF:
        raise TransitionConflict(_("teams' shares are not kept in Kueue on this cluster: change its settings first"))
    if cluster.phase not in (ClusterPhase.READY, ClusterPhase.UNREACHABLE):
        raise TransitionConflict(_("cluster %(name)s is not ready") % {"name": cluster.name})
    with transaction.atomic():
        record(actor, "cluster.queues", "cluster", cluster.uid)
        intent_ask(QUEUES_INTENT, cluster.uid)


def shares_problems(rows: Sequence[TeamShare], capacity: Mapping[str, int]) -> list[str]:
    """Where teams were given more GPUs of a type than the cluster has, a sentence each."""
    found = []
    for name in sorted({row.instance_type for row in rows}):
        given, there = sum(row.gpus for row in rows if row.instance_type == name), capacity.get(name, 0)
        if given > there:
            text = _("%(type)s: teams have %(given)s GPUs of their own and the cluster has %(there)s")
            found.append(text % {"type": name, "given": given, "there": there})
    return found
