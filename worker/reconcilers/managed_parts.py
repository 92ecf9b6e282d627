"""What the visits to clusters that AWS keeps share: the account's state, names, specs, and how errors are told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.utils.translation import gettext_noop as _

from apps.capacity.models import Reservation
from apps.capacity.states import ENDED
from apps.clusters import managed_observations as observations
from apps.clusters.group_models import ClusterStep, NodeGroup
from apps.clusters.member_observations import SeenMachine, members_observe
from apps.clusters.models import Cluster
from apps.clusters.states import (
    KINDS_HYPERPOD,
    ClusterKind,
    ClusterPhase,
    ClusterStepName,
    GroupPhase,
    GroupSource,
    StepState,
)
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.said import said
from worker.engine import Outcome, again
from worker.providers import cluster_values as kv
from worker.providers import values as v
from worker.providers.errors import (
    AccessDenied,
    InvalidRequest,
    NotFound,
    ProviderError,
    QuotaExceeded,
    Unsupported,
)
from worker.providers.ports import ClusterService

POLL_S = 5.0
NEXT_S = 0.2
WATCH_S = 45.0
#: Asking again cannot help until a person has changed something.
FINAL = (InvalidRequest, QuotaExceeded, AccessDenied, Unsupported)
#: AWS had no machines: how long until a group is made anew, or a creation is asked again.
CAPACITY_WAIT = timedelta(minutes=5)
#: What a service may be slow to list after it was made.
LISTED_WITHIN = timedelta(minutes=2)
#: EKS takes the machines of a block down so long before its end; later nothing is started in it.
LAST_START = timedelta(minutes=45)
#: Codes of AWS's under which a group waits for machines rather than being wrong.
CAPACITY_CODES = frozenset(
    {"AsgInstanceLaunchFailures", "InsufficientInstanceCapacity", "UnfulfillableCapacity", "InsufficientCapacity"}
)

_LONGEST_NAME: dict[str, int] = {
    ClusterKind.PCS: 40,
    ClusterKind.EKS: 100,
    ClusterKind.HYPERPOD_SLURM: 63,
    ClusterKind.HYPERPOD_EKS: 63,
    ClusterKind.PARALLELCLUSTER: 60,
}


def hindrance(account: CloudAccount) -> tuple[str, float]:
    """Why nothing may be asked of an account now and when to look again; "" when it may."""
    if account.is_paused:
        text = _("account %(name)s is paused; nothing is read or changed until it is resumed")
        return said(text, name=account.name), 30.0
    if not account.is_trusted:
        # Whoever answers may be another account, which holds nothing of ours: believe nothing until it is known.
        text = _("account %(name)s is being checked, or failed its check; waiting for it")
        return said(text, name=account.name), 10.0
    return "", 0.0


def derived_name(cluster: Cluster) -> str:
    """The name of a cluster in AWS: its own and the end of its uid, so that no two are the same."""
    most = _LONGEST_NAME.get(cluster.kind, 40)
    tail = cluster.uid[-8:].replace("_", "0")
    head = re.sub(r"[^a-z0-9]+", "-", cluster.name.lower()).strip("-") or "cluster"
    if not head[0].isalpha():
        head = f"c-{head}"
    return f"{head[: most - len(tail) - 1].rstrip('-')}-{tail}"


def cluster_tags(cluster: Cluster) -> dict[str, str]:
    """The tags on everything made for a cluster."""
    return {v.TAG_UID: cluster.uid, v.TAG_ATTEMPT: str(max(1, cluster.create_attempt)), v.TAG_TEAM: "shared"}


def group_tags(group: NodeGroup) -> dict[str, str]:
    """The tags on everything made for a group."""
    return {
        v.TAG_UID: group.uid,
        v.TAG_ATTEMPT: str(max(1, group.create_attempt)),
        v.TAG_TEAM: group.team.slug if group.team else "shared",
    }


def group_spec(group: NodeGroup, *, desired_nodes: int | None = None) -> kv.GroupSpec:
    """A group as its provider wants it."""
    cluster = group.cluster
    return kv.GroupSpec(
        uid=group.uid,
        name=group.name,
        instance_type=group.instance_type,
        nodes=group.nodes,
        min_nodes=group.min_nodes,
        source=group.source,
        subnet_ids=tuple(group.subnet_ids or cluster.settings.get("subnet_ids") or ()),
        security_group_ids=tuple(group.security_group_ids or cluster.settings.get("security_group_ids") or ()),
        role_arn=group.role_arn,
        tags=group_tags(group),
        reservation_id=group.reservation.provider_id if group.reservation else "",
        image_id=group.image_id,
        queue=group.queue,
        launch_template_id=group.launch_template_id,
        desired_nodes=desired_nodes,
        settings=group.settings,
    )


def cluster_spec(cluster: Cluster, groups: Sequence[NodeGroup] = ()) -> kv.ClusterSpec:
    """A cluster as its provider wants it."""
    return kv.ClusterSpec(
        kind=cluster.kind,
        name=cluster.name_at_provider,
        settings=cluster.settings,
        tags=cluster_tags(cluster),
        groups=tuple(group_spec(g) for g in groups),
    )


def is_ours(cluster: Cluster, seen: kv.SeenCluster) -> bool:
    """Whether a cluster found under the name is the one that this row made, or adopted."""
    return cluster.is_adopted or seen.tags.get(v.TAG_UID) == cluster.uid


def stub(cluster: Cluster) -> kv.SeenCluster:
    """A cluster as it was last seen, for questions about what outlives it."""
    return kv.SeenCluster(
        cluster.provider_id, cluster.name_at_provider, kv.DELETING, "", {}, facts=cluster.provider_facts
    )


def seen_of(group: NodeGroup, seen: Sequence[kv.SeenGroup]) -> kv.SeenGroup | None:
    """The group in AWS that a row stands for: by its id, by our tag, and by name only where groups have no tags.

    EKS's ids are names, which may pass to another's group: what was made from here must have our tag too.
    """
    has_names_only = group.cluster.kind in KINDS_HYPERPOD
    for found in seen:
        is_tagged = found.tags.get(v.TAG_UID) == group.uid
        if group.provider_id:
            if found.provider_id == group.provider_id and (group.is_adopted or has_names_only or is_tagged):
                return found
            continue
        is_named = has_names_only and was_asked(group) and found.name == group.name
        if is_named or is_tagged:
            return found
    return None


def was_asked(group: NodeGroup) -> bool:
    """Whether AWS may hold the group. HyperPod's first ones are made with their cluster, by no attempt of their own."""
    is_with_cluster = group.cluster.kind in KINDS_HYPERPOD and not group.cluster.is_adopted
    return bool(group.create_attempt or group.provider_id or is_with_cluster)


def is_made(cluster: Cluster) -> bool:
    """Whether its control plane is there, so that groups can be made in it."""
    if cluster.phase in (ClusterPhase.READY, ClusterPhase.UNREACHABLE):
        return True
    return cluster.phase == ClusterPhase.CREATING and is_controlled(cluster)


def is_controlled(cluster: Cluster) -> bool:
    """Whether its first step is done: the control plane was there, or the cluster was found."""
    first = (ClusterStepName.CONTROL, ClusterStepName.FIND)
    steps = ClusterStep.objects.filter(cluster=cluster, name__in=first)
    return not steps.exclude(state=StepState.DONE).exists()


# --- reservations


def reservation_over(group: NodeGroup) -> str:
    """Why the group's reservation can give it nothing any more; "" while it can."""
    row = group.reservation
    if row is None or not (row.phase in ENDED or (row.end_at is not None and row.end_at <= clock.now())):
        return ""
    text = _("reservation %(name)s is over (%(state)s): delete this group and add one with another source")
    return said(text, name=str(row), state=row.observed_state or row.phase.lower())


def reservation_waits(group: NodeGroup) -> tuple[str, float]:
    """What a reservation that has not begun is waited for, and for how many seconds at most; "": it can be used."""
    row = group.reservation
    if row is None or row.phase == "ACTIVE":
        return "", 0.0
    wait = 15.0
    if row.start_at is not None and row.start_at > clock.now():
        wait = max(1.0, min(60.0, (row.start_at - clock.now()).total_seconds()))
        text = _("waiting for %(name)s, which begins on %(at)s UTC")
        return said(text, name=str(row), at=f"{row.start_at:%Y-%m-%d %H:%M}"), wait
    text = _("waiting for %(name)s to be delivered; AWS says %(state)s")
    return said(text, name=str(row), state=row.observed_state or row.phase.lower()), wait


def takes_it_before_its_start(group: NodeGroup) -> bool:
    """Whether a group can be made while its block has not begun: PCS lets jobs wait, EKS makes it with no nodes."""
    return group.source == GroupSource.CAPACITY_BLOCK and group.cluster.kind in (ClusterKind.PCS, ClusterKind.EKS)


def ends_soon(row: Reservation | None) -> bool:
    """Whether a block is so near its end that nothing is started in it."""
    return row is not None and row.end_at is not None and row.end_at - clock.now() <= LAST_START


# --- words


def refusal(error: ProviderError) -> str:
    """An error that a person has to deal with: AWS's words, and what to do."""
    match error:
        case QuotaExceeded():
            text = _("%(error)s. Ask AWS for more of it (Service Quotas), or use less; then try again")
        case AccessDenied():
            text = _("%(error)s. Give the account's role this permission (see the policy in docs/iam); then try again")
        case Unsupported():
            text = _("%(error)s. AWS does not offer this here")
        case _:
            text = _("%(error)s. Correct it and ask again")
    return said(text, error=str(error).rstrip("."))


_SHORT = _("EC2 has too few machines now; it is tried again. Other zones or a reservation help.")
ADVICE: dict[str, str] = {
    "AsgInstanceLaunchFailures": _SHORT,
    "InsufficientInstanceCapacity": _SHORT,
    "InsufficientCapacity": _SHORT,
    "InsufficientFreeAddresses": _("The subnet has no addresses left: free some, or use a larger subnet."),
    "InstanceLimitExceeded": _("The account's vCPU quota is used up: ask AWS for more (Service Quotas)."),
    "LimitExceeded": _("A quota of the account is used up: ask AWS for more (Service Quotas)."),
    "NodeCreationFailure": _("Machines started but did not join: look at subnet routes, role and user data."),
    "AccessDenied": _("EKS may not do something in the account: look at the role of the cluster and of the nodes."),
    "ClusterUnreachable": _("EKS cannot reach its control plane: look at security groups and end points."),
    "Ec2SubnetNotFound": _("A subnet of the group is gone: add a group with one that exists."),
    "Ec2SecurityGroupNotFound": _("The cluster's security group is gone: make the cluster anew."),
    "Ec2LaunchTemplateNotFound": _("The launch template is gone: delete the group and add it again."),
    "IamNodeRoleNotFound": _("The nodes' role is gone: make it again under the same name, or add another group."),
    "IamInstanceProfileNotFound": _("The instance profile is gone: make it again under the same name."),
    "InternalFailure": _("A failure of AWS's: it is usually over soon; ask AWS's support if it stays."),
}
_GENERAL = _("Look it up in AWS's console; the group goes on with what it has.")


def health_of(issues: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """AWS's issues with what to do about each."""
    return [{"code": code, "message": text, "advice": said(ADVICE.get(code, _GENERAL))} for code, text in issues]


# --- what there is


def observe_members(cluster: Cluster, service: ClusterService, seen: kv.SeenCluster) -> bool:
    """Write the machines of all groups; whether some of them are on the way in or out."""
    try:
        members = service.members(seen)
    except NotFound:
        members = ()
    rows = list(NodeGroup.objects.filter(cluster=cluster).exclude(phase=GroupPhase.DELETED).select_related("cluster"))
    named = {g.name: g for g in rows if was_asked(g)}
    groups = {g.provider_id: g for g in rows if g.provider_id} | named
    members_observe(
        cluster,
        [
            SeenMachine(
                provider_id=m.provider_id,
                name=m.name,
                group=groups.get(m.group),
                state=m.state,
                word=m.word,
                instance_type=m.instance_type,
                message=m.message,
                private_ip=m.private_ip,
                zone_id=m.zone_id,
            )
            for m in members
        ],
    )
    return any(m.state in ("pending", "updating", "ending") for m in members)


def say_and_wait(cluster: Cluster, text: str, seconds: float) -> Outcome:
    """Write a sentence about the cluster and look again later."""
    observations.cluster_seen(cluster, text)
    return again(seconds)
