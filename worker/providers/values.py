"""What goes into and comes out of providers: frozen dataclasses with no behaviour but parsing helpers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from worker.providers.part_values import SubmitPart as SubmitPart

# --- compute (AWS EC2) -------------------------------------------------------------------------

#: Tags that every created thing carries; the sweep finds orphans by them.
TAG_UID = "quarterdeck:uid"
TAG_ATTEMPT = "quarterdeck:attempt"
TAG_TEAM = "quarterdeck:team"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key pair; an empty ``access_key_id`` means the SDK's own default chain."""

    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class CloudAccess:
    """How to reach one AWS account in one region.

    ``endpoint_url`` replaces AWS's own addresses (a VPC endpoint, a test double); ``role_arn`` is
    assumed on top of ``credentials`` when given.
    """

    region: str
    credentials: Credentials = Credentials()
    endpoint_url: str = ""
    role_arn: str = ""
    external_id: str = ""


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """Who AWS says we are."""

    account_id: str
    arn: str


@dataclass(frozen=True, slots=True)
class InterfaceSpec:
    """One network interface of a launch template: ``kind`` is "interface" (ENA), "efa" or "efa-only"."""

    card: int
    device: int
    kind: str


@dataclass(frozen=True, slots=True)
class LaunchSource:
    """Where machines come from. ``kind`` is on-demand, spot, odcr-targeted, odcr-open, capacity-block or
    ultraserver-block; ``reservation_id`` is AWS's id (cr-…) where the launch goes into one.
    """

    kind: str = "on-demand"
    reservation_id: str = ""

    @property
    def is_block(self) -> bool:
        """Whether the machines stand in a Capacity Block or an UltraServer block."""
        return self.kind in ("capacity-block", "ultraserver-block")


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A whole fleet launch, as preflight checks it: one type, one subnet, all or nothing.

    ``architecture`` is the type's ("x86_64", "arm64"), which the image must have; empty: not checked.
    """

    instance_type: str
    nodes: int
    vcpus_per_node: int
    subnet_id: str
    security_group_ids: tuple[str, ...]
    image_id: str
    interfaces: tuple[InterfaceSpec, ...]
    source: LaunchSource = LaunchSource()
    architecture: str = ""
    root_volume_gib: int = 500


@dataclass(frozen=True, slots=True)
class Text:
    """A sentence as a template in English with ``%(name)s`` places, and its facts: text, numbers, other sentences."""

    template: str
    facts: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        """In English."""
        return self.template % {k: str(f) for k, f in self.facts.items()} if self.facts else self.template


@dataclass(frozen=True, slots=True)
class Check:
    """One preflight result; ``text`` is a sentence a person can act on, ``detail`` the same in English."""

    name: str
    passed: bool
    text: Text

    @property
    def detail(self) -> str:
        """The sentence in English."""
        return str(self.text)


@dataclass(frozen=True, slots=True)
class PlacementGroup:
    """A cluster placement group."""

    name: str
    provider_id: str
    state: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LaunchTemplateSpec:
    """What a launch template holds; ``user_data`` is plain text (the provider encodes it)."""

    name: str
    instance_type: str
    image_id: str
    subnet_id: str
    security_group_ids: tuple[str, ...]
    interfaces: tuple[InterfaceSpec, ...]
    user_data: str
    tags: Mapping[str, str]
    instance_profile_arn: str = ""
    root_volume_gib: int = 500
    source: LaunchSource = LaunchSource()


@dataclass(frozen=True, slots=True)
class LaunchTemplate:
    """A launch template pinned to one immutable version."""

    provider_id: str
    name: str
    version: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """RunInstances with Min=Max=``count``; ``client_token`` was saved before this value was made."""

    launch_template_id: str
    launch_template_version: str
    count: int
    client_token: str
    placement_group: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """CreateFleet, instant and on demand: ``count`` machines of one of the templates, all of one, or none.

    ``templates`` are launch templates, each pinned, one for each type and subnet that may be taken.
    """

    templates: tuple[LaunchTemplate, ...]
    count: int
    client_token: str
    placement_group: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """What CreateFleet made, and the sentences of the choices that were refused meanwhile."""

    provider_id: str
    instance_ids: tuple[str, ...]
    refusals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NetworkPlace:
    """Where an instance hangs in the network: the switches above it, the top layer first."""

    provider_id: str
    network_nodes: tuple[str, ...]
    group_name: str = ""
    block_id: str = ""


@dataclass(frozen=True, slots=True)
class InstanceEvent:
    """Something that AWS has planned for an instance, such as ``instance-retirement``."""

    provider_id: str
    code: str
    description: str
    not_before: datetime | None
    not_after: datetime | None


@dataclass(frozen=True, slots=True)
class Instance:
    """An EC2 instance as last seen; ``name`` is the first label of its private DNS name."""

    provider_id: str
    name: str
    instance_type: str
    state: str
    private_ip: str
    zone_id: str
    placement_group: str
    launched_at: datetime | None
    tags: Mapping[str, str]
    state_reason: str = ""
    state_reason_code: str = ""
    client_token: str = ""
    reservation_id: str = ""


@dataclass(frozen=True, slots=True)
class Owned:
    """Anything in the account that carries our uid tag.

    ``kind`` is instance, placement-group, launch-template or network-interface, or a cluster or node group of an AWS
    service. ``instance_type`` is an instance's; ``machines`` are (type, count) of those that are found only with it.
    """

    kind: str
    provider_id: str
    uid: str
    attempt: str
    state: str
    created_at: datetime | None = None
    instance_type: str = ""
    machines: tuple[tuple[str, int], ...] = ()


# --- scheduler (Slurm) -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SchedulerAccess:
    """How to reach one slurmrestd: base address without path, the user to act as, and a JWT.

    ``names_user``: the user is named in a header, too; AWS PCS takes the token's word alone.
    """

    endpoint_url: str
    user_name: str
    token: str = field(repr=False)
    timeout_s: float = 20.0
    names_user: bool = True


@dataclass(frozen=True, slots=True)
class SchedulerInfo:
    """What the controller says of itself; ``api_version`` is the REST version chosen, e.g. "v0.0.42"."""

    cluster_name: str
    version: str
    api_version: str


@dataclass(frozen=True, slots=True)
class Partition:
    """A Slurm partition; ``max_time_min`` is None where the partition has no limit."""

    name: str
    nodes: tuple[str, ...]
    max_time_min: int | None
    is_default: bool
    state: str


@dataclass(frozen=True, slots=True)
class SchedulerNode:
    """A node as the scheduler sees it.

    ``state`` is the base word (IDLE, MIXED, ALLOCATED, DOWN), ``flags`` the rest (DRAIN, …). ``address`` is where its
    slurmd answers and ``instance_id`` its machine, where Slurm tells them. ``labels`` are those of Kubernetes that say
    what the node is.
    """

    name: str
    state: str
    flags: tuple[str, ...]
    gpu_type: str
    gpus: int
    gpus_used: int
    cpus: int
    memory_mib: int
    reason: str
    partitions: tuple[str, ...]
    address: str = ""
    instance_id: str = ""
    instance_type: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """One batch job. ``comment`` carries the attempt's uid, the only key Slurm lets us find it by.

    ``requeue`` lets Slurm itself start the job again after a node failure; off, because attempts are made here.
    ``array`` are the tasks of a job array ("0-9%2"), ``options`` further options of sbatch, each ``--name`` or
    ``--name=value``. With ``parts`` it is a heterogeneous job; the other fields are its first part.
    """

    script: str
    name: str
    comment: str
    partition: str
    nodes: int
    gpus_per_node: int
    gpu_type: str
    tasks_per_node: int
    cpus_per_task: int
    memory_per_node_mib: int
    time_limit_min: int
    working_directory: str
    environment: Mapping[str, str]
    stdout_path: str = ""
    account: str = ""
    qos: str = ""
    excluded_nodes: tuple[str, ...] = ()
    requeue: bool = False
    options: tuple[str, ...] = ()
    array: str = ""
    parts: tuple[SubmitPart, ...] = ()


@dataclass(frozen=True, slots=True)
class JobChange:
    """What is to be different about a job; None stays as it is. ``nice`` lowers the priority by so much.

    ``priority_class`` is Kueue's, and ``partition`` its LocalQueue.
    """

    time_limit_min: int | None = None
    partition: str | None = None
    nice: int | None = None
    priority_class: str | None = None


@dataclass(frozen=True, slots=True)
class SubmitReceipt:
    """The scheduler took the job. A warning may say that it will not start as it is (beyond a partition's limit)."""

    scheduler_id: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerJob:
    """A job as the scheduler sees it.

    ``state`` is Slurm's base word (PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT,
    NODE_FAIL, PREEMPTED, …) or COMPLETING while its nodes are still being cleaned; ``reason`` Slurm's
    reason while it waits; ``exit_code`` the process's own code, ``signal`` the signal that ended it,
    None while unknown. ``nodes`` is expanded ("p5-[1-2]" → ("p5-1", "p5-2")).

    A task of an array has ``array_id`` (the array's scheduler id) and ``array_task``; tasks that have not begun share
    one record, whose ``array_pending`` lists them ("3-99%10"). A part of a heterogeneous job has ``het_id`` (the
    scheduler id of the first part) and ``het_offset``. ``dependency`` and ``features`` are Slurm's own words.
    ``gpus``, ``cpus`` and ``memory_mib`` are of all nodes: given, or asked for while it waits; 0: unknown.
    ``why`` is its reason as a sentence where there is more than a code, ``failed_node`` the node under it that failed.
    """

    scheduler_id: str
    name: str
    comment: str
    user_name: str
    account: str
    partition: str
    state: str
    reason: str
    nodes: tuple[str, ...]
    node_count: int
    gpus: int
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    expected_start_at: datetime | None
    time_limit_min: int | None
    exit_code: int | None
    signal: int | None
    priority: int | None = None
    array_id: str = ""
    array_task: int | None = None
    array_pending: str = ""
    het_id: str = ""
    het_offset: int | None = None
    qos: str = ""
    reservation: str = ""
    dependency: str = ""
    features: str = ""
    eligible_at: datetime | None = None
    cpus: int = 0
    memory_mib: int = 0
    why: Text | None = None
    failed_node: str = ""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A job's output file as its cluster names it, patterns filled in; ``user_id`` is the job's user's, if told."""

    path: str
    user_id: int | None


@dataclass(frozen=True, slots=True)
class QueueRead:
    """One bulk read of the queue: all jobs, or only the fact that nothing changed since ``as_of``.

    Pass ``as_of`` back as ``since`` in the next read; ``jobs`` is None when nothing changed.
    ``read_s``, ``size_bytes`` and ``calls`` are what the read cost, so that a collector can stretch its period;
    ``left_over`` counts jobs known to be new or changed whose details wait for the next read.
    """

    as_of: datetime
    jobs: tuple[SchedulerJob, ...] | None
    read_s: float = 0.0
    size_bytes: int = 0
    calls: int = 1
    left_over: int = 0


@dataclass(frozen=True, slots=True)
class NodeRead:
    """One bulk read of the nodes, and what it cost."""

    nodes: tuple[SchedulerNode, ...]
    read_s: float = 0.0
    size_bytes: int = 0
    calls: int = 1


@dataclass(frozen=True, slots=True)
class AccountLimit:
    """GPU limits of an account: GrpTRES=gres/gpu and GrpTRESMins=gres/gpu, None without; what counts against these."""

    account: str
    gpus: int | None
    gpu_min: int | None
    used_gpu_min: int = 0


# --- GPU telemetry (DCGM exporter) ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU on one exporter page. ``None`` means the exporter did not say (not zero).

    ``xid_counts`` is DCGM_EXP_XID_ERRORS_COUNT by code (a count in a sliding window, never a rate);
    ``xid_last`` is DCGM_FI_DEV_XID_ERRORS, which sticks and is not a count.
    """

    index: int
    uuid: str
    model: str
    pci_bus_id: str
    node: str
    job_id: str
    temperature_c: float | None = None
    power_w: float | None = None
    utilization_percent: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    memory_used_mib: float | None = None
    memory_free_mib: float | None = None
    ecc_dbe_volatile: int | None = None
    row_remap_pending: int | None = None
    row_remap_failure: int | None = None
    uncorrectable_remapped_rows: int | None = None
    xid_last: int | None = None
    xid_counts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExporterPage:
    """All GPUs of one node at one instant, and which health metrics the page lacks."""

    node: str
    read_at: datetime
    gpus: tuple[GpuSample, ...]
    missing: tuple[str, ...]
