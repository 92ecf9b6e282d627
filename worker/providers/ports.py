"""The contracts of outside systems, as protocols: what a reconciler may ask and what it gets back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from worker.providers import capacity_values as cv
from worker.providers import cluster_values as kv
from worker.providers import storage_values as sv
from worker.providers import values as v
from worker.providers.workload_values import WorkloadSubmit


class Compute(Protocol):
    """Machines of one cloud account. Every method makes one remote call or a bounded page of them.

    Raises only ``worker.providers.errors``. ``ensure`` methods are idempotent: a second call with
    the same name and our tags returns what the first made. Deletions raise ``NotFound`` once the
    thing is gone, so a caller repeats them until that happens. Nothing here retries ``launch``.
    """

    def identity(self) -> v.CallerIdentity:
        """Who we are; the cheapest proof that the account is connected."""
        ...

    def preflight(self, plan: v.LaunchPlan) -> tuple[v.Check, ...]:
        """Read-only checks in the order a person should read them; never raises for a failed check."""
        ...

    def placement_group_ensure(self, name: str, tags: Mapping[str, str]) -> v.PlacementGroup:
        """Create a cluster placement group, or return ours; ``Conflict`` if the name is another owner's."""
        ...

    def placement_group_delete(self, name: str) -> None:
        """Ask for deletion; ``Conflict`` while an instance is in it, ``NotFound`` when gone."""
        ...

    def launch_template_ensure(self, spec: v.LaunchTemplateSpec, client_token: str) -> v.LaunchTemplate:
        """Create version 1, or return ours; ``Conflict`` if the name is another owner's."""
        ...

    def launch_template_delete(self, provider_id: str) -> None:
        """Delete; ``NotFound`` when gone."""
        ...

    def launch(self, request: v.LaunchRequest) -> tuple[v.Instance, ...]:
        """RunInstances, Min=Max, exactly one HTTP attempt; ``InsufficientCapacity`` makes nothing."""
        ...

    def launch_choice(self, request: v.ChoiceRequest) -> v.ChoiceAnswer:
        """CreateFleet, all of one choice or none, one HTTP attempt; ``InsufficientCapacity`` makes nothing."""
        ...

    def instances_by_id(self, instance_ids: Sequence[str]) -> tuple[v.Instance, ...]:
        """Those of these that AWS still lists, terminated ones included; unknown ids are left out."""
        ...

    def topology(self, instance_ids: Sequence[str], group_name: str = "") -> tuple[v.NetworkPlace, ...]:
        """Network places of running instances, by their placement group where there is one."""
        ...

    def instance_events(self) -> tuple[v.InstanceEvent, ...]:
        """What the cloud has planned for machines of the account: retirements, stops, reboots."""
        ...

    def instances(self, tags: Mapping[str, str]) -> tuple[v.Instance, ...]:
        """All instances carrying all these tags, terminated ones included while AWS shows them."""
        ...

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Ask for termination of up to any number (batched); already terminated is success."""
        ...

    def interfaces(self, tags: Mapping[str, str]) -> tuple[v.Owned, ...]:
        """Network interfaces left with these tags."""
        ...

    def interface_delete(self, provider_id: str) -> None:
        """Delete one detached interface; ``NotFound`` when gone, ``Conflict`` while in use."""
        ...

    def owned(self) -> tuple[v.Owned, ...]:
        """Everything in the account with our uid tag, terminated instances excluded: the sweep's read."""
        ...


class Scheduler(Protocol):
    """One Slurm controller through slurmrestd, or one Kubernetes API. Raises only ``worker.providers.errors``.

    States are Slurm's words whoever answers; what a scheduler cannot do is ``Unsupported`` with a sentence.
    """

    def info(self) -> v.SchedulerInfo:
        """Ping and negotiate: the highest REST version both sides speak."""
        ...

    def partitions(self) -> tuple[v.Partition, ...]:
        """All partitions visible to our user."""
        ...

    def nodes(self) -> tuple[v.SchedulerNode, ...]:
        """All nodes, one call."""
        ...

    def node_read(self) -> v.NodeRead:
        """All nodes, in the cheapest way: nothing is sent where nothing changed since the last read."""
        ...

    def queue(self, since: datetime | None = None, watch: Collection[str] = ()) -> v.QueueRead:
        """The whole queue; with ``since``, cheap when nothing changed. Jobs in ``watch`` are read first and afresh."""
        ...

    def remember(self, jobs: Iterable[v.SchedulerJob], as_of: datetime | None) -> None:
        """The queue as someone else read it: the next read asks only for what is new since."""
        ...

    def accounted(self, scheduler_ids: Sequence[str]) -> tuple[v.SchedulerJob, ...]:
        """These jobs as accounting knows them, in one call; of an array's number, all its tasks. No unknown ones."""
        ...

    def job(self, scheduler_id: str) -> v.SchedulerJob:
        """One job, from the queue or, once it left, from accounting; ``NotFound`` if neither knows it."""
        ...

    def jobs_by_comment(
        self, comment: str, since: datetime | None = None, *, user_name: str = ""
    ) -> tuple[v.SchedulerJob, ...]:
        """Jobs with this comment in the queue or in accounting, oldest first: the answer to a doubt after submit.

        ``user_name`` is whose they are ("": our own user's).
        """
        ...

    def submit(self, request: v.SubmitRequest | WorkloadSubmit) -> v.SubmitReceipt:
        """Submit once, never retried here. ``InvalidRequest`` when it is refused, ``Unavailable`` when in doubt.

        Slurm takes the one kind of request, Kubernetes the other, and there asking again completes what was begun.
        """
        ...

    def cancel(self, scheduler_id: str) -> None:
        """Ask Slurm to end the job; ``NotFound`` when it is not in the queue any more."""
        ...

    def signal(self, scheduler_id: str, name: str) -> None:
        """Send a running job a signal such as ``USR1``; ``NotFound`` when it is not in the queue any more."""
        ...

    def output_of(self, scheduler_id: str) -> v.OutputFile:
        """Where a job of the queue writes its output; ``NotFound`` when it is not in the queue any more."""
        ...

    def requeue(self, scheduler_id: str) -> None:
        """Put the job back into the queue; ``Unsupported`` where the REST version has no such call."""
        ...

    def hold(self, scheduler_id: str) -> None:
        """Keep a waiting job from starting; held already is success, ``Conflict`` for one that has ended."""
        ...

    def release(self, scheduler_id: str, *, as_operator: bool = False) -> None:
        """Let a held job start; ``AccessDenied`` where an administrator holds it and we are none."""
        ...

    def update(self, scheduler_id: str, change: v.JobChange, *, as_operator: bool = False) -> None:
        """Change a job; asked twice it is changed once.

        ``AccessDenied`` for what only an operator may (a longer limit of a running job, a negative nice), ``Conflict``
        for a job that has ended, ``InvalidRequest`` for what the site does not allow.
        """
        ...

    def node_drain(self, name: str, reason: str) -> None:
        """Accept no new job on the node; ``Unsupported`` where neither REST nor scontrol can do it."""
        ...

    def node_resume(self, name: str) -> None:
        """Undo a drain."""
        ...

    def node_evict(self, name: str, grace_s: int) -> int:
        """Ask all that runs on a node to end, each with so many seconds; how many are still there.

        Asked again it asks those that a budget kept. ``Unsupported`` where a scheduler has no such thing.
        """
        ...


class SlurmAccounting(Protocol):
    """Limits of a Slurm cluster's accounts. Raises only ``worker.providers.errors``."""

    def account_limits(self, accounts: Collection[str]) -> Mapping[str, v.AccountLimit]:
        """GPU limits of these accounts and what counts against them; those that Slurm does not know are left out."""
        ...

    def account_limit_write(self, account: str, gpus: int | None, gpu_min: int | None) -> None:
        """Set an account's GPU limits; None takes one away. Written twice is written once."""
        ...


class GpuExporter(Protocol):
    """DCGM-exporter pages."""

    def read(self, url: str, node: str) -> v.ExporterPage:
        """Fetch and parse one page; ``Unavailable`` when it does not answer or is not an exposition."""
        ...


class ObjectStore(Protocol):
    """Whole objects by key: a bucket, or a folder. Every call may be repeated; raises only provider errors."""

    def put(self, key: str, body: bytes) -> None:
        """Write or replace; when it returns, the object survives a crash."""
        ...

    def get(self, key: str) -> bytes:
        """The whole object; ``NotFound`` when there is none."""
        ...

    def delete(self, key: str) -> None:
        """Remove; one that is not there is success."""
        ...


class FileStorage(Protocol):
    """Shared file systems of one cloud account. Every method makes one remote call or all pages of one.

    Raises only ``worker.providers.errors``. ``ensure`` methods are idempotent by their token, written before
    the call. Deletions raise ``NotFound`` once the thing is gone.
    """

    def file_system_ensure(self, spec: sv.FileSystemSpec, client_token: str) -> sv.SeenFileSystem:
        """Create, or return what this token made; ``Conflict`` when the token's file system was deleted."""
        ...

    def file_systems(self, kind: str) -> tuple[sv.SeenFileSystem, ...]:
        """All of one kind in the account, ours or not."""
        ...

    def file_system_grow(self, provider_id: str, capacity_gib: int, client_token: str) -> None:
        """Ask for a larger capacity; the state is UPDATING until it is there."""
        ...

    def file_system_delete(self, kind: str, provider_id: str) -> None:
        """Ask for deletion; ``Conflict`` while mount targets exist or it is being changed, ``NotFound`` when gone."""
        ...

    def mount_target_ensure(self, provider_id: str, subnet_id: str, security_group_ids: Sequence[str]) -> str:
        """EFS: a mount target in the subnet's zone; its state in upper case."""
        ...

    def mount_targets_delete(self, provider_id: str) -> int:
        """EFS: ask for the deletion of every mount target; how many still exist."""
        ...

    def association_ensure(self, spec: sv.AssociationSpec, client_token: str) -> sv.SeenAssociation:
        """Tie a folder to S3, or return what this token tied."""
        ...

    def associations(self, provider_id: str) -> tuple[sv.SeenAssociation, ...]:
        """All associations of a file system."""
        ...

    def association_delete(self, association_id: str) -> None:
        """Untie; the data on both sides stays. ``NotFound`` when gone."""
        ...

    def export_begin(self, provider_id: str, paths: Sequence[str], client_token: str) -> str:
        """Export everything that changed below ``paths``; the task's id."""
        ...

    def export_state(self, task_id: str) -> str:
        """PENDING, EXECUTING, SUCCEEDED, FAILED, CANCELED or CANCELING."""
        ...

    def readings(self, provider_ids: Sequence[str]) -> tuple[sv.StorageReading, ...]:
        """The newest metrics of these Lustre file systems, in one call."""
        ...


class Capacity(Protocol):
    """Reserved capacity of one cloud account. Every method makes one remote call or all pages of one.

    Raises only ``worker.providers.errors``. Purchases take no idempotency token and exactly one HTTP attempt is
    made: after ``Unavailable`` or a crash nobody knows whether they took effect, and they must not be repeated.
    """

    def reservations(self) -> tuple[cv.SeenReservation, ...]:
        """All ODCRs and blocks in the account, ours or not, those that ended lately included."""
        ...

    def training_plans(self) -> tuple[cv.SeenReservation, ...]:
        """All SageMaker training plans in the account."""
        ...

    def block_offerings(self, query: cv.OfferingQuery) -> tuple[cv.Offering, ...]:
        """Blocks on sale in every zone of the region."""
        ...

    def extension_offerings(self, provider_id: str, hours: int) -> tuple[cv.Offering, ...]:
        """What a block can be extended by."""
        ...

    def plan_offerings(self, query: cv.OfferingQuery) -> tuple[cv.Offering, ...]:
        """Training plans on sale."""
        ...

    def block_purchase(self, offering_id: str, tags: Mapping[str, str]) -> tuple[str, ...]:
        """Buy a block: the ids of its reservations. Bought twice is paid twice."""
        ...

    def extension_purchase(self, offering_id: str, provider_id: str) -> None:
        """Extend a block. Bought twice is paid twice."""
        ...

    def extensions(self, provider_id: str) -> tuple[cv.SeenExtension, ...]:
        """The extensions of a block that were bought."""
        ...

    def plan_purchase(self, offering_id: str, name: str, tags: Mapping[str, str]) -> str:
        """Buy a training plan: its ARN. ``Conflict`` when the name is taken."""
        ...

    def odcr_create(self, spec: cv.OdcrSpec, client_token: str) -> cv.SeenReservation:
        """Make an ODCR, or return what this token made; it costs from now on, used or not."""
        ...

    def odcr_cancel(self, provider_id: str) -> None:
        """Give an ODCR back; its machines run on on demand. ``NotFound`` when it is gone."""


class ClusterService(Protocol):
    """Clusters of one kind in one account, kept by an AWS service. Every method makes one call or all pages of one.

    Raises only ``worker.providers.errors``. ``*_ensure`` look for what is there under the name first and make it only
    where nothing is; a thing of that name that carries another uid is a ``Conflict``. ``tokens`` that a service takes
    were written before. Deletions raise ``NotFound`` once the thing is gone.
    """

    def cluster_ensure(self, spec: kv.ClusterSpec, client_token: str) -> kv.SeenCluster:
        """Make it, or return ours of that name; exactly one attempt where the service takes no token."""
        ...

    def cluster(self, name: str) -> kv.SeenCluster:
        """One by name or id; ``NotFound``."""
        ...

    def cluster_delete(self, name: str) -> None:
        """Ask for deletion; ``Conflict`` while groups exist, ``NotFound`` when gone."""
        ...

    def prepare(self, cluster: kv.SeenCluster, settings: Mapping[str, Any], tags: Mapping[str, str], step: str) -> str:
        """One idempotent bit of a step between control plane and groups; "" when it is done, else what is awaited."""
        ...

    def group_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, client_token: str) -> kv.SeenGroup:
        """Make it, or return what the token or the name stands for."""
        ...

    def groups(self, cluster: kv.SeenCluster) -> tuple[kv.SeenGroup, ...]:
        """All groups of a cluster, ours or not."""
        ...

    def group_resize(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, seen: kv.SeenGroup, client_token: str) -> None:
        """Ask for other counts; asking twice changes nothing."""
        ...

    def group_delete(self, cluster: kv.SeenCluster, provider_id: str) -> None:
        """Ask for deletion; ``NotFound`` when gone."""
        ...

    def template_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, client_token: str) -> str:
        """The launch template that the group needs, by its id; "" where it needs none."""
        ...

    def template_delete(self, uid: str) -> None:
        """Take the group's launch template away; ``NotFound`` when gone."""
        ...

    def queue_ensure(self, cluster: kv.SeenCluster, spec: kv.GroupSpec, group_id: str, client_token: str) -> str:
        """The queue in front of a group: its id once it is active, "" while it is made or where there is none."""
        ...

    def queue_delete(self, cluster: kv.SeenCluster, name: str, uid: str) -> None:
        """Ask for deletion of a queue of this uid; ``NotFound`` when gone, where there is none, or it is another's."""
        ...

    def members(self, cluster: kv.SeenCluster) -> tuple[kv.SeenMember, ...]:
        """The machines, each with the name of its group."""
        ...

    def happenings(self, cluster: kv.SeenCluster, known: Collection[str]) -> tuple[kv.SeenHappening, ...]:
        """New events that the service keeps, the oldest first; none where it keeps none.

        ``known`` are ids that were read before, twins included: neither told nor asked about again.
        """
        ...

    def nodes_act(self, cluster: kv.SeenCluster, verb: str, provider_ids: Sequence[str]) -> tuple[kv.NodeAnswer, ...]:
        """Replace or reboot up to 25 nodes; an answer for each. ``Unsupported`` where the service cannot."""
        ...


class OwnedClusters(Protocol):
    """Clusters and node groups of AWS's services that carry our tag. Raises only ``worker.providers.errors``."""

    def owned(self, service: str) -> tuple[v.Owned, ...]:
        """All of one service in the account: "pcs", "eks" or "hyperpod"."""
        ...

    def remove(self, kind: str, provider_id: str) -> None:
        """Ask for one removal; ``NotFound`` when gone, ``Conflict`` while something hangs on it."""
        ...
