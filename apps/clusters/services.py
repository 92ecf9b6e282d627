"""What people do with clusters and nodes; fleets are in ``fleet_services``, what the worker saw in ``observations``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.audit.services import event, record
from apps.clusters.models import Cluster, Fleet, Node
from apps.clusters.permissions import can_operate_clusters
from apps.clusters.states import FLEET_LIVE, ClusterPhase, NodePhase
from apps.connections.models import CloudAccount
from apps.connections.services import account_claim, check_reference
from apps.core import clock
from apps.core.errors import FieldProblem, Forbidden, InvalidInput, Refusal, TransitionConflict
from apps.intents.services import intent_ask
from apps.teams.permissions import Actor

CLUSTER_INTENT = "cluster.connect"
NODE_INTENT = "node.drain"
#: The longest that pods may take to save their state when a node is drained.
MAX_GRACE_S = 3600
_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,58}$")
#: What a person may correct.
EDITABLE = (
    "name",
    "account",
    "api_url",
    "user_name",
    "token_ref",
    "jwt_key_ref",
    "partition",
    "exporter_url",
    "working_root",
    "responds_to_findings",
)


class ClusterInUse(Refusal):
    """Fleets or jobs hang on what would change or go."""


def _operate(actor: Actor) -> None:
    if not can_operate_clusters(actor):
        raise Forbidden("only operators and administrators do this")


def _refuse(problems: list[FieldProblem]) -> None:
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=problems)


def _check_cluster(spec: Mapping[str, Any]) -> None:
    """Refuse a spec that can never work. Raises InvalidInput with every problem at its field."""
    problems: list[FieldProblem] = []
    exporter = spec["exporter_url"]
    if not _NAME.fullmatch(spec["name"]):
        problems.append(FieldProblem("/name", "invalid", _("lower-case letters, digits and dashes")))
    if not re.match(r"^https?://[^\s/]+", spec["api_url"]):
        problems.append(FieldProblem("/api_url", "invalid", _("must start with http:// or https://")))
    if exporter and ("{node}" not in exporter or not re.match(r"^https?://", exporter)):
        problems.append(
            FieldProblem("/exporter_url", "invalid", _("an http(s) address with {node} where the name goes"))
        )
    if not spec["working_root"].startswith("/") or ".." in spec["working_root"]:
        problems.append(FieldProblem("/working_root", "invalid", _("an absolute path that all nodes share")))
    if not spec["user_name"]:
        problems.append(FieldProblem("/user_name", "required", _("the user that jobs run as")))
    if not spec["token_ref"] and not spec["jwt_key_ref"]:
        text = _("name the secret with the scheduler's token, or the one with its signing key")
        problems.append(FieldProblem("/token_ref", "required", text))
    for name in ("token_ref", "jwt_key_ref"):
        problems += check_reference(f"/{name}", spec[name], account=spec["account"] is not None)
    _refuse(problems)


def _tidy(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Addresses and paths without the slash at their end."""
    return {k: v.rstrip("/") if k in ("api_url", "working_root") else v for k, v in spec.items()}


def _plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec as the audit trail keeps it: the account by its name."""
    return {k: (v.name if isinstance(v, CloudAccount) else v) for k, v in spec.items()}


def _name_taken(name: str) -> InvalidInput:
    return InvalidInput(
        _("a cluster named %(name)s exists") % {"name": name},
        problems=[FieldProblem("/name", "taken", _("already used"))],
    )


def cluster_create(
    *,
    actor: Actor,
    name: str,
    api_url: str,
    user_name: str,
    working_root: str,
    token_ref: str = "",
    jwt_key_ref: str = "",
    account: CloudAccount | None = None,
    partition: str = "",
    exporter_url: str = "",
    responds_to_findings: bool = True,
) -> Cluster:
    """Record a scheduler and ask the worker to connect to it. Raises Forbidden, InvalidInput, AccountInUse."""
    _operate(actor)
    spec = {
        "name": name,
        "account": account,
        "api_url": api_url,
        "user_name": user_name,
        "token_ref": token_ref,
        "jwt_key_ref": jwt_key_ref,
        "partition": partition,
        "exporter_url": exporter_url,
        "working_root": working_root,
        "responds_to_findings": responds_to_findings,
    }
    _check_cluster(spec)
    cluster = Cluster(**_tidy(spec))
    try:
        with transaction.atomic():
            if account is not None:
                account_claim(account)
            cluster.save()
            record(actor, "cluster.create", "cluster", cluster.uid, after=_plain(_tidy(spec)))
            event("cluster", cluster.uid, "ClusterCreated", f"created by {actor.name}")
            intent_ask(CLUSTER_INTENT, cluster.uid)
    except IntegrityError:
        raise _name_taken(name) from None
    return cluster


def live_jobs(cluster: Cluster) -> int:
    """How many jobs there have not ended."""
    # By the relation's name: jobs live on a higher floor.
    return int(getattr(cluster, "jobs").filter(ended_at__isnull=True).count())  # noqa: B009


def cluster_update(*, actor: Actor, cluster: Cluster, expected_version: int, **changes: Any) -> None:
    """Correct how a scheduler is reached and used, and ask the worker to connect again; what is not named stays.

    The shared folder stays while jobs live, whose files are in it, and the account while fleets
    live, whose machines are in it. Raises Forbidden, InvalidInput, ClusterInUse, StaleVersion.
    """
    _operate(actor)
    spec = {name: getattr(cluster, name) for name in EDITABLE} | changes
    if set(spec) != set(EDITABLE):
        raise TypeError(f"not columns of a cluster's spec: {sorted(set(spec) - set(EDITABLE))}")
    _check_cluster(spec)
    changed = {name: value for name, value in _tidy(spec).items() if getattr(cluster, name) != value}
    before = {name: getattr(cluster, name) for name in changed}
    try:
        with transaction.atomic():
            found = _lock(cluster)
            if found.delete_requested_at is not None:
                raise TransitionConflict(_("cluster %(name)s is being removed") % {"name": cluster.name})
            if "working_root" in changed and (running := live_jobs(cluster)):
                text = ngettext(
                    "%(n)s job that has not ended keeps its files there",
                    "%(n)s jobs that have not ended keep their files there",
                    running,
                ) % {"n": running}
                raise ClusterInUse(text, problems=[FieldProblem("/working_root", "in-use", text)])
            if "account" in changed:
                if fleets := Fleet.objects.filter(cluster=cluster, phase__in=FLEET_LIVE).values_list("name", flat=True):
                    text = _("fleets live in it: %(names)s") % {"names": ", ".join(list(fleets)[:10])}
                    raise ClusterInUse(text, problems=[FieldProblem("/account", "in-use", text)])
                if changed["account"] is not None:
                    account_claim(changed["account"])
            generation = cluster.generation + (1 if changed else 0)
            cluster.spec_update(expected_version, generation=generation, **changed)
            if changed:
                record(actor, "cluster.update", "cluster", cluster.uid, before=_plain(before), after=_plain(changed))
                event("cluster", cluster.uid, "ClusterChanged", ", ".join(changed), data={"fields": list(changed)})
                intent_ask(CLUSTER_INTENT, cluster.uid)
    except IntegrityError:
        raise _name_taken(spec["name"]) from None


def _lock(cluster: Cluster) -> Cluster:
    """The cluster's row, so that nothing is hung on it while it goes."""
    return Cluster.objects.select_for_update().get(pk=cluster.pk)


def cluster_delete(*, actor: Actor, cluster: Cluster, expected_version: int) -> None:
    """Take a cluster out of the portal; the scheduler is not touched.

    Raises Forbidden, StaleVersion, ClusterInUse while it has fleets or jobs.
    """
    _operate(actor)
    with transaction.atomic():
        _lock(cluster)
        fleets = list(Fleet.objects.filter(cluster=cluster, phase__in=FLEET_LIVE).values_list("name", flat=True))
        if fleets:
            raise ClusterInUse(
                _("cluster %(name)s still has fleets: %(names)s; delete them first")
                % {"name": cluster.name, "names": ", ".join(fleets[:10])}
            )
        # Without collectors they would run and cost unseen.
        if running := live_jobs(cluster):
            raise ClusterInUse(
                ngettext(
                    "%(n)s job on cluster %(name)s has not ended; cancel it or wait",
                    "%(n)s jobs on cluster %(name)s have not ended; cancel them or wait",
                    running,
                )
                % {"n": running, "name": cluster.name}
            )
        cluster.spec_update(expected_version, delete_requested_at=clock.now())
        before = {name: getattr(cluster, name) for name in EDITABLE}
        record(actor, "cluster.delete", "cluster", cluster.uid, before=_plain(before))
        event("cluster", cluster.uid, "ClusterDeleteRequested", f"removal asked for by {actor.name}")
        intent_ask(CLUSTER_INTENT, cluster.uid)


def node_drain(*, actor: Actor, node: Node, reason: str, evict_grace_s: int | None = None) -> None:
    """Ask for a node to take no new jobs; asking twice keeps the first reason.

    With ``evict_grace_s`` the pods on it are ended, too, each with so many seconds to save its state: Kubernetes only.
    Raises Forbidden, InvalidInput, TransitionConflict.
    """
    if evict_grace_s is not None:
        _check_eviction(node, evict_grace_s)
    if not actor.everywhere("health.operate"):
        raise Forbidden("only operators and administrators drain nodes")
    if not reason.strip():
        raise InvalidInput("say why", problems=[FieldProblem("/reason", "required", "say why")])
    if node.phase == NodePhase.GONE:
        raise TransitionConflict("the node is gone")
    with transaction.atomic():
        changed = Node.objects.filter(pk=node.pk, drain_requested_at__isnull=True).update(
            drain_requested_at=clock.now(), drain_reason=reason.strip()[:300], resume_requested_at=None
        )
        if changed:
            record(actor, "node.drain", "node", node.uid, after={"node": node.name, "reason": reason})
            event("node", node.uid, "DrainRequested", f"drain of {node.name}: {reason}", data={"reason": reason})
        if evict_grace_s is not None:
            asked = {"evict_requested_at": clock.now(), "evict_grace_s": evict_grace_s, "evicted_at": None}
            Node.objects.filter(pk=node.pk).update(**asked)
            record(actor, "node.evict", "node", node.uid, after={"node": node.name, "grace_s": evict_grace_s})
            text = f"pods of {node.name} to be ended, {evict_grace_s} s each: {reason}"
            event("node", node.uid, "EvictionRequested", text, data={"grace_s": evict_grace_s})
        intent_ask(NODE_INTENT, node.uid)


def _check_eviction(node: Node, grace_s: int) -> None:
    if not node.cluster.is_kubernetes:
        text = _("only Kubernetes ends what runs on a node; here its jobs are cancelled or run out")
        raise InvalidInput(text, problems=[FieldProblem("/evict_grace_s", "not-here", text)])
    if not 0 <= grace_s <= MAX_GRACE_S:
        text = _("from %(low)s to %(high)s s") % {"low": 0, "high": f"{MAX_GRACE_S:,}"}
        raise InvalidInput(text, problems=[FieldProblem("/evict_grace_s", "out-of-range", text)])


def node_resume(*, actor: Actor, node: Node) -> None:
    """Ask for a drained node to take jobs again. Raises Forbidden."""
    if not actor.everywhere("health.operate"):
        raise Forbidden("only operators and administrators resume nodes")
    with transaction.atomic():
        Node.objects.filter(pk=node.pk).update(
            drain_requested_at=None,
            drain_reason="",
            resume_requested_at=clock.now(),
            evict_requested_at=None,
            evicted_at=None,
        )
        record(actor, "node.resume", "node", node.uid, before={"node": node.name, "reason": node.drain_reason})
        event("node", node.uid, "ResumeRequested", f"resume of {node.name} by {actor.name}")
        intent_ask(NODE_INTENT, node.uid)


def clusters_connected() -> list[Cluster]:
    """Clusters whose collectors should run: those with a scheduler that the worker can ask."""
    rows = Cluster.objects.filter(phase__in=[ClusterPhase.READY, ClusterPhase.UNREACHABLE]).select_related("account")
    return [cluster for cluster in rows if cluster.takes_jobs]
