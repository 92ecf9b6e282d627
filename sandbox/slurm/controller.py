"""The pretend slurmctld: takes jobs, places them on the world's nodes, watches them, and remembers them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sandbox.slurm import arrays, hetjobs
from sandbox.slurm.changes import Change, Settings, apply_change
from sandbox.slurm.model import LAUNCH_FAILED_STATUS, Job, NodeMarks, Refused
from sandbox.slurm.records import Records
from sandbox.slurm.runs import LaunchFailed
from sandbox.world import Node, World

_TICK_S = 0.1


class Controller(Records):
    """All state behind one lock; a thread of its own starts, watches and ends jobs."""

    def __init__(self, world: World, directory: Path, settings: Settings) -> None:
        super().__init__(world, directory, settings)
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="sandbox-slurmctld", daemon=True)
        world.on_node(self._on_node)

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """End what an earlier sandbox left, remember its jobs, begin to schedule. Raises OSError."""
        self.runs.open()
        with self.lock:
            self._jobs, self._next_id = self._store.load()
            for job in self._jobs.values():
                if not job.ended and job.state != "PENDING":
                    self._node_failed(job)
                job.completing = False
            self._touch()
        self._thread.start()

    def stop(self) -> None:
        """Stop scheduling and kill every process of every job."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        with self.lock:
            for job in self._jobs.values():
                if not job.ended and job.state != "PENDING":
                    self._node_failed(job)
                job.completing = False
            self._save()
        self.runs.close()

    # --- verbs -------------------------------------------------------------------------------------

    def submit(self, make: Callable[[int], Job]) -> tuple[Job, Refused | None]:
        """Take a job; ``make`` gets the job id. Returns what to complain of although it was taken. Raises Refused."""
        with self.lock:
            job = make(self._next_id)
            arrays.begin(job)
            try:
                complaint = self._judge(job)
            except Refused as refused:
                if refused.code == 2014:
                    # Slurm keeps a record of what can never run.
                    job.state, job.reason, job.exit_status = "FAILED", "BadConstraints", 1
                    job.started_at = job.ended_at = job.submitted_at
                    self._add(job)
                raise
            self._add(job)
            return job, complaint

    def submit_parts(self, makes: Sequence[Callable[[int], Job]]) -> tuple[Job, Refused | None]:
        """Take a heterogeneous job, all its parts or none; the first is answered. Raises Refused."""
        with self.lock:
            parts = [make(self._next_id + offset) for offset, make in enumerate(makes)]
            hetjobs.begin(parts)
            complaints = [found for part in parts if (found := self._judge(part)) is not None]
            for part in parts:
                self._jobs[part.job_id] = part
            self._add(parts[-1])
            return parts[0], complaints[0] if complaints else None

    def _judge(self, job: Job) -> Refused | None:
        """What to complain of a job that is taken all the same. Raises Refused for one that is not."""
        self.associations.add(job.account)
        partitions = self.partitions()
        if not job.partition:
            job.partition = next(iter(partitions), "")
        nodes = partitions.get(job.partition)
        if not nodes:
            raise Refused(2000)
        complaint = self._check_limits(job, nodes)
        known = {node.name for node in self.nodes()}
        if any(name not in known for name in job.excluded):
            raise Refused(2018)
        fitting = [node for node in nodes if self._could(job, node)]
        if complaint is None and len(fitting) < job.node_count:
            raise Refused(2014)
        if complaint is None and len([node for node in fitting if self._usable(node)]) < job.node_count:
            complaint = Refused(2068)
            self._explain_unavailable(job, fitting)
        return complaint

    def _check_limits(self, job: Job, nodes: list[Node]) -> Refused | None:
        too_long = job.time_limit_min > self.settings.max_time_min
        too_many = job.node_count > len(nodes)
        if not too_long and not too_many:
            return None
        if self.settings.enforce_limits:
            raise Refused(2051 if too_long else 2006)
        job.reason = "PartitionTimeLimit" if too_long else "PartitionNodeLimit"
        return Refused(2015)

    def _add(self, job: Job) -> None:
        self._jobs[job.job_id] = job
        self._next_id = job.job_id + 1
        self._touch()
        # Before the answer goes out: a job whose number was told must survive a kill of the sandbox.
        self._save()
        self._wake.set()

    def cancel(self, job_id: int, user: str, task: int | None = None) -> None:
        """End a job, all tasks of an array, or one of them. Raises Refused, 2021 for what has ended."""
        with self.lock:
            family = [one for one in self.queue() if one.array_id == job_id]
            if task is not None:
                job_id = self._task_record(family, task)
            elif parts := [one for one in self.queue() if one.het_id == job_id]:
                if all(one.ended for one in parts):
                    raise Refused(2021)
                for one in parts:
                    if not one.ended:
                        self._cancel_one(one.job_id, user)
                return
            elif len(family) > 1:
                for one in family:
                    if not one.ended:
                        self._cancel_one(one.job_id, user)
                return
            self._cancel_one(job_id, user)

    def _task_record(self, family: list[Job], task: int) -> int:
        for one in family:
            if one.array_task == task:
                return one.job_id
        for one in family:
            if one.array_pending and (own := arrays.without(one, task, self._next_id)) is not None:
                if own is not one:
                    self._jobs[own.job_id] = own
                    self._next_id += 1
                return own.job_id
        raise Refused(2017)

    def _cancel_one(self, job_id: int, user: str) -> None:
        with self.lock:
            job = next((one for one in self.queue() if one.job_id == job_id), None)
            if job is None:
                raise Refused(2017)
            if job.user != user and user not in self.settings.operators:
                raise Refused(2002)
            if job.ended:
                raise Refused(2021)
            if job.state == "PENDING":
                now = time.time()
                job.state, job.started_at, job.ended_at = "CANCELLED", now, now
            else:
                self._begin_end(job, "CANCELLED", signal.SIGTERM)
            self._touch()
            self._wake.set()

    def send_signal(self, job_id: int, user: str, name: str) -> None:
        """Send a running job's processes a signal by its name. Raises Refused."""
        number = getattr(signal, f"SIG{name.removeprefix('SIG')}", None)
        with self.lock:
            job = next((one for one in self.queue() if one.job_id == job_id), None)
            if job is None or not isinstance(number, signal.Signals):
                raise Refused(2017)
            if job.user != user and user not in self.settings.operators:
                raise Refused(2002)
            if job.ended or job.state == "PENDING":
                raise Refused(2021)
            self.runs.signal(job_id, number)

    def requeue(self, job_id: int, user: str) -> None:
        """Put a job back into the queue. Raises Refused."""
        with self.lock:
            job = next((one for one in self.queue() if one.job_id == job_id), None)
            if job is None:
                raise Refused(2017)
            if job.user != user and user not in self.settings.operators:
                raise Refused(2002)
            if not job.requeue:
                raise Refused(2037)
            if job.state == "PENDING":
                raise Refused(2020)
            self.runs.signal(job_id, signal.SIGKILL)
            self._back_to_queue(job)
            self._touch()

    def update(self, job_id: int, user: str, change: Change) -> None:
        """Hold, release or change a job. Raises Refused."""
        with self.lock:
            family = [one for one in self.queue() if one.array_id == job_id and one.state == "PENDING"]
            named: list[Job | None] = [one for one in self.queue() if one.job_id == job_id]
            for job in family or named or [None]:
                apply_change(job, user, change, self.settings, self.partitions())
            self._touch()
            self._save()
            self._wake.set()

    def node_update(self, name: str, state: str, reason: str, user: str) -> None:
        """Drain or resume a node. Raises Refused."""
        with self.lock:
            if user not in self.settings.operators:
                raise Refused(2010)
            if name not in self.world.nodes:
                raise Refused(2018)
            marks = self.marks(name)
            if state == "DRAIN" and reason:
                self._marks[name] = NodeMarks(True, reason, time.time(), user)
            elif state == "RESUME" and marks.drained:
                self._marks[name] = NodeMarks()
            else:
                raise Refused(2028)
            self._touch()
            self._wake.set()

    # --- placing -------------------------------------------------------------------------------------

    def _explain_unavailable(self, job: Job, fitting: Iterable[Node]) -> None:
        missing = ",".join(node.name for node in fitting if not self._usable(node))
        job.reason = "ReqNodeNotAvail"
        job.description = f"ReqNodeNotAvail, UnavailableNodes:{missing}"

    def _schedule(self) -> None:
        """Start what fits, first come first served; a later job that fits may pass one that does not."""
        now = time.time()
        waiting_before = False
        partitions = self.partitions()
        for job in sorted(self._jobs.values(), key=lambda one: one.job_id + one.nice):
            if job.state != "PENDING" or job.eligible_at > now or hetjobs.is_further(job):
                continue
            if job.held:
                self._wait(job, "JobHeldAdmin" if job.held == "admin" else "JobHeldUser", "")
                continue
            nodes = partitions.get(job.partition, [])
            if job.time_limit_min > self.settings.max_time_min or job.node_count > len(nodes):
                reason = (
                    "PartitionTimeLimit" if job.time_limit_min > self.settings.max_time_min else "PartitionNodeLimit"
                )
                self._wait(job, reason, "")
                continue
            if limited := self.associations.refusal(job, self._jobs.values(), now):
                self._wait(job, limited, "")
                continue
            fitting = [node for node in nodes if self._could(job, node)]
            usable = [node for node in fitting if self._usable(node)]
            free = [node for node in usable if self._free(job, node)]
            if job.het_id:
                if not self._start_parts(job):
                    self._wait_parts(job)
                    waiting_before = True
                continue
            if job.array_pending and self._start_tasks(job, usable) and not job.array_pending:
                continue
            if not job.array_id and len(free) >= job.node_count:
                self._launch(job, [node.name for node in free[: job.node_count]])
                continue
            if job.array_pending and job.array_limit and self._tasks_running(job) >= job.array_limit:
                self._wait(job, "JobArrayTaskLimit", "")
                continue
            if job.array_task is not None and len(free) >= job.node_count:
                self._launch(job, [node.name for node in free[: job.node_count]])
                continue
            if len(usable) < job.node_count and job.reason == "ReqNodeNotAvail":
                pass
            elif waiting_before:
                self._wait(job, "Priority", "")
            elif len(usable) < job.node_count:
                text = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
                self._wait(job, "Resources", text)
            else:
                self._wait(job, "Resources", "")
            self._expect(job, fitting)
            waiting_before = True

    def _tasks_running(self, job: Job) -> int:
        return sum(1 for one in self._jobs.values() if one.array_id == job.array_id and one.state == "RUNNING")

    def _start_tasks(self, job: Job, usable: list[Node]) -> int:
        """Start as many waiting tasks of an array as fit and as may run at once."""
        count = 0
        while job.array_pending and (not job.array_limit or self._tasks_running(job) < job.array_limit):
            free = [node for node in usable if self._free(job, node)]
            if len(free) < job.node_count:
                break
            task, is_new = arrays.next_task(job, self._next_id)
            if is_new:
                self._jobs[task.job_id] = task
                self._next_id += 1
            self._launch(task, [node.name for node in free[: job.node_count]])
            count += 1
        return count

    def _start_parts(self, job: Job) -> bool:
        """Start all parts of a heterogeneous job where there is room for all of them now."""
        parts = hetjobs.family(job, self._jobs.values())
        partitions = self.partitions()

        def free_for(part: Job) -> list[Node]:
            nodes = partitions.get(part.partition, [])
            return [n for n in nodes if self._could(part, n) and self._usable(n) and self._free(part, n)]

        if not hetjobs.place(parts, free_for):
            return False
        for part in parts[1:]:
            if not part.ended:
                part.started_at, part.expected_at, part.reason, part.description = time.time(), 0.0, "None", ""
        job.environment |= hetjobs.environment(parts)
        self._launch(job, job.nodes)
        return True

    def _wait_parts(self, job: Job) -> None:
        for part in hetjobs.family(job, self._jobs.values()):
            if part.state == "PENDING":
                held = "JobHeldAdmin" if part.held == "admin" else "JobHeldUser"
                self._wait(part, held if part.held else "Resources", "")

    def _wait(self, job: Job, reason: str, description: str) -> None:
        if (job.reason, job.description) != (reason, description):
            job.reason, job.description = reason, description
            self._touch()

    def _expect(self, job: Job, fitting: list[Node]) -> None:
        """When enough nodes will be free if every running job takes its whole time limit."""
        ends = []
        for node in fitting:
            if self._usable(node):
                busy = [one.started_at + one.time_limit_min * 60 for one in self.jobs_on(node.name)]
                ends.append(max(busy, default=time.time()))
        expected = sorted(ends)[job.node_count - 1] if len(ends) >= job.node_count else 0.0
        if abs(expected - job.expected_at) > 1:
            job.expected_at = expected
            self._touch()

    def _launch(self, job: Job, nodes: list[str]) -> None:
        now = time.time()
        job.nodes, job.state, job.reason, job.description = nodes, "RUNNING", "None", ""
        job.started_at, job.expected_at = now, 0.0
        try:
            self.runs.start(job)
        except LaunchFailed:
            job.state, job.reason, job.ended_at = "FAILED", "JobLaunchFailure", now
            job.exit_status = LAUNCH_FAILED_STATUS
        self._touch()

    # --- watching --------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stopping.is_set():
            with self.lock:
                for job in list(self._jobs.values()):
                    if job.state == "RUNNING":
                        self._watch(job)
                    elif job.completing:
                        self._finish(job)
                self._schedule()
                if self._unsaved:
                    self._save()
            self._wake.wait(_TICK_S)
            self._wake.clear()

    def _watch(self, job: Job) -> None:
        if hetjobs.is_further(job):
            if hetjobs.follow(job, self._jobs.get(job.het_id), time.time()):
                self._touch()
            return
        status = self.runs.status(job.job_id)
        if status is not None:
            job.exit_status = status
            job.state = "COMPLETED" if status == 0 else "FAILED"
            job.reason = "None" if status == 0 else "NonZeroExitCode" if status >= 256 else "JobLaunchFailure"
            job.ended_at = time.time()
            job.completing = True
            self.runs.signal(job.job_id, signal.SIGKILL)
            self._finish(job)
            self._touch()
        elif time.time() > job.started_at + job.time_limit_min * 60:
            self._begin_end(job, "TIMEOUT", signal.SIGTERM)
            job.reason = "TimeLimit"
            self._touch()

    def _begin_end(self, job: Job, state: str, number: signal.Signals) -> None:
        job.state, job.completing, job.ended_at = state, True, time.time()
        self._kill_at[job.job_id] = time.time() + self.settings.kill_wait_s
        self.runs.signal(job.job_id, signal.SIGCONT)
        self.runs.signal(job.job_id, number)

    def _finish(self, job: Job) -> None:
        """An ended job's processes: kill what outlives KillWait, and let the nodes go when nothing lives."""
        if self.runs.has(job.job_id):
            status = self.runs.status(job.job_id)
            if status is not None:
                if job.state in ("CANCELLED", "TIMEOUT"):
                    job.exit_status = status
                # The script is gone: what it left behind is not waited for.
                self._kill_at[job.job_id] = 0.0
            if self.runs.pids(job.job_id):
                if time.time() >= self._kill_at.get(job.job_id, 0.0):
                    self.runs.signal(job.job_id, signal.SIGKILL)
                return
            if status is None:
                return
            self.runs.forget(job.job_id)
        self._kill_at.pop(job.job_id, None)
        job.completing = False
        self._touch()

    def _back_to_queue(self, job: Job) -> None:
        job.state, job.reason, job.description, job.nodes = "PENDING", "BeginTime", "", []
        job.completing = False
        job.started_at = job.ended_at = 0.0
        job.exit_status = 0
        job.restarts += 1
        job.submitted_at = time.time()
        job.eligible_at = job.expected_at = time.time() + self.settings.requeue_delay_s
        self._kill_at.pop(job.job_id, None)
        self.runs.forget(job.job_id)

    def _node_failed(self, job: Job) -> None:
        """A node of the job is gone: the job is killed, and goes back to the queue where it may."""
        if job.het_id:
            for one in hetjobs.family(job, self._jobs.values()):
                if not one.ended and one.job_id != job.job_id:
                    self.runs.signal(one.job_id, signal.SIGKILL)
                    self._lost(one)
        self.runs.signal(job.job_id, signal.SIGKILL)
        if job.requeue and not job.het_id:
            self._back_to_queue(job)
            return
        self._lost(job)

    def _lost(self, job: Job) -> None:
        job.state, job.reason, job.ended_at = "NODE_FAIL", "NodeDown", time.time()
        job.exit_status = 0
        job.completing = self.runs.has(job.job_id)
        self._kill_at[job.job_id] = 0.0

    def _on_node(self, event: str, node: Node) -> None:
        if node.is_kubernetes or event == "changed":
            return
        with self.lock:
            if event in ("joined", "back"):
                self._marks.pop(node.name, None)
            else:
                if event == "left":
                    self._marks.pop(node.name, None)
                else:
                    self._marks[node.name] = NodeMarks(False, "Not responding", time.time(), "slurm")
                for job in self.jobs_on(node.name):
                    if not job.ended:
                        self._node_failed(job)
            self._touch()
        self._wake.set()
