"""Clusters that AWS keeps, in words: the sentence each page opens with, what AWS does by itself, what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.clusters.group_models import NodeGroup
from apps.clusters.managed_rules import PCS_SIZES
from apps.clusters.models import Cluster
from apps.clusters.states import KINDS_HYPERPOD, KINDS_SLURM, ClusterKind, ClusterPhase, GroupPhase, GroupSource
from apps.core import clock, units
from apps.core.said import Said


def _joined(*parts: str) -> str:
    return " ".join(p for p in parts if p)


def _ended(text: object) -> str:
    """The worker's words as a sentence: a full stop, and a capital unless it is AWS's own; nothing stays nothing."""
    words = str(text or "").strip()
    if not words:
        return ""
    if isinstance(text, Said):
        words = words[0].upper() + words[1:]
    return words if words[-1] in ".!?…" else f"{words}."


def managed_sentence(cluster: Cluster, nodes: int, groups: tuple[int, int]) -> str:
    """What is going on with a cluster that AWS keeps; ``groups``: how many there are, how many are in trouble."""
    since = units.duration(clock.now() - cluster.phase_since)
    facts = {"since": since, "kind": cluster.get_kind_display()}
    message = _ended(cluster.message)
    account = cluster.account
    halt = _("The account is paused.") if account is not None and account.is_paused else ""
    match cluster.phase:
        case ClusterPhase.DELETED if cluster.is_adopted:
            return _("Left the portal %(since)s ago; in AWS it goes on.") % facts
        case ClusterPhase.DELETED:
            return _("Deleted %(since)s ago; AWS holds nothing of it any more.") % facts
        case _:
            pass
    if cluster.delete_requested_at is not None or cluster.phase == ClusterPhase.DELETING:
        if cluster.is_adopted:
            return _joined(_("Leaves the portal; in AWS it goes on."), message, halt)
        return _joined(_("Being deleted: queues, then groups with their machines, then the cluster."), message, halt)
    match cluster.phase:
        case ClusterPhase.PENDING if cluster.is_adopted:
            text = _("Being looked for in the account for %(since)s.") % facts
        case ClusterPhase.PENDING:
            text = _("Accepted %(since)s ago; the worker takes it up next.") % facts
        case ClusterPhase.CREATING:
            text = _("Being made for %(since)s.") % facts
        case ClusterPhase.FAILED:
            text = _("Failed %(since)s ago.") % facts
            tail = _("Mend what it says and try again, or delete it.")
            return _joined(text, message, tail, halt)
        case ClusterPhase.UNREACHABLE:
            tail = _("What you see is the last known state.")
            return _joined(_("No answer for %(since)s.") % facts, message, tail, halt)
        case _:
            return _joined(_ready(nodes, groups), message, halt)
    return _joined(text, message, halt)


def _ready(nodes: int, groups: tuple[int, int]) -> str:
    live, troubled = groups
    if not live:
        return _("Ready, but it has no machines yet: add a node group.")
    text = ngettext("Ready: %(nodes)s in one node group.", "Ready: %(nodes)s in %(n)s node groups.", live) % {
        "n": live,
        "nodes": ngettext("%(n)s node", "%(n)s nodes", nodes) % {"n": nodes},
    }
    if troubled:
        more = ngettext("%(n)s group needs a look.", "%(n)s groups need a look.", troubled) % {"n": troubled}
        return f"{text} {more}"
    return text


def group_sentence(group: NodeGroup) -> str:
    """What is going on with a node group, since when, what next."""
    facts = {
        "since": units.duration(clock.now() - group.phase_since),
        "seen": group.observed_nodes,
        "nodes": group.nodes,
        "target": group.nodes if group.target_nodes is None else group.target_nodes,
        "type": group.instance_type,
    }
    message = _ended(group.message)
    if group.phase == GroupPhase.DELETED:
        return _("Deleted %(since)s ago; its machines are gone.") % facts
    if group.delete_requested_at is not None or group.phase == GroupPhase.DELETING:
        return _joined(_("Being deleted; its machines go with it."), message)
    match group.phase:
        case GroupPhase.PENDING:
            return _joined(_("Accepted: %(nodes)s × %(type)s; it waits for its cluster.") % facts, message)
        case GroupPhase.CREATING:
            return _joined(_("Being made for %(since)s: %(seen)s of %(nodes)s nodes are there.") % facts, message)
        case GroupPhase.UPDATING:
            return _joined(
                _("Changing for %(since)s: %(seen)s nodes are there, %(nodes)s are wanted.") % facts, message
            )
        case GroupPhase.DEGRADED:
            return _joined(_("Degraded for %(since)s: %(seen)s of %(nodes)s nodes are there.") % facts, message)
        case GroupPhase.FAILED:
            tail = _("Delete it and add it again once that is mended.")
            return _joined(_("AWS could not make it, %(since)s ago.") % facts, message, tail)
        case _ if group.cluster.kind in (ClusterKind.PCS, ClusterKind.PARALLELCLUSTER):
            text = _("Active: %(seen)s nodes now; Slurm's queue decides, between %(least)s and %(nodes)s.")
            return text % {**facts, "least": group.min_nodes}
        case _:
            return _("Active: %(seen)s of %(nodes)s nodes are there.") % facts


# --- what AWS does by itself -----------------------------------------------------------------------


def notes_of(kind: str, *, idle_s: int | None = None) -> list[str]:
    """What AWS does without being asked, and what it does not do, of a kind of cluster."""
    match kind:
        case ClusterKind.PCS:
            idle = units.duration(idle_s) if idle_s else ""
            return [
                _("AWS runs Slurm's controller, its accounting and REST address, and replaces the controller itself."),
                _("Machines start when jobs wait and stop after %(idle)s without one, between least and most.")
                % {"idle": idle}
                if idle
                else _("Machines start when jobs wait and stop when they idle, between least and most."),
                _("An unhealthy machine is replaced by AWS."),
                _("The size cannot be changed later; AWS charges for the controller by size, whether jobs run or not."),
            ]
        case ClusterKind.EKS:
            return [
                _("AWS runs the Kubernetes control plane and charges for it by the hour."),
                _("With node repair AWS reboots or replaces a node whose GPU or kubelet fails."),
                _("EKS takes a Capacity Block's machines to zero 40 minutes before the block ends."),
                _("A group may start in part: EKS has no all-or-nothing."),
            ]
        case ClusterKind.HYPERPOD_SLURM:
            return [
                _("HyperPod launches machines outside your EC2: neither EC2 pages nor its reservations show them."),
                _("With recovery on, HyperPod replaces or reboots a faulty node and resumes jobs started for it."),
                _("The lifecycle script runs on every new machine; a script that fails fails the group."),
            ]
        case ClusterKind.HYPERPOD_EKS:
            return [
                _("HyperPod launches machines outside your EC2: neither EC2 pages nor its reservations show them."),
                _("With recovery on, HyperPod replaces or reboots a faulty node; Kubernetes moves its pods."),
                _("Machines come one by one (continuous provisioning): ready does not mean that all are there."),
            ]
        case _:
            return [
                _("ParallelCluster keeps it as a CloudFormation stack: head node, queues and their machines."),
                _("Machines start when jobs wait and stop when they idle, as its configuration says."),
                _("Slurm marks a broken node down and ParallelCluster replaces it."),
            ]


def jobs_words(cluster: Cluster) -> str:
    """Whether jobs are submitted there from the portal, and if not, how."""
    if cluster.takes_jobs:
        return _("Jobs are submitted from the portal.")
    if cluster.kind not in KINDS_SLURM:
        return _("Watched and resized here; to submit jobs from the portal, let them in under Teams in Kubernetes.")
    if cluster.user_name and not cluster.scheduler_url:
        return _("Jobs are submitted from the portal once the address of slurmrestd is known.")
    return _("Watched here; to submit jobs from the portal, fill in user, token and shared folder.")


# --- facts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fact:
    """One line of what is known: ``values`` are copied where ``is_id``."""

    label: str
    values: tuple[str, ...]
    is_id: bool = False


_LABELS: Mapping[str, Callable[[], str]] = {
    "endpoint": lambda: _("Address"),
    "key_arn": lambda: _("Key in Secrets Manager"),
    "jwt_key_arn": lambda: _("Key of REST tokens"),
    "role_arn": lambda: _("Role"),
    "security_group_id": lambda: _("Security group of the cluster"),
    "security_group_ids": lambda: _("Security groups"),
    "subnet_ids": lambda: _("Subnets"),
    "authentication": lambda: _("Authentication"),
    "orchestrator": lambda: _("Orchestrator"),
    "eks_cluster_arn": lambda: _("EKS cluster"),
    "recovery": lambda: _("Node recovery"),
    "scheduler": lambda: _("Scheduler"),
    "config_problem": lambda: _("Configuration not read"),
}
#: Facts that have a place of their own on the page.
_ELSEWHERE = frozenset({"config", "certificate_authority", "head_node", "size", "endpoints", "is_continuous"})
_PLAIN = frozenset({"authentication", "orchestrator", "recovery", "scheduler", "config_problem"})


def facts_of(cluster: Cluster) -> list[Fact]:
    """What AWS says about a cluster, in the order of interest; empty values are left out."""
    facts: Mapping[str, Any] = cluster.provider_facts or {}
    found: list[Fact] = []
    if cluster.observed_version:
        found.append(Fact(_("Version"), (cluster.observed_version,)))
    elif cluster.settings.get("version"):
        found.append(Fact(_("Version"), (str(cluster.settings["version"]),)))
    size = str(facts.get("size") or cluster.settings.get("size") or "")
    if size in PCS_SIZES:
        nodes, jobs = PCS_SIZES[size]
        text = _("%(size)s: up to %(nodes)s nodes and %(jobs)s jobs") % {"size": size, "nodes": nodes, "jobs": jobs}
        found.append(Fact(_("Size"), (text,)))
    for kind, address in sorted((facts.get("endpoints") or {}).items()):
        found.append(Fact(str(kind).lower(), (str(address),), is_id=True))
    for key, label in _LABELS.items():
        values = facts.get(key)
        rows = tuple(str(v) for v in values) if isinstance(values, list | tuple) else ((str(values),) if values else ())
        if rows:
            found.append(Fact(label(), rows, is_id=key not in _PLAIN))
    for key in sorted(set(facts) - set(_LABELS) - _ELSEWHERE):
        if isinstance(facts[key], str | int | float) and facts[key] not in ("", None):
            found.append(Fact(key.replace("_", " "), (str(facts[key]),)))
    return found


# --- health ----------------------------------------------------------------------------------------


def issues_of(group: NodeGroup) -> list[tuple[str, str, str]]:
    """(code, AWS's message, what to do) of everything that ails a group."""
    return [
        (str(issue.get("code") or ""), str(issue.get("message") or ""), str(issue.get("advice") or ""))
        for issue in group.health or []
    ]


def verb_notes(verb: str) -> list[str]:
    """What HyperPod does to nodes that are replaced or rebooted."""
    if verb == "replace":
        return [
            _("Each node becomes a new machine: its root and other volumes are wiped. 20 to 30 minutes each."),
            _("What runs there is killed; jobs started with auto-resume come back from their last checkpoint."),
            _("The name may stay, the instance does not: the old one's history stays readable."),
            _("HyperPod must have updated the cluster's software once, or it refuses."),
        ]
    return [
        _("Each node starts again with its disks. 1 to 3 minutes each."),
        _("What runs there is killed; jobs started with auto-resume come back from their last checkpoint."),
    ]


def source_notes(kind: str, source: str, phase: str) -> list[str]:
    """What a group's source means for its machines. ``phase`` is the reservation's, "" for none."""
    notes = []
    if source == GroupSource.CAPACITY_BLOCK and kind == ClusterKind.EKS:
        if phase == "SCHEDULED":
            notes.append(_("The block has not started: the group begins with no nodes and grows when the block does."))
        notes.append(_("EKS takes the group to zero 40 minutes before the block ends; nothing to do for you."))
    elif source == GroupSource.CAPACITY_BLOCK:
        if phase == "SCHEDULED":
            notes.append(_("The block has not started: the group is attached now and jobs wait until it does."))
        notes.append(_("EC2 takes the machines back before the block ends: 30 minutes, of an UltraServer 60."))
    elif source == GroupSource.SPOT:
        notes.append(_("AWS takes Spot machines back with two minutes' notice: only for jobs with checkpoints."))
    elif source == GroupSource.ODCR:
        notes.append(_("The launch template names the reservation: no machine starts outside it."))
    elif source == GroupSource.TRAINING_PLAN:
        notes.append(_("Machines come from the training plan and go when it ends; it is paid already."))
    elif kind in KINDS_HYPERPOD:
        notes.append(_("On demand HyperPod may wait long for capacity; a training plan books it."))
    return notes
