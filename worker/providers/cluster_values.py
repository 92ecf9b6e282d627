"""What goes into and comes out of providers of clusters that AWS keeps: control planes, node groups, their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

#: States that every kind's own words are translated into.
CREATING, ACTIVE, UPDATING, FAILED, DELETING = "CREATING", "ACTIVE", "UPDATING", "FAILED", "DELETING"
DEGRADED = "DEGRADED"
#: The most nodes that HyperPod replaces or reboots by one call.
NODES_A_CALL = 25


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A node group to make. ``reservation_id`` is an ODCR, a block or a training plan's ARN, as ``source`` says.

    ``nodes`` is the most it may have, ``desired_nodes`` how many shall be started now where they are fewer (a block
    that has not begun).
    """

    uid: str
    name: str
    instance_type: str
    nodes: int
    min_nodes: int
    source: str
    subnet_ids: tuple[str, ...]
    security_group_ids: tuple[str, ...]
    role_arn: str
    tags: Mapping[str, str]
    reservation_id: str = ""
    image_id: str = ""
    queue: str = ""
    launch_template_id: str = ""
    desired_nodes: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster to make under a name of ours; ``settings`` is what its kind wants to know."""

    kind: str
    name: str
    settings: Mapping[str, Any]
    tags: Mapping[str, str]
    groups: tuple[GroupSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """A cluster as AWS describes it: ``state`` is one of ours, ``word`` AWS's.

    ``facts`` is what a person wants to see (addresses, key, roles), ``scheduler_url`` where slurmrestd answers.
    """

    provider_id: str
    name: str
    state: str
    word: str
    tags: Mapping[str, str]
    failure: str = ""
    version: str = ""
    scheduler_url: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A node group as AWS describes it; counts are None where AWS does not say. ``issues`` are (code, message).

    ``tags`` are empty where groups have none: there the name is the group.
    """

    provider_id: str
    name: str
    state: str
    word: str
    instance_type: str = ""
    source: str = "on-demand"
    min_nodes: int = 0
    target_nodes: int | None = None
    current_nodes: int | None = None
    issues: tuple[tuple[str, str], ...] = ()
    subnet_ids: tuple[str, ...] = ()
    role_arn: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SeenMember:
    """One machine of a group: ``provider_id`` is its identity, ``name`` may pass to its successor.

    ``state`` is pending, running, failing, updating or ending.
    """

    provider_id: str
    name: str
    group: str
    state: str
    word: str
    instance_type: str
    message: str = ""
    private_ip: str = ""
    zone_id: str = ""


@dataclass(frozen=True, slots=True)
class SeenHappening:
    """One event that a service keeps about a cluster; ``reason`` is often empty.

    ``twins`` are the ids under which the service tells the same once more.
    """

    provider_id: str
    at: datetime | None
    level: str
    resource: str
    text: str
    reason: str = ""
    group: str = ""
    node: str = ""
    twins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What became of one node of a batch: ``code`` and ``message`` are empty where it was taken."""

    provider_id: str
    code: str = ""
    message: str = ""
