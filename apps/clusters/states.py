"""States of clusters, fleets, steps and nodes.

Cluster:

    PENDING ──▶ READY ◀──▶ UNREACHABLE
       └──▶ UNREACHABLE      any ──▶ DELETING ──▶ DELETED
    What AWS keeps: PENDING ──▶ CREATING ──▶ READY, and from each of them FAILED ──▶ CREATING at another try.

Fleet (each working phase may end in FAILED, and any may be deleted):

    PENDING ▶ PREFLIGHT ▶ PLACEMENT_GROUP ▶ LAUNCH_TEMPLATE ▶ LAUNCHING ▶ BOOTING ▶ JOINING ▶ READY ◀▶ DEGRADED
                                                                ▲│
                                                   WAITING_CAPACITY
    any ▶ DELETING ▶ DELETED

Node:

    PENDING ▶ BOOTING ▶ READY ▶ DRAINING ▶ DRAINED ▶ READY
                          └──▶ DOWN ▶ READY            any ▶ GONE
"""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class ClusterKind(TextChoices):
    """What makes the cluster and schedules jobs there."""

    SLURM = "slurm", "Slurm"
    PARALLELCLUSTER = "parallelcluster", "AWS ParallelCluster"
    PCS = "pcs", "AWS PCS"
    HYPERPOD_SLURM = "hyperpod-slurm", _("SageMaker HyperPod on Slurm")
    HYPERPOD_EKS = "hyperpod-eks", _("SageMaker HyperPod on EKS")
    EKS = "eks", "Amazon EKS"
    KUBERNETES = "kubernetes", "Kubernetes"


class TokenStyle(TextChoices):
    """What a token for Slurm says of its bearer."""

    SUN = "sun", _("the user's name (plain Slurm)")
    PCS = "pcs", _("name, uid, gid and groups (AWS PCS)")


class LimitsMode(TextChoices):
    """Whether a team's limits are kept in Slurm's own accounting, too."""

    OFF = "off", _("not kept there")
    WATCH = "watch", _("compare only")
    ENFORCE = "enforce", _("write and repair")


class ClusterPhase(TextChoices):
    """Where a cluster is."""

    PENDING = "PENDING", _("Connecting")
    CREATING = "CREATING", _("Creating")
    READY = "READY", _("Ready")
    FAILED = "FAILED", _("Failed")
    UNREACHABLE = "UNREACHABLE", _("Unreachable")
    DELETING = "DELETING", _("Deleting")
    DELETED = "DELETED", _("Deleted")


class ClusterStepName(TextChoices):
    """What is done, in this order, until a cluster that AWS manages can be used."""

    FIND = "FIND", _("Find it in the account")
    CONTROL = "CONTROL", _("Control plane")
    KEYS = "KEYS", _("Addresses and keys")
    ACCESS = "ACCESS", _("Access entries")
    ADDONS = "ADDONS", _("Add-ons")
    GROUPS = "GROUPS", _("Node groups")
    NODES = "NODES", _("Nodes")
    USE = "USE", _("Ready to use")


class GroupPhase(TextChoices):
    """Where a node group is."""

    PENDING = "PENDING", _("Accepted")
    CREATING = "CREATING", _("Creating")
    ACTIVE = "ACTIVE", _("Active")
    UPDATING = "UPDATING", _("Changing")
    DEGRADED = "DEGRADED", _("Degraded")
    FAILED = "FAILED", _("Failed")
    DELETING = "DELETING", _("Deleting")
    DELETED = "DELETED", _("Deleted")


class GroupSource(TextChoices):
    """Where the machines of a node group come from."""

    ON_DEMAND = "on-demand", _("On demand")
    SPOT = "spot", "Spot"
    CAPACITY_BLOCK = "capacity-block", "Capacity Block"
    ODCR = "odcr", "ODCR"
    TRAINING_PLAN = "training-plan", _("Training plan")


class NodeVerb(TextChoices):
    """What an operator asks of HyperPod about a node."""

    REPLACE = "replace", _("Replace")
    REBOOT = "reboot", _("Reboot")


class NodeActionPhase(TextChoices):
    """Where such a request is."""

    ASKED = "ASKED", _("Asked")
    SENDING = "SENDING", _("Being sent")
    TAKEN = "TAKEN", _("Accepted by AWS")
    REFUSED = "REFUSED", _("Refused")


class FleetPhase(TextChoices):
    """Where a fleet is."""

    PENDING = "PENDING", _("Accepted")
    PREFLIGHT = "PREFLIGHT", _("Preflight")
    PLACEMENT_GROUP = "PLACEMENT_GROUP", _("Placement group")
    LAUNCH_TEMPLATE = "LAUNCH_TEMPLATE", _("Launch template")
    LAUNCHING = "LAUNCHING", _("Launching")
    WAITING_CAPACITY = "WAITING_CAPACITY", _("Waiting for capacity")
    BOOTING = "BOOTING", _("Booting")
    JOINING = "JOINING", _("Joining")
    READY = "READY", _("Ready")
    DEGRADED = "DEGRADED", _("Degraded")
    FAILED = "FAILED", _("Failed")
    DELETING = "DELETING", _("Deleting")
    DELETED = "DELETED", _("Deleted")


class NodePhase(TextChoices):
    """Where a node is."""

    PENDING = "PENDING", _("Pending")
    BOOTING = "BOOTING", _("Booting")
    READY = "READY", _("Ready")
    DRAINING = "DRAINING", _("Draining")
    DRAINED = "DRAINED", _("Drained")
    DOWN = "DOWN", _("Down")
    GONE = "GONE", _("Gone")


class CapacitySource(TextChoices):
    """Where the machines of a fleet come from; it decides market, reservation and placement of the launch."""

    ON_DEMAND = "on-demand", _("On demand")
    ODCR_TARGETED = "odcr-targeted", _("ODCR, by its id")
    ODCR_OPEN = "odcr-open", _("ODCR, open")
    CAPACITY_BLOCK = "capacity-block", "Capacity Block"
    ULTRASERVER_BLOCK = "ultraserver-block", _("UltraServer block")
    SPOT = "spot", "Spot"


class BatchPhase(TextChoices):
    """Where one launch call of a fleet is."""

    WAITING = "WAITING", _("Waiting")
    ASKED = "ASKED", _("Asked")
    LAUNCHED = "LAUNCHED", _("Launched")
    REFUSED = "REFUSED", _("Refused")


BATCH_COLOURS: dict[str, str] = {
    BatchPhase.WAITING: "wait",
    BatchPhase.ASKED: "busy",
    BatchPhase.LAUNCHED: "good",
    BatchPhase.REFUSED: "bad",
}


class PreflightPhase(TextChoices):
    """Where a check that someone asked for is."""

    PENDING = "PENDING", _("Checking")
    DONE = "DONE", _("Checked")
    FAILED = "FAILED", _("Not checked")


class MountKind(TextChoices):
    """How a cluster's nodes come by data."""

    LUSTRE = "fsx-lustre", "FSx for Lustre"
    EFS = "efs", "EFS"
    S3 = "s3", "Mountpoint for S3"
    NVME = "nvme", _("Local NVMe")


class MountPurpose(TextChoices):
    """What a mount is for."""

    CHECKPOINTS = "checkpoints", _("Checkpoints")
    DATASETS = "datasets", _("Datasets")
    HOME = "home", _("Home folders")
    SCRATCH = "scratch", _("Scratch")


class StepState(TextChoices):
    """Where a provisioning step is."""

    WAITING = "WAITING", _("Waiting")
    RUNNING = "RUNNING", _("Running")
    DONE = "DONE", _("Done")
    FAILED = "FAILED", _("Failed")


C, F, G, N = ClusterPhase, FleetPhase, GroupPhase, NodePhase
K, S = ClusterKind, ClusterStepName

CLUSTER_TRANSITIONS: dict[str, frozenset[str]] = {
    C.PENDING: frozenset({C.CREATING, C.READY, C.FAILED, C.UNREACHABLE, C.DELETING}),
    C.CREATING: frozenset({C.READY, C.FAILED, C.DELETING}),
    C.READY: frozenset({C.UNREACHABLE, C.FAILED, C.DELETING}),
    C.FAILED: frozenset({C.CREATING, C.DELETING}),
    C.UNREACHABLE: frozenset({C.READY, C.FAILED, C.DELETING}),
    C.DELETING: frozenset({C.DELETED}),
    C.DELETED: frozenset(),
}
GROUP_TRANSITIONS: dict[str, frozenset[str]] = {
    G.PENDING: frozenset({G.CREATING, G.ACTIVE, G.DEGRADED, G.FAILED, G.DELETING}),
    G.CREATING: frozenset({G.ACTIVE, G.DEGRADED, G.FAILED, G.DELETING}),
    G.ACTIVE: frozenset({G.UPDATING, G.DEGRADED, G.FAILED, G.DELETING}),
    G.UPDATING: frozenset({G.ACTIVE, G.DEGRADED, G.FAILED, G.DELETING}),
    # Back to the start: AWS had no machines for it, and another try makes it anew.
    G.DEGRADED: frozenset({G.PENDING, G.ACTIVE, G.UPDATING, G.FAILED, G.DELETING}),
    G.FAILED: frozenset({G.ACTIVE, G.UPDATING, G.DEGRADED, G.DELETING}),
    G.DELETING: frozenset({G.DELETED}),
    G.DELETED: frozenset(),
}
FLEET_TRANSITIONS: dict[str, frozenset[str]] = {
    F.PENDING: frozenset({F.PREFLIGHT, F.DELETING}),
    F.PREFLIGHT: frozenset({F.PLACEMENT_GROUP, F.FAILED, F.DELETING}),
    F.PLACEMENT_GROUP: frozenset({F.LAUNCH_TEMPLATE, F.FAILED, F.DELETING}),
    F.LAUNCH_TEMPLATE: frozenset({F.LAUNCHING, F.FAILED, F.DELETING}),
    F.LAUNCHING: frozenset({F.BOOTING, F.WAITING_CAPACITY, F.FAILED, F.DELETING}),
    F.WAITING_CAPACITY: frozenset({F.LAUNCHING, F.FAILED, F.DELETING}),
    F.BOOTING: frozenset({F.JOINING, F.FAILED, F.DELETING}),
    F.JOINING: frozenset({F.READY, F.FAILED, F.DELETING}),
    F.READY: frozenset({F.DEGRADED, F.DELETING}),
    F.DEGRADED: frozenset({F.READY, F.DELETING}),
    F.FAILED: frozenset({F.DELETING}),
    F.DELETING: frozenset({F.DELETED}),
    F.DELETED: frozenset(),
}
NODE_TRANSITIONS: dict[str, frozenset[str]] = {
    N.PENDING: frozenset({N.BOOTING, N.READY, N.DOWN, N.GONE}),
    N.BOOTING: frozenset({N.READY, N.DRAINED, N.DRAINING, N.DOWN, N.GONE}),
    N.READY: frozenset({N.DRAINING, N.DRAINED, N.DOWN, N.GONE}),
    N.DRAINING: frozenset({N.DRAINED, N.READY, N.DOWN, N.GONE}),
    N.DRAINED: frozenset({N.READY, N.DRAINING, N.DOWN, N.GONE}),
    N.DOWN: frozenset({N.READY, N.DRAINING, N.DRAINED, N.GONE}),
    N.GONE: frozenset(),
}
FLEET_WORKING = frozenset(
    {
        F.PENDING,
        F.PREFLIGHT,
        F.PLACEMENT_GROUP,
        F.LAUNCH_TEMPLATE,
        F.LAUNCHING,
        F.WAITING_CAPACITY,
        F.BOOTING,
        F.JOINING,
        F.DELETING,
    }
)
FLEET_LIVE = frozenset(set(F) - {F.DELETED})
#: Phases in which machines may be billed.
FLEET_BILLED = frozenset({F.LAUNCHING, F.BOOTING, F.JOINING, F.READY, F.DEGRADED, F.FAILED, F.DELETING})
NODE_USABLE = frozenset({N.READY})

CLUSTER_COLOURS: dict[str, str] = {
    C.PENDING: "busy",
    C.CREATING: "busy",
    C.READY: "good",
    C.FAILED: "bad",
    C.UNREACHABLE: "bad",
    C.DELETING: "busy",
    C.DELETED: "off",
}
FLEET_COLOURS: dict[str, str] = {
    F.PENDING: "wait",
    F.PREFLIGHT: "busy",
    F.PLACEMENT_GROUP: "busy",
    F.LAUNCH_TEMPLATE: "busy",
    F.LAUNCHING: "busy",
    F.WAITING_CAPACITY: "wait",
    F.BOOTING: "busy",
    F.JOINING: "busy",
    F.READY: "good",
    F.DEGRADED: "warn",
    F.FAILED: "bad",
    F.DELETING: "busy",
    F.DELETED: "off",
}
NODE_COLOURS: dict[str, str] = {
    N.PENDING: "wait",
    N.BOOTING: "busy",
    N.READY: "good",
    N.DRAINING: "warn",
    N.DRAINED: "warn",
    N.DOWN: "bad",
    N.GONE: "off",
}
#: Sources that name a reservation, and those that are a block.
SOURCES_RESERVED = frozenset(
    {
        CapacitySource.ODCR_TARGETED,
        CapacitySource.ODCR_OPEN,
        CapacitySource.CAPACITY_BLOCK,
        CapacitySource.ULTRASERVER_BLOCK,
    }
)
SOURCES_BLOCK = frozenset({CapacitySource.CAPACITY_BLOCK, CapacitySource.ULTRASERVER_BLOCK})
#: Sources whose machines stand in a placement group of ours.
SOURCES_GROUPED = frozenset({CapacitySource.ON_DEMAND, CapacitySource.SPOT})

#: (phase that runs the step, name of the step, expected seconds on EC2).
FLEET_STEPS: tuple[tuple[str, int], ...] = (
    (F.PREFLIGHT, 10),
    (F.PLACEMENT_GROUP, 5),
    (F.LAUNCH_TEMPLATE, 5),
    (F.LAUNCHING, 30),
    (F.BOOTING, 240),
    (F.JOINING, 120),
    (F.READY, 1),
)

GROUP_COLOURS: dict[str, str] = {
    G.PENDING: "wait",
    G.CREATING: "busy",
    G.ACTIVE: "good",
    G.UPDATING: "busy",
    G.DEGRADED: "warn",
    G.FAILED: "bad",
    G.DELETING: "busy",
    G.DELETED: "off",
}
GROUP_WORKING = frozenset({G.PENDING, G.CREATING, G.UPDATING, G.DELETING})
NODE_ACTION_COLOURS: dict[str, str] = {
    NodeActionPhase.ASKED: "wait",
    NodeActionPhase.SENDING: "busy",
    NodeActionPhase.TAKEN: "good",
    NodeActionPhase.REFUSED: "bad",
}
NODE_ACTION_OPEN = frozenset({NodeActionPhase.ASKED, NodeActionPhase.SENDING})
#: Kinds that an AWS service keeps: made or adopted in an account, by steps, with node groups.
KINDS_MANAGED = frozenset(set(K) - {K.SLURM, K.KUBERNETES})
KINDS_HYPERPOD = frozenset({K.HYPERPOD_SLURM, K.HYPERPOD_EKS})
KINDS_GROUPED = frozenset({K.PCS, K.HYPERPOD_SLURM, K.HYPERPOD_EKS, K.EKS})
#: Kinds of which the portal itself can make one.
KINDS_MADE = KINDS_MANAGED
KINDS_SLURM = frozenset({K.SLURM, K.PARALLELCLUSTER, K.PCS, K.HYPERPOD_SLURM})
KINDS_KUBERNETES = frozenset({K.EKS, K.HYPERPOD_EKS, K.KUBERNETES})

#: (step, expected seconds) by kind, for a cluster that is made.
CLUSTER_STEPS: dict[str, tuple[tuple[str, int], ...]] = {
    K.PCS: ((S.CONTROL, 600), (S.KEYS, 5), (S.GROUPS, 180), (S.USE, 1)),
    K.EKS: ((S.CONTROL, 600), (S.ACCESS, 5), (S.ADDONS, 120), (S.GROUPS, 240), (S.USE, 1)),
    K.HYPERPOD_SLURM: ((S.CONTROL, 1200), (S.NODES, 300), (S.USE, 1)),
    K.HYPERPOD_EKS: ((S.CONTROL, 1200), (S.NODES, 300), (S.USE, 1)),
    K.PARALLELCLUSTER: ((S.CONTROL, 900), (S.NODES, 300), (S.USE, 1)),
}
#: The same for one that is there already.
ADOPT_STEPS: tuple[tuple[str, int], ...] = ((S.FIND, 5), (S.GROUPS, 5), (S.USE, 1))
