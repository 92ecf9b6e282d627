"""What each kind of cluster asks of a node group, and what a reservation asks of it: pure decisions on values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.clusters.managed_rules import Place, ids_problems, profile_problem, role_problem
from apps.clusters.states import KINDS_HYPERPOD, ClusterKind, GroupSource
from apps.core.errors import FieldProblem

CONTROLLER, LOGIN, COMPUTE = "Controller", "Login", "Compute"
NODE_TYPES = (CONTROLLER, LOGIN, COMPUTE)
#: What groups of a kind may be made of.
SOURCES: dict[str, tuple[str, ...]] = {
    ClusterKind.PCS: (GroupSource.ON_DEMAND, GroupSource.SPOT, GroupSource.ODCR, GroupSource.CAPACITY_BLOCK),
    ClusterKind.EKS: (GroupSource.ON_DEMAND, GroupSource.SPOT, GroupSource.ODCR, GroupSource.CAPACITY_BLOCK),
    ClusterKind.HYPERPOD_SLURM: (GroupSource.ON_DEMAND, GroupSource.TRAINING_PLAN),
    ClusterKind.HYPERPOD_EKS: (GroupSource.ON_DEMAND, GroupSource.TRAINING_PLAN),
}
#: Kinds of reservation that a source uses.
RESERVED: dict[str, tuple[str, ...]] = {
    GroupSource.ODCR: ("odcr",),
    GroupSource.CAPACITY_BLOCK: ("capacity-block", "ultraserver-block"),
    GroupSource.TRAINING_PLAN: ("training-plan",),
}
#: Machines without GPUs that HyperPod takes as controller or login node; the catalog holds GPU types only.
HEAD_TYPES = tuple(
    f"{family}.{size}"
    for family in ("m5", "c5", "m6i", "c6i", "m7i", "r6i")
    for size in ("large", "xlarge", "2xlarge", "4xlarge")
)
MOST_NODES = 6758
ULTRASERVER_TYPE = "p6e-gb200.36xlarge"
#: The first Slurm that knows how UltraServers are wired.
ULTRASERVER_SLURM = (25, 5)

_NAMES: dict[str, tuple[re.Pattern[str], str]] = {
    ClusterKind.PCS: (re.compile(r"^(?!pcs_)[A-Za-z][A-Za-z0-9-]{2,24}$"), "3–25"),
    ClusterKind.EKS: (re.compile(r"^[0-9A-Za-z][A-Za-z0-9_-]{0,62}$"), "1–63"),
    ClusterKind.HYPERPOD_SLURM: (re.compile(r"^[A-Za-z0-9](-*[A-Za-z0-9]){0,62}$"), "1–63"),
    ClusterKind.HYPERPOD_EKS: (re.compile(r"^[A-Za-z0-9](-*[A-Za-z0-9]){0,62}$"), "1–63"),
}
_PARTITION = re.compile(r"^[A-Za-z0-9](-*[A-Za-z0-9]){0,39}$")
_IMAGE = re.compile(r"^ami-[0-9a-z]{3,32}$")
_LIFECYCLE = "s3://sagemaker-"


@dataclass(frozen=True)
class TypeFacts:
    """What of an instance type decides: whether it is sold on demand, how many EFA interfaces it has."""

    is_on_demand: bool
    efa_interfaces: int


@dataclass(frozen=True)
class Kept:
    """What of a reservation decides. ``taken`` of its machines are meant for others, ``used_by`` names them."""

    name: str
    kind: str
    account_uid: str
    instance_type: str
    instances: int
    phase: str
    is_over: bool
    zone_id: str = ""
    start_at: datetime | None = None
    end_at: datetime | None = None
    taken: int = 0
    used_by: str = ""


@dataclass(frozen=True)
class Wish:
    """A node group as a person asks for it."""

    name: str
    instance_type: str
    nodes: int
    min_nodes: int = 0
    source: str = GroupSource.ON_DEMAND
    subnet_ids: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    image_id: str = ""
    role_arn: str = ""
    queue: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def node_type(self) -> str:
        """Controller, Login or Compute on HyperPod with Slurm; empty elsewhere."""
        return str(self.settings.get("node_type") or "")


def wish_problems(
    kind: str,
    wish: Wish,
    *,
    place: Place,
    machine: TypeFacts | None,
    kept: Kept | None,
    version: str = "",
    at: str = "",
) -> list[FieldProblem]:
    """Everything in which a wish, its reservation and the kind of cluster do not go together.

    ``machine`` is None for a type that the catalog does not hold, ``version`` the cluster's Slurm, ``at`` goes before
    each pointer.
    """
    problems = [*_name(kind, wish), *_machine(kind, wish, machine), *count_problems(kind, wish)]
    problems += _source(kind, wish, machine, kept, place)
    if kind in KINDS_HYPERPOD:
        problems += _hyperpod(kind, wish, place)
    else:
        problems += _in_ec2(kind, wish, place, machine)
    if wish.instance_type == ULTRASERVER_TYPE and kind == ClusterKind.PCS:
        problems += _ultraserver(wish, kept, version)
    return [FieldProblem(at + p.pointer, p.code, p.detail) for p in problems]


def _name(kind: str, wish: Wish) -> list[FieldProblem]:
    pattern, length = _NAMES[kind]
    if pattern.fullmatch(wish.name):
        return []
    text = _("%(length)s letters, digits and dashes, the first a letter or digit") % {"length": length}
    if kind == ClusterKind.PCS:
        text = _("%(length)s letters, digits and dashes, the first a letter") % {"length": length}
    return [FieldProblem("/name", "invalid", text)]


def _machine(kind: str, wish: Wish, machine: TypeFacts | None) -> list[FieldProblem]:
    if machine is not None:
        return []
    if kind == ClusterKind.HYPERPOD_SLURM and wish.node_type in (CONTROLLER, LOGIN):
        if wish.instance_type in HEAD_TYPES:
            return []
        text = _("%(type)s is neither in the catalog nor one of the machines for controllers: %(known)s, …") % {
            "type": repr(wish.instance_type),
            "known": ", ".join(HEAD_TYPES[:4]),
        }
    else:
        text = _("%(type)s is not in the catalog") % {"type": repr(wish.instance_type)}
    return [FieldProblem("/instance_type", "unknown", text)]


def count_problems(kind: str, wish: Wish) -> list[FieldProblem]:
    """What is wrong with how many nodes are asked for."""
    problems = []
    if not 0 <= wish.nodes <= MOST_NODES:
        problems.append(FieldProblem("/nodes", "out-of-range", _("from 0 to %(most)s") % {"most": MOST_NODES}))
    elif wish.node_type == CONTROLLER and wish.nodes != 1:
        problems.append(FieldProblem("/nodes", "not-one", _("a cluster has exactly one controller")))
    if wish.min_nodes and kind != ClusterKind.PCS:
        text = _("only PCS scales between two counts; here the group has as many as you say")
        problems.append(FieldProblem("/min_nodes", "not-here", text))
    elif not 0 <= wish.min_nodes <= max(0, wish.nodes):
        text = _("from 0 to the number of nodes, %(nodes)s") % {"nodes": wish.nodes}
        problems.append(FieldProblem("/min_nodes", "out-of-range", text))
    return problems


def _source(kind: str, wish: Wish, machine: TypeFacts | None, kept: Kept | None, place: Place) -> list[FieldProblem]:
    if wish.source not in SOURCES[kind]:
        if kind in KINDS_HYPERPOD and wish.source in GroupSource.values:
            text = _(
                "HyperPod cannot use %(source)s: its machines are not in your EC2. Choose on demand or a training plan"
            ) % {"source": GroupSource(wish.source).label}
        else:
            text = _("%(source)s is no source here; one of %(known)s") % {
                "source": repr(wish.source),
                "known": ", ".join(SOURCES[kind]),
            }
        return [FieldProblem("/source", "not-here", text)]
    if wish.source not in RESERVED:
        problems = []
        if kept is not None:
            text = _("%(source)s uses no reservation; choose the source that does or take the reservation out") % {
                "source": GroupSource(wish.source).label
            }
            problems.append(FieldProblem("/reservation", "not-here", text))
        is_never_sold = machine is not None and not machine.is_on_demand
        if is_never_sold and (kind not in KINDS_HYPERPOD or wish.instance_type == ULTRASERVER_TYPE):
            text = _("%(type)s has no published on-demand price; it is sold through reservations") % {
                "type": wish.instance_type
            }
            problems.append(FieldProblem("/instance_type", "not-on-demand", text))
        return problems
    if kept is None:
        return [FieldProblem("/reservation", "required", _("choose the reservation that the machines come from"))]
    return misfits(wish, kept, place)


def misfits(wish: Wish, kept: Kept, place: Place) -> list[FieldProblem]:
    """In what a wish does not fit into its reservation."""
    problems: list[FieldProblem] = []

    def add(pointer: str, code: str, text: str) -> None:
        problems.append(FieldProblem(pointer, code, text))

    if kept.account_uid != place.uid:
        text = _("%(name)s is in another account than %(account)s, the cluster's: only its own account can use it")
        add("/reservation", "other-account", text % {"name": kept.name, "account": place.name})
    if kept.kind not in RESERVED[wish.source]:
        text = _("%(name)s is no reservation for the source %(source)s")
        add("/reservation", "other-kind", text % {"name": kept.name, "source": GroupSource(wish.source).label})
    if kept.is_over:
        text = _("%(name)s is over; no machine starts in it any more. Choose or book another")
        add("/reservation", "over", text % {"name": kept.name})
    elif kept.phase not in ("ACTIVE", "SCHEDULED"):
        text = _("%(name)s is not paid or not confirmed yet; wait until it is scheduled or active")
        add("/reservation", "not-live", text % {"name": kept.name})
    if kept.instance_type != wish.instance_type:
        text = _("%(name)s is for %(type)s")
        add("/instance_type", "other-type", text % {"name": kept.name, "type": kept.instance_type})
    if wish.nodes > kept.instances:
        text = ngettext("%(name)s has %(n)s machine", "%(name)s has %(n)s machines", kept.instances)
        add("/nodes", "too-many", text % {"name": kept.name, "n": kept.instances})
    elif kept.taken and kept.kind == "ultraserver-block":
        text = _("%(name)s is used by %(by)s already, and an UltraServer block serves one group; choose another")
        add("/reservation", "taken", text % {"name": kept.name, "by": kept.used_by})
    elif wish.nodes > kept.instances - kept.taken:
        text = _("of the %(n)s machines of %(name)s %(taken)s are meant for %(by)s; take fewer or shrink the other")
        add("/nodes", "taken", text % {"name": kept.name, "n": kept.instances, "taken": kept.taken, "by": kept.used_by})
    if wish.source != GroupSource.TRAINING_PLAN and len(wish.subnet_ids) > 1:
        text = _("a reservation stands in one zone (%(zone)s): name one subnet there")
        add("/subnet_ids", "other-zone", text % {"zone": kept.zone_id or "?"})
    return problems


def _in_ec2(kind: str, wish: Wish, place: Place, machine: TypeFacts | None) -> list[FieldProblem]:
    has_efa = machine is not None and machine.efa_interfaces > 0
    problems = ids_problems("/subnet_ids", wish.subnet_ids, "subnet-", 1)
    if has_efa and len(wish.subnet_ids) > 1 and wish.source not in RESERVED:
        text = _("EFA does not cross zones: name one subnet, and make another group for another zone")
        problems.append(FieldProblem("/subnet_ids", "other-zone", text))
    if kind == ClusterKind.EKS and not has_efa:
        problems += ids_problems("/security_group_ids", wish.security_group_ids, "sg-", 0, 5)
    elif not wish.security_group_ids:
        text = _("name one that lets its own members reach each other, in and out, and starts with sg-")
        problems.append(FieldProblem("/security_group_ids", "required", text))
    else:
        problems += ids_problems("/security_group_ids", wish.security_group_ids, "sg-", 1, 5)
    if kind == ClusterKind.PCS:
        problems += profile_problem("/role_arn", wish.role_arn, place)
        if not _IMAGE.fullmatch(wish.image_id):
            text = _("an image made for PCS, ami-…; AWS names its newest in SSM under /aws/service/pcs/ami/")
            problems.append(FieldProblem("/image_id", "invalid", text))
        if wish.queue and not _NAMES[ClusterKind.PCS][0].fullmatch(wish.queue):
            text = _("%(length)s letters, digits and dashes, the first a letter") % {"length": "3–25"}
            problems.append(FieldProblem("/queue", "invalid", text))
    else:
        problems += role_problem("/role_arn", wish.role_arn, place)
        if wish.queue:
            problems.append(FieldProblem("/queue", "not-here", _("EKS has no queues")))
        if wish.image_id:
            text = _("EKS chooses the image with the GPU driver itself; leave it empty")
            problems.append(FieldProblem("/image_id", "not-here", text))
    return problems


def _hyperpod(kind: str, wish: Wish, place: Place) -> list[FieldProblem]:
    problems = role_problem("/role_arn", wish.role_arn, place)
    uri = str(wish.settings.get("lifecycle_s3") or "")
    if not re.fullmatch(rf"{_LIFECYCLE}[a-z0-9.-]{{1,53}}(/\S*)?", uri) or len(uri) > 1024:
        text = _("must start with %(prefix)s: HyperPod's role reads scripts only from such buckets") % {
            "prefix": _LIFECYCLE
        }
        problems.append(FieldProblem("/lifecycle_s3", "invalid", text))
    script = str(wish.settings.get("on_create") or "")
    if not re.fullmatch(r"[\w./-]{1,128}", script):
        problems.append(FieldProblem("/on_create", "invalid", _("the script's file name, such as on_create.sh")))
    if wish.image_id:
        text = _("HyperPod chooses the image itself; leave it empty")
        problems.append(FieldProblem("/image_id", "not-here", text))
    if wish.queue and (kind != ClusterKind.HYPERPOD_SLURM or wish.node_type in (CONTROLLER, LOGIN)):
        text = _("only compute nodes of HyperPod on Slurm stand in a partition")
        problems.append(FieldProblem("/queue", "not-here", text))
    elif wish.queue and not _PARTITION.fullmatch(wish.queue):
        problems.append(FieldProblem("/queue", "invalid", _("letters, digits and dashes, at most 40")))
    if kind == ClusterKind.HYPERPOD_SLURM and wish.node_type not in NODE_TYPES:
        text = _("one of %(known)s") % {"known": ", ".join(NODE_TYPES)}
        problems.append(FieldProblem("/node_type", "unknown", text))
    elif kind == ClusterKind.HYPERPOD_EKS and wish.node_type:
        text = _("only HyperPod on Slurm has controllers and login nodes")
        problems.append(FieldProblem("/node_type", "not-here", text))
    return problems


def _ultraserver(wish: Wish, kept: Kept | None, version: str) -> list[FieldProblem]:
    problems = []
    if wish.source in RESERVED and kept is not None and kept.kind != "ultraserver-block":
        text = _("%(type)s comes in UltraServers: choose an UltraServer block, one to each group") % {
            "type": wish.instance_type
        }
        problems.append(FieldProblem("/reservation", "not-ultraserver", text))
    parts = [int(p) for p in re.findall(r"\d+", version)[:2]]
    if len(parts) == 2 and tuple(parts) < ULTRASERVER_SLURM:
        text = _("%(type)s needs Slurm 25.05 or later, which knows its wiring; this is %(version)s") % {
            "type": wish.instance_type,
            "version": version,
        }
        problems.append(FieldProblem("/instance_type", "old-slurm", text))
    if not wish.queue:
        text = _("an UltraServer block needs a queue of its own")
        problems.append(FieldProblem("/queue", "required", text))
    return problems


def together_problems(kind: str, wishes: Sequence[Wish]) -> list[FieldProblem]:
    """What groups of one cluster must have in common: names of their own, and one controller on HyperPod with Slurm."""
    problems = []
    names = [w.name for w in wishes]
    for i, name in enumerate(names):
        if name in names[:i]:
            text = _("another group has this name")
            problems.append(FieldProblem(f"/groups/{i}/name", "taken", text))
    if kind in KINDS_HYPERPOD and not wishes:
        problems.append(FieldProblem("/groups", "required", _("HyperPod makes a cluster only with its first group")))
    elif kind == ClusterKind.HYPERPOD_SLURM:
        controllers = sum(1 for w in wishes if w.node_type == CONTROLLER)
        if controllers != 1:
            text = _("exactly one group must be the controller, these are %(n)s") % {"n": controllers}
            problems.append(FieldProblem("/groups", "controllers", text))
    if kind == ClusterKind.PCS:
        queues = [w.queue for w in wishes]
        for i, queue in enumerate(queues):
            if queue and queue in queues[:i]:
                text = _("the queue %(queue)s serves another group; each group has its own") % {"queue": queue}
                problems.append(FieldProblem(f"/groups/{i}/queue", "taken", text))
    return problems
