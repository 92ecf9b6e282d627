"""The contracts of outside systems, as protocols: what a reconciler may ask and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from worker.providers import values as v


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
    """One Slurm controller through slurmrestd. Raises only ``worker.providers.errors``."""

    def info(self) -> v.SchedulerInfo:
        """Ping and negotiate: the highest REST version both sides speak."""
        ...

    def partitions(self) -> tuple[v.Partition, ...]:
        """All partitions visible to our user."""
        ...

    def nodes(self) -> tuple[v.SchedulerNode, ...]:
        """All nodes, one call."""
        ...

    def queue(self, since: datetime | None = None) -> v.QueueRead:
        """The whole queue in one call; with ``since``, cheap when nothing changed."""
        ...

    def job(self, scheduler_id: str) -> v.SchedulerJob:
        """One job, from the queue or, once it left, from accounting; ``NotFound`` if neither knows it."""
        ...

    def jobs_by_comment(self, comment: str, since: datetime | None = None) -> tuple[v.SchedulerJob, ...]:
        """Jobs with this comment in the queue or in accounting, oldest first: the answer to a doubt after submit."""
        ...

    def submit(self, request: v.SubmitRequest) -> v.SubmitReceipt:
        """Submit once, never retried here. ``InvalidRequest`` when Slurm refuses, ``Unavailable`` when in doubt."""
        ...

    def cancel(self, scheduler_id: str) -> None:
        """Ask Slurm to end the job; ``NotFound`` when it is not in the queue any more."""
        ...

    def requeue(self, scheduler_id: str) -> None:
        """Put the job back into the queue; ``Unsupported`` where the REST version has no such call."""
        ...

    def node_drain(self, name: str, reason: str) -> None:
        """Accept no new job on the node; ``Unsupported`` where neither REST nor scontrol can do it."""
        ...

    def node_resume(self, name: str) -> None:
        """Undo a drain."""
        ...


class GpuExporter(Protocol):
    """DCGM-exporter pages."""

    def read(self, url: str, node: str) -> v.ExporterPage:
        """Fetch and parse one page; ``Unavailable`` when it does not answer or is not an exposition."""
        ...
