"""A scheduler and an exporter in memory that count calls and can be told to fail next."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from apps.core import clock
from worker.providers import values as v
from worker.providers.errors import AccessDenied, Conflict, NotFound


class Crash(BaseException):
    """Stands for kill -9: nothing in the worker may catch it."""


@dataclass
class Calls:
    """Counts calls; ``fail_next[name]`` is raised before the call, ``crash_after[name]`` once it took effect."""

    counts: Counter[str] = field(default_factory=Counter)
    fail_next: dict[str, BaseException] = field(default_factory=dict)
    crash_after: dict[str, BaseException] = field(default_factory=dict)

    def before(self, name: str) -> None:
        self.counts[name] += 1
        error = self.fail_next.pop(name, None)
        if error is not None:
            raise error

    def after(self, name: str) -> None:
        error = self.crash_after.pop(name, None)
        if error is not None:
            raise error


class FakeScheduler:
    """Slurm in memory."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.jobs: dict[str, v.SchedulerJob] = {}
        #: Jobs that only accounting knows.
        self.accounting: dict[str, v.SchedulerJob] = {}
        self.requests: dict[str, v.SubmitRequest] = {}
        self.signals: list[tuple[str, str]] = []
        self.drained: dict[str, str] = {}
        self.version = 0
        self.user = ""
        self.acts: list[tuple[str, str]] = []
        self._ids = itertools.count(100)

    def acting(self, as_user: str) -> FakeScheduler:
        """The same Slurm as another of its users; ``acts`` tells who did what that changes something."""
        self.user = as_user
        return self

    def info(self) -> v.SchedulerInfo:
        self.calls.before("info")
        return v.SchedulerInfo("lab", "22.05.8", "v0.0.38")

    def partitions(self) -> tuple[v.Partition, ...]:
        return (v.Partition("gpu", ("p5-1", "p5-2", "p5-3", "p5-4"), 10080, True, "UP"),)

    def nodes(self) -> tuple[v.SchedulerNode, ...]:
        self.calls.before("nodes")
        return tuple(
            v.SchedulerNode(
                name=f"p5-{i}",
                state="IDLE",
                flags=("DRAIN",) if f"p5-{i}" in self.drained else (),
                gpu_type="h100",
                gpus=8,
                gpus_used=0,
                cpus=192,
                memory_mib=2_000_000,
                reason=self.drained.get(f"p5-{i}", ""),
                partitions=("gpu",),
            )
            for i in range(1, 5)
        )

    def node_read(self) -> v.NodeRead:
        return v.NodeRead(self.nodes())

    def queue(self, since: datetime | None = None, watch: Collection[str] = ()) -> v.QueueRead:
        self.calls.before("queue")
        return v.QueueRead(clock.now(), tuple(self.jobs.values()))

    def remember(self, jobs: Iterable[v.SchedulerJob], as_of: datetime | None) -> None:
        pass

    def accounted(self, scheduler_ids: Sequence[str]) -> tuple[v.SchedulerJob, ...]:
        self.calls.before("accounted")
        # Of an array's number all its tasks, as Slurm's accounting answers.
        asked = set(scheduler_ids)
        return tuple(job for key, job in self.accounting.items() if key in asked or job.array_id in asked)

    def job(self, scheduler_id: str) -> v.SchedulerJob:
        self.calls.before("job")
        if scheduler_id not in self.jobs:
            raise NotFound("no such job", source="slurm")
        return self.jobs[scheduler_id]

    def jobs_by_comment(
        self, comment: str, since: datetime | None = None, *, user_name: str = ""
    ) -> tuple[v.SchedulerJob, ...]:
        self.calls.before("jobs_by_comment")
        return tuple(j for j in self.jobs.values() if j.comment == comment)

    def submit(self, request: v.SubmitRequest) -> v.SubmitReceipt:
        self.calls.before("submit")
        uid = str(next(self._ids))
        self.requests[uid] = request
        self.jobs[uid] = v.SchedulerJob(
            scheduler_id=uid,
            name=request.name,
            comment=request.comment,
            user_name="qd",
            account="",
            partition=request.partition,
            state="PENDING",
            reason="Resources",
            nodes=(),
            node_count=request.nodes,
            gpus=request.nodes * request.gpus_per_node,
            submitted_at=clock.now(),
            started_at=None,
            ended_at=None,
            expected_start_at=None,
            time_limit_min=request.time_limit_min,
            exit_code=None,
            signal=None,
        )
        for offset, part in enumerate(request.parts, start=1):
            first = replace(self.jobs[uid], het_id=uid, het_offset=0)
            self.jobs[uid] = first
            self.jobs[str(next(self._ids))] = replace(
                first,
                scheduler_id=str(int(uid) + offset),
                het_offset=offset,
                partition=part.partition,
                node_count=part.nodes,
                gpus=part.nodes * part.gpus_per_node,
            )
        self.calls.after("submit")
        return v.SubmitReceipt(uid)

    def cancel(self, scheduler_id: str) -> None:
        self.calls.before("cancel")
        if scheduler_id not in self.jobs:
            raise NotFound("no such job", source="slurm")
        for key in [k for k, one in self.jobs.items() if scheduler_id in (k, one.het_id)]:
            self.end(key, "CANCELLED")
        self.calls.after("cancel")

    def signal(self, scheduler_id: str, name: str) -> None:
        self.calls.before("signal")
        if scheduler_id not in self.jobs:
            raise NotFound("no such job", source="slurm")
        self.signals.append((scheduler_id, name))

    def requeue(self, scheduler_id: str) -> None:
        self.calls.before("requeue")

    def hold(self, scheduler_id: str) -> None:
        self.calls.before("hold")
        job = self._live(scheduler_id)
        self._set(scheduler_id, reason="JobHeldUser" if job.state == "PENDING" else job.reason)
        self.calls.after("hold")

    def release(self, scheduler_id: str, *, as_operator: bool = False) -> None:
        self.calls.before("release")
        if self._live(scheduler_id).reason == "JobHeldAdmin" and not as_operator:
            raise AccessDenied("Access/permission denied", source="slurm", code="2002")
        self._set(scheduler_id, reason="Resources")
        self.calls.after("release")

    def update(self, scheduler_id: str, change: v.JobChange, *, as_operator: bool = False) -> None:
        self.calls.before("update")
        job = self._live(scheduler_id)
        limit = change.time_limit_min
        if limit and job.state == "RUNNING" and limit > (job.time_limit_min or 0) and not as_operator:
            raise AccessDenied("Access/permission denied", source="slurm", code="2002")
        columns = {"time_limit_min": limit, "partition": change.partition, "priority": change.nice and -change.nice}
        self._set(scheduler_id, **{name: value for name, value in columns.items() if value is not None})
        self.calls.after("update")

    def _live(self, scheduler_id: str) -> v.SchedulerJob:
        job = self.job(scheduler_id)
        if job.ended_at is not None:
            raise Conflict("Job has already finished", source="slurm", code="2084")
        return job

    def node_drain(self, name: str, reason: str) -> None:
        self.calls.before("node_drain")
        self.drained[name] = reason
        self.calls.after("node_drain")

    def node_resume(self, name: str) -> None:
        self.calls.before("node_resume")
        self.drained.pop(name, None)

    # --- what a test makes happen ---

    def run(self, scheduler_id: str, nodes: Sequence[str]) -> None:
        self._set(scheduler_id, state="RUNNING", reason="", nodes=tuple(nodes), started_at=clock.now())

    def end(self, scheduler_id: str, state: str, exit_code: int | None = None) -> None:
        self._set(scheduler_id, state=state, ended_at=clock.now(), exit_code=exit_code)

    def _set(self, scheduler_id: str, **columns: Any) -> None:
        self.jobs[scheduler_id] = replace(self.jobs[scheduler_id], **columns)


class FakeExporter:
    """Pages by node name."""

    def __init__(self) -> None:
        self.pages: dict[str, v.ExporterPage] = {}
        self.counts: Counter[str] = Counter()

    def read(self, url: str, node: str) -> v.ExporterPage:
        self.counts[node] += 1
        if node not in self.pages:
            self.pages[node] = page(node)
        return self.pages[node]


def page(node: str, xids: Mapping[int, Mapping[int, int]] | None = None, off_bus: Sequence[int] = ()) -> v.ExporterPage:
    """A page of 8 GPUs; ``xids`` maps a GPU's index to counts by code."""
    gpus = tuple(
        v.GpuSample(
            index=i,
            uuid=f"GPU-{node}-{i}",
            model="NVIDIA H100 80GB HBM3",
            pci_bus_id=f"00000000:{i}3:00.0",
            node=node,
            job_id="",
            temperature_c=None if i in off_bus else 50.0 + i,
            power_w=None if i in off_bus else 600.0,
            xid_counts=dict((xids or {}).get(i, {})),
        )
        for i in range(8)
    )
    return v.ExporterPage(node, clock.now(), gpus, ())
