"""What people do with clusters that AWS keeps: make, adopt, correct, delete, try again; groups: ``group_services``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.audit.services import event, record
from apps.clusters import group_rules, managed_rules
from apps.clusters.group_models import ClusterStep, NodeGroup
from apps.clusters.managed_selectors import group_price, groups_live, kept_of, machine_of, place_of, wish_of
from apps.clusters.models import Cluster, Node
from apps.clusters.permissions import can_operate_clusters
from apps.clusters.services import CLUSTER_INTENT as CONNECT_INTENT
from apps.clusters.services import ClusterInUse, live_jobs
from apps.clusters.states import (
    ADOPT_STEPS,
    CLUSTER_STEPS,
    KINDS_GROUPED,
    KINDS_HYPERPOD,
    KINDS_SLURM,
    ClusterKind,
    ClusterPhase,
    NodePhase,
)
from apps.connections.models import CloudAccount
from apps.connections.services import account_claim, check_reference
from apps.connections.states import AccountPhase
from apps.core import clock
from apps.core.errors import FieldProblem, Forbidden, InvalidInput, TransitionConflict
from apps.intents.services import intent_ask
from apps.teams.permissions import Actor

CLUSTER_INTENT = "cluster.reconcile"
GROUP_INTENT = "group.reconcile"
#: How jobs are submitted there, for kinds that run Slurm; all empty: jobs are not submitted from here.
REACH = ("api_url", "user_name", "token_ref", "jwt_key_ref", "working_root", "partition", "exporter_url")
_GROUP_COLUMNS = (
    "name",
    "instance_type",
    "nodes",
    "min_nodes",
    "source",
    "subnet_ids",
    "security_group_ids",
    "image_id",
    "role_arn",
    "queue",
    "settings",
)


def operate(actor: Actor) -> None:
    """Refuse whoever is no operator. Raises Forbidden."""
    if not can_operate_clusters(actor):
        raise Forbidden(_("only operators and administrators do this"))


def refuse(problems: Sequence[FieldProblem]) -> None:
    """Raises InvalidInput with every problem at its field, if there are any."""
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=problems)


def usable(account: CloudAccount | None) -> CloudAccount:
    """The account, if something can be changed there now. Raises TransitionConflict."""
    if account is None:
        raise TransitionConflict(_("the cluster has no cloud account"))
    if account.phase != AccountPhase.CONNECTED:
        raise TransitionConflict(
            _("account %(name)s is not connected: %(why)s")
            % {"name": account.name, "why": account.message or _("still checking")}
        )
    if account.is_paused:
        raise TransitionConflict(_("account %(name)s is paused; resume it first") % {"name": account.name})
    return account


# --- clusters --------------------------------------------------------------------------------------


def cluster_create(
    *,
    actor: Actor,
    account: CloudAccount,
    kind: str,
    name: str,
    settings: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]] = (),
    **reach: str,
) -> Cluster:
    """Record a cluster with its steps and groups and ask the worker to make it.

    A group is a mapping of a node group's columns, with ``team`` and ``reservation`` as rows. ``reach`` is how jobs
    are submitted there (``REACH``). Raises Forbidden, InvalidInput (pointers ``/groups/0/nodes``), TransitionConflict.
    """
    operate(actor)
    problems = managed_rules.kind_problems(kind, is_adopted=False)
    if groups and kind not in KINDS_GROUPED:
        text = _("groups of this kind are defined in its configuration")
        problems.append(FieldProblem("/groups", "not-here", text))
    refuse(problems)
    place = place_of(account)
    settings = dict(settings)
    problems += managed_rules.name_problems(kind, name)
    problems += managed_rules.settings_problems(kind, settings, place)
    problems += reach_problems(kind, reach)
    rows = []
    wishes = []
    for i, asked in enumerate(groups):
        row = group_row(kind, asked)
        wish = wish_of(row)
        problems += group_rules.wish_problems(
            kind,
            wish,
            place=place,
            machine=machine_of(row.instance_type),
            kept=kept_of(row.reservation),
            version=str(settings.get("version") or ""),
            at=f"/groups/{i}",
        )
        rows.append(row)
        wishes.append(wish)
    problems += group_rules.together_problems(kind, wishes)
    if kind == ClusterKind.PCS and settings.get("size") in managed_rules.PCS_SIZES:
        total = sum(w.nodes for w in wishes)
        found = managed_rules.size_problem(settings["size"], total, is_made=False, pointer="/size")
        problems += [found] if found else []
    refuse(problems)
    usable(account)
    cluster = Cluster(account=account, kind=kind, name=name, settings=settings, **tidy(reach))
    after: dict[str, Any] = {"name": name, "kind": kind, "account": account.name, "settings": settings}
    after["groups"] = [{"name": w.name, "instance_type": w.instance_type, "nodes": w.nodes} for w in wishes]
    _insert(actor, cluster, rows, CLUSTER_STEPS[kind], "cluster.create", after)
    return cluster


def cluster_adopt(
    *,
    actor: Actor,
    account: CloudAccount,
    kind: str,
    name: str,
    name_at_provider: str,
    **reach: str,
) -> Cluster:
    """Watch a cluster that is in the account; it is never deleted from here.

    Raises Forbidden, InvalidInput, TransitionConflict.
    """
    operate(actor)
    problems = managed_rules.kind_problems(kind, is_adopted=True)
    refuse(problems)
    if not managed_rules.is_name(name):
        problems.append(FieldProblem("/name", "invalid", _("lower-case letters, digits and dashes, at most 59")))
    problems += managed_rules.adoption_problems(kind, name_at_provider)
    problems += reach_problems(kind, reach)
    refuse(problems)
    usable(account)
    cluster = Cluster(
        account=account,
        kind=kind,
        name=name,
        is_adopted=True,
        name_at_provider=name_at_provider,
        **tidy(reach),
    )
    after = {"name": name, "kind": kind, "account": account.name, "name_at_provider": name_at_provider}
    _insert(actor, cluster, [], ADOPT_STEPS, "cluster.adopt", after)
    return cluster


def tidy(reach: Mapping[str, str]) -> dict[str, str]:
    """Addresses and paths without the slash at their end."""
    return {k: v.rstrip("/") if k in ("api_url", "working_root") else v for k, v in reach.items()}


def reach_problems(kind: str, reach: Mapping[str, str]) -> list[FieldProblem]:
    """What is wrong with how jobs are to be submitted: all of it or nothing, and only where Slurm runs."""
    if unknown := set(reach) - set(REACH):
        raise TypeError(f"not columns of how jobs are submitted: {sorted(unknown)}")
    given = {k: v for k, v in reach.items() if v}
    if not given:
        return []
    if kind not in KINDS_SLURM:
        text = _("how jobs reach its Kubernetes is entered on the cluster's own page; leave it empty")
        return [FieldProblem(f"/{name}", "not-here", text) for name in given]
    problems = []
    together = ["user_name", "working_root"]
    # A cluster of PCS tells where its key is.
    if not given.get("jwt_key_ref") and kind != ClusterKind.PCS:
        together.insert(1, "token_ref")
    if missing := [name for name in together if not given.get(name)]:
        text = _("user, token and shared folder go together: fill in all three, or leave all empty")
        problems += [FieldProblem(f"/{name}", "required", text) for name in missing]
    if (url := given.get("api_url")) and not re.match(r"^https?://[^\s/]+", url):
        problems.append(FieldProblem("/api_url", "invalid", _("must start with http:// or https://")))
    if (root := given.get("working_root")) and (not root.startswith("/") or ".." in root):
        problems.append(FieldProblem("/working_root", "invalid", _("an absolute path that all nodes share")))
    if (exporter := given.get("exporter_url")) and ("{node}" not in exporter or not re.match(r"^https?://", exporter)):
        text = _("an http(s) address with {node} where the name goes")
        problems.append(FieldProblem("/exporter_url", "invalid", text))
    for name in ("token_ref", "jwt_key_ref"):
        problems += check_reference(f"/{name}", given.get(name, ""), account=True)
    return problems


def group_row(kind: str, asked: Mapping[str, Any]) -> NodeGroup:
    """A row that is not saved yet: lists as lists, nothing that the kind has no use for."""
    spec = {k: v for k, v in asked.items() if k in _GROUP_COLUMNS}
    for key in ("subnet_ids", "security_group_ids"):
        spec[key] = list(spec.get(key) or [])
    spec["settings"] = dict(spec.get("settings") or {})
    if kind in KINDS_HYPERPOD:
        # Its machines stand where the cluster stands.
        spec["subnet_ids"], spec["security_group_ids"] = [], []
    return NodeGroup(team=asked.get("team"), reservation=asked.get("reservation"), **spec)


def _insert(
    actor: Actor,
    cluster: Cluster,
    groups: Sequence[NodeGroup],
    steps: Sequence[tuple[str, int]],
    verb: str,
    after: dict[str, Any],
) -> None:
    account = cluster.account
    assert account is not None
    try:
        with transaction.atomic():
            account_claim(account)
            if cluster.name_at_provider:
                # Under the account's lock: two people who adopt the same cluster get one row.
                same = Cluster.objects.exclude(phase=ClusterPhase.DELETED).filter(
                    account=account, kind=cluster.kind, name_at_provider=cluster.name_at_provider
                )
                if other := same.first():
                    text = _("it is in the portal already, as %(name)s") % {"name": other.name}
                    raise InvalidInput(text, problems=[FieldProblem("/name_at_provider", "taken", text)])
            cluster.save()
            ClusterStep.objects.bulk_create(
                ClusterStep(cluster=cluster, ordinal=i, name=step, expected_s=expected)
                for i, (step, expected) in enumerate(steps)
            )
            for group in groups:
                group.cluster = cluster
                group.usd_per_hour = group_price(group)[0]
                group.save()
            record(actor, verb, "cluster", cluster.uid, after=after)
            by = "adopted by" if cluster.is_adopted else "created by"
            event("cluster", cluster.uid, "ClusterCreated", f"{by} {actor.name}")
            intent_ask(CLUSTER_INTENT, cluster.uid)
            for group in groups:
                group_told(actor, group)
    except IntegrityError:
        raise _name_taken(cluster.name) from None


def group_told(actor: Actor, group: NodeGroup) -> None:
    """Audit and intent of a group that was just saved."""
    after = {
        "cluster": group.cluster.name,
        "name": group.name,
        "instance_type": group.instance_type,
        "nodes": group.nodes,
        "source": group.source,
        "reservation": str(group.reservation) if group.reservation else "",
        "usd_per_hour": str(group.usd_per_hour * group.nodes) if group.usd_per_hour is not None else "",
    }
    record(actor, "group.create", "group", group.uid, team_id=group.team_id, after=after)
    what = f"{group.nodes} × {group.instance_type} asked for by {actor.name}"
    event("group", group.uid, "GroupCreated", what, team_id=group.team_id)
    intent_ask(GROUP_INTENT, group.uid)


def cluster_update(
    *,
    actor: Actor,
    cluster: Cluster,
    expected_version: int,
    name: str | None = None,
    responds_to_findings: bool | None = None,
    **reach: str,
) -> None:
    """Correct its name and how jobs are submitted there; what is not named stays, what AWS made stays as it is.

    Raises Forbidden, InvalidInput, ClusterInUse, TransitionConflict, StaleVersion.
    """
    operate(actor)
    spec: dict[str, Any] = {column: getattr(cluster, column) for column in REACH} | tidy(reach)
    problems = reach_problems(cluster.kind, spec)
    spec["name"] = cluster.name if name is None else name
    if responds_to_findings is not None:
        spec["responds_to_findings"] = responds_to_findings
    if not managed_rules.is_name(spec["name"]):
        problems.append(FieldProblem("/name", "invalid", _("lower-case letters, digits and dashes, at most 59")))
    refuse(problems)
    changed = {column: value for column, value in spec.items() if getattr(cluster, column) != value}
    before = {column: getattr(cluster, column) for column in changed}
    try:
        with transaction.atomic():
            found = Cluster.objects.select_for_update().get(pk=cluster.pk)
            if found.delete_requested_at is not None:
                raise TransitionConflict(_("cluster %(name)s is being removed") % {"name": cluster.name})
            if "working_root" in changed and (running := live_jobs(cluster)):
                text = ngettext(
                    "%(n)s job that has not ended keeps its files there",
                    "%(n)s jobs that have not ended keep their files there",
                    running,
                ) % {"n": running}
                raise ClusterInUse(text, problems=[FieldProblem("/working_root", "in-use", text)])
            cluster.spec_update(expected_version, **changed)
            if changed:
                record(actor, "cluster.update", "cluster", cluster.uid, before=before, after=changed)
                event("cluster", cluster.uid, "ClusterChanged", ", ".join(changed), data={"fields": list(changed)})
                intent_ask(CLUSTER_INTENT, cluster.uid)
                intent_ask(CONNECT_INTENT, cluster.uid)
    except IntegrityError:
        raise _name_taken(spec["name"]) from None


def _name_taken(name: str) -> InvalidInput:
    return InvalidInput(
        _("a cluster named %(name)s exists") % {"name": name},
        problems=[FieldProblem("/name", "taken", _("already used"))],
    )


def cluster_delete(*, actor: Actor, cluster: Cluster, expected_version: int) -> None:
    """Delete a cluster with all groups, nodes and queues; an adopted one only leaves the portal.

    Raises Forbidden, TransitionConflict, StaleVersion, ClusterInUse while jobs have not ended.
    """
    operate(actor)
    if cluster.phase == ClusterPhase.DELETED:
        raise TransitionConflict(_("the cluster is already deleted"))
    with transaction.atomic():
        Cluster.objects.select_for_update().get(pk=cluster.pk)
        if running := live_jobs(cluster):
            raise ClusterInUse(
                ngettext(
                    "%(n)s job on cluster %(name)s has not ended; cancel it or wait",
                    "%(n)s jobs on cluster %(name)s have not ended; cancel them or wait",
                    running,
                )
                % {"n": running, "name": cluster.name}
            )
        if not cluster.is_adopted and (standing := standing_on(cluster)):
            text = _("%(names)s stands on it: its nodes would lose their cluster. Delete that one first")
            raise ClusterInUse(text % {"names": ", ".join(standing)})
        if not cluster.is_adopted and (busy := busy_names(Node.objects.filter(cluster=cluster))):
            raise ClusterInUse(_("jobs run on %(names)s; cancel them or wait for their end") % {"names": busy})
        if cluster.delete_requested_at is None:
            now = clock.now()
            cluster.spec_update(expected_version, delete_requested_at=now, generation=cluster.generation + 1)
            before: dict[str, Any] = {
                "name": cluster.name,
                "kind": cluster.kind,
                "name_at_provider": cluster.name_at_provider,
            }
            before["groups"] = [{"name": g.name, "nodes": g.nodes} for g in groups_live(cluster)]
            record(actor, "cluster.delete", "cluster", cluster.uid, before=before)
            event("cluster", cluster.uid, "ClusterDeleteRequested", f"removal asked for by {actor.name}")
        intent_ask(CLUSTER_INTENT, cluster.uid)


def standing_on(cluster: Cluster) -> list[str]:
    """Names of the HyperPod clusters in the portal that this EKS cluster orchestrates."""
    if cluster.kind != ClusterKind.EKS or not cluster.provider_id:
        return []
    rows = Cluster.objects.filter(kind=ClusterKind.HYPERPOD_EKS).exclude(phase=ClusterPhase.DELETED)
    of_it = Q(settings__eks_cluster_arn=cluster.provider_id) | Q(provider_facts__eks_cluster_arn=cluster.provider_id)
    return list(rows.filter(of_it).values_list("name", flat=True))


def busy_names(nodes: Any) -> str:
    """Nodes on whose GPUs the scheduler runs something, by name; empty when none."""
    found = nodes.filter(gpus_used__gt=0).exclude(phase=NodePhase.GONE).order_by("name")
    return ", ".join(found.values_list("name", flat=True)[:5])


def cluster_retry(*, actor: Actor, cluster: Cluster, expected_version: int) -> None:
    """Have the worker try a failed cluster again, from the step that failed and under the same name.

    The worker looks for what the failed try made before it makes anything. Raises Forbidden, TransitionConflict.
    """
    operate(actor)
    if cluster.phase != ClusterPhase.FAILED or cluster.delete_requested_at is not None:
        raise TransitionConflict(_("only a cluster that failed is tried again"))
    usable(cluster.account)
    with transaction.atomic():
        if cluster.generation <= cluster.observed_generation or cluster.observed_generation == 0:
            cluster.spec_update(expected_version, generation=max(cluster.generation, cluster.observed_generation) + 1)
            record(actor, "cluster.retry", "cluster", cluster.uid, after={"name": cluster.name})
            event("cluster", cluster.uid, "ClusterRetryAsked", f"another try asked for by {actor.name}")
        intent_ask(CLUSTER_INTENT, cluster.uid)
