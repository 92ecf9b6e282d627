"""The ``Scheduler`` port over slurmrestd, with scontrol where REST lacks a verb."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2

from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import decode, encode
from worker.providers.slurm import errors as se
from worker.providers.slurm.bulk import BulkReader
from worker.providers.slurm.node_reader import NodeReader
from worker.providers.slurm.options import has_instants
from worker.providers.slurm.rest import Params, Rest
from worker.providers.slurm.server_clock import ServerClock
from worker.providers.slurm.versions import CAN_REQUEUE, SILENT_KILLS, VERSIONS
from worker.providers.workload_values import WorkloadSubmit

#: How far back accounting is searched for a comment when the caller does not say.
ACCOUNTING_WINDOW = timedelta(days=7)
#: Jobs asked of accounting by their ids in one call; the address of a request is no longer than 8 KiB.
ACCOUNTED_A_CALL = 200


class SlurmScheduler:
    """One Slurm controller. Keep one instance a cluster: it remembers the REST version and the last queue.

    ``scontrol`` is a command (a list of words) that reaches the same controller with operator rights;
    without it, what REST cannot do raises ``Unsupported`` naming the command for a person to run.
    ``versions`` are those that may be spoken, the first that the server knows counts.
    ``lends_token``: scontrol is given our token (SLURM_JWT), so that it acts as our user and not as its own.
    Not for use by several threads at once.
    """

    def __init__(
        self,
        access: v.SchedulerAccess,
        *,
        scontrol: Sequence[str] | None = None,
        lends_token: bool = False,
        transport: httpx2.BaseTransport | None = None,
        versions: Sequence[str] = VERSIONS,
    ) -> None:
        self._rest = Rest(access, transport, versions)
        self._clock = ServerClock(self._rest)
        self._bulk = BulkReader(self._rest, self._clock)
        self._nodes = NodeReader(self._rest)
        self._scontrol = tuple(scontrol or ())
        self._lends_token = lends_token
        self._timeout_s = access.timeout_s
        self._user = access.user_name

    def close(self) -> None:
        """Let go of the connections."""
        self._rest.close()

    def renew(self, token: str) -> None:
        """Go on with a fresh token of the same user; version and queue stay known."""
        self._rest.renew(token)

    # --- reads -----------------------------------------------------------------------------------

    def info(self) -> v.SchedulerInfo:
        """Ping and negotiate: the highest REST version both sides speak. Proves that the token is taken, too."""
        body = self._rest.ping().body
        # 24.11 answers a ping with HTTP 200 and DOWN when it refuses the token; this read says why.
        self._rest.call("GET", "/slurm/{v}/diag", about="queue")
        meta = body.get("meta")
        told = (meta.get("slurm") or meta.get("Slurm")) if isinstance(meta, Mapping) else None
        slurm = told if isinstance(told, Mapping) else {}
        return v.SchedulerInfo(
            cluster_name=decode.text(slurm.get("cluster")) or self._cluster_from_accounting(),
            version=decode.text(slurm.get("release")),
            api_version=self._rest.version,
        )

    def _cluster_from_accounting(self) -> str:
        """v0.0.38 names the cluster nowhere; accounting does, if it knows just one."""
        try:
            body = self._rest.call("GET", "/slurmdb/{v}/clusters", about="accounting").body
        except e.ProviderError:
            return ""
        clusters = [one for one in body.get("clusters") or [] if isinstance(one, Mapping)]
        return decode.text(clusters[0].get("name")) if len(clusters) == 1 else ""

    def partitions(self) -> tuple[v.Partition, ...]:
        """All partitions visible to our user."""
        records = self._records("GET", "/slurm/{v}/partitions", "partitions", about="queue")
        only = len(records) == 1
        return tuple(
            decode.guarded(lambda one: decode.partition(one, only=only), record, "partition") for record in records
        )

    def node_read(self) -> v.NodeRead:
        """All nodes; where the server says that nothing changed since the last read, what that one brought."""
        return self._nodes.read()

    def nodes(self) -> tuple[v.SchedulerNode, ...]:
        """All nodes, one call."""
        records = self._records("GET", "/slurm/{v}/nodes", "nodes", about="queue")
        return tuple(decode.guarded(decode.node, record, "node") for record in records)

    def queue(self, since: datetime | None = None, watch: Collection[str] = ()) -> v.QueueRead:
        """The whole queue in one bulk read; with ``since`` (an earlier ``as_of``), cheap when nothing changed."""
        return self._bulk.read(since, watch=watch)

    def remember(self, jobs: Iterable[v.SchedulerJob], as_of: datetime | None) -> None:
        """The queue as another process read it."""
        self._bulk.remember(jobs, as_of)

    def accounted(self, scheduler_ids: Sequence[str]) -> tuple[v.SchedulerJob, ...]:
        """These jobs as accounting knows them; of an array's number, all its tasks. Unknown ones are left out."""
        found: list[v.SchedulerJob] = []
        keys = [encode.job_id(key) for key in scheduler_ids]
        for start in range(0, len(keys), ACCOUNTED_A_CALL):
            some = keys[start : start + ACCOUNTED_A_CALL]
            # v0.0.38 takes a list in one parameter, the later ones a parameter each and no list.
            step: str | list[str] = ",".join(some) if self._rest.old else some
            found += self._accounting("/slurmdb/{v}/jobs", {"step": step, "skip_steps": "true"})
        return tuple(found)

    def job(self, scheduler_id: str) -> v.SchedulerJob:
        """One job, from the queue or, once it left, from accounting; ``NotFound`` if neither knows it."""
        key = encode.job_id(scheduler_id)
        missing: e.NotFound
        try:
            records = self._records("GET", f"/slurm/{{v}}/job/{key}", "jobs", about="job")
            if records:
                self._clock.check()
                return self._clock.ours(decode.guarded(decode.queue_job, records[0], "job"))
            missing = e.NotFound(f"Slurm knows no job {key}", source=se.SOURCE, code=str(se.INVALID_JOB_ID))
        except e.NotFound as error:
            missing = error
        ended = self._accounting(f"/slurmdb/{{v}}/job/{key}", {})
        if not ended:
            raise missing
        return max(ended, key=lambda one: (one.scheduler_id == key, _submitted(one)))

    def output_of(self, scheduler_id: str) -> v.OutputFile:
        """Where a job of the queue writes its output; ``NotFound`` when it is not in the queue any more."""
        key = encode.job_id(scheduler_id)
        records = self._records("GET", f"/slurm/{{v}}/job/{key}", "jobs", about="job")
        if not records:
            raise e.NotFound(f"Slurm knows no job {key}", source=se.SOURCE, code=str(se.INVALID_JOB_ID))
        return decode.guarded(decode.output_file, records[0], "job")

    def jobs_by_comment(
        self, comment: str, since: datetime | None = None, *, user_name: str = ""
    ) -> tuple[v.SchedulerJob, ...]:
        """Jobs with this comment in the queue or in accounting, oldest first: the answer to a doubt after submit.

        ``since`` bounds the search of accounting (default: the last week), ``user_name`` whose jobs it looks through
        ("": our own user's).
        """
        if not comment:
            raise e.InvalidRequest("jobs are searched by a comment that is not empty", source=se.SOURCE, code="comment")
        self._clock.check()
        # A minute earlier, for clocks that disagree a little.
        start_at = datetime.now(tz=UTC) - ACCOUNTING_WINDOW if since is None else since - timedelta(minutes=1)
        if since is None:
            queued: Iterable[v.SchedulerJob] = self._bulk.read(None, complete=True).jobs or ()
        else:
            queued = self._bulk.submitted_since(start_at)
        found = {job.scheduler_id: job for job in queued if job.comment == comment}
        in_queue = frozenset(found)
        params: dict[str, str] = {
            "start_time": f"uts{int(self._clock.theirs(start_at).timestamp())}",
            "skip_steps": "true",
        }
        if not self._rest.old and (user_name or self._user):
            params["users"] = user_name or self._user
        for job in self._accounting("/slurmdb/{v}/jobs", params):
            if job.comment != comment:
                continue
            known = found.get(job.scheduler_id)
            # A requeued job has a record for every run; the queue knows better than any of them.
            if known is None or (known.scheduler_id not in in_queue and _submitted(job) >= _submitted(known)):
                found[job.scheduler_id] = job
        return tuple(sorted(found.values(), key=lambda job: (_submitted(job), int(job.scheduler_id))))

    def _accounting(self, path: str, params: Params) -> list[v.SchedulerJob]:
        """Jobs from slurmdb; none where accounting is not configured, ``Unavailable`` where it does not answer."""
        try:
            body = self._rest.call("GET", path, about="accounting", params=params).body
        except (se.NoSuchPath, e.NotFound):
            return []
        except e.Unavailable as error:
            if error.code == str(se.NO_ACCOUNTING) and self._accounting_off():
                return []
            raise
        records = body.get("jobs")
        if not isinstance(records, list) or not records:
            return []
        self._clock.check()
        return [
            self._clock.ours(decode.guarded(decode.accounting_job, record, "job of accounting")) for record in records
        ]

    def _accounting_off(self) -> bool:
        return se.accounting_off(self._rest.ping().body)

    def _records(self, method: str, path: str, key: str, *, about: str) -> list[Any]:
        found = self._rest.call(method, path, about=about).body.get(key)
        if not isinstance(found, list):
            raise e.Unavailable(f"{path} answered without a list {key!r}", source=se.SOURCE, code="shape")
        return found

    # --- verbs -----------------------------------------------------------------------------------

    def submit(self, request: v.SubmitRequest | WorkloadSubmit) -> v.SubmitReceipt:
        """Submit once, never retried here. ``InvalidRequest`` when Slurm refuses, ``Unavailable`` when in doubt.

        Where the site lets jobs beyond a partition's limits wait (EnforcePartLimits=NO), the job exists and the
        receipt's warnings say what Slurm said.
        """
        if isinstance(request, WorkloadSubmit):
            raise e.InvalidRequest("a workload of Kubernetes is nothing that Slurm runs", source=se.SOURCE)
        options = [*request.options, *(option for part in request.parts for option in part.options)]
        if has_instants(options):
            self._clock.check()
        payload = encode.submit(request, self._rest.version, self._clock.ahead_s)
        body = self._rest.call("POST", encode.submit_path("{v}"), about="submit", body=payload).body
        try:
            made = decode.number(body.get("job_id"))
        except ValueError:
            made = None
        if not made:
            raise e.Unavailable("the answer to the submit names no job", source=se.SOURCE, code="shape")
        told = [se.text_of(one) for key in ("errors", "warnings") for one in se.entries_of(body, key)]
        if message := decode.text(body.get("job_submit_user_msg")).strip():
            told.append(message)
        return v.SubmitReceipt(scheduler_id=str(made), warnings=tuple(dict.fromkeys(told)))

    def cancel(self, scheduler_id: str) -> None:
        """Ask Slurm to end the job; already ended is success, ``NotFound`` when the queue does not know it any more."""
        self._kill(encode.job_id(scheduler_id), None)

    def _kill(self, key: str, params: Mapping[str, str] | None) -> None:
        if self._rest.version in SILENT_KILLS:
            self._must_exist(key)
        try:
            body = self._rest.call("DELETE", f"/slurm/{{v}}/job/{key}", about="job", params=params).body
            self._raise_status(body, key)
        except e.Conflict as error:
            if error.code != str(se.ALREADY_DONE):
                raise

    def _must_exist(self, key: str) -> None:
        """Raise NotFound for a job, or a task of an array, that the queue does not know."""
        records = self._records("GET", f"/slurm/{{v}}/job/{key}", "jobs", about="job")
        _array, _sep, task = key.partition("_")
        jobs = [decode.guarded(decode.queue_job, record, "job") for record in records]
        if task and not any(str(j.array_task) == task or decode.lists_task(j.array_pending, int(task)) for j in jobs):
            raise e.NotFound(f"Slurm knows no job {key}", source=se.SOURCE, code=str(se.INVALID_JOB_ID))

    @staticmethod
    def _raise_status(body: Mapping[str, Any], key: str) -> None:
        """From 24.11 on refusals are told inside HTTP 200, one entry a job."""
        for entry in se.entries_of(body, "status"):
            error = entry.get("error")
            code = se.code_of(error) if isinstance(error, Mapping) else 0
            if isinstance(error, Mapping) and code != 0:
                raise se.typed(code, f"job {key}: {se.text_of(error)}", about="job")

    def signal(self, scheduler_id: str, name: str) -> None:
        """Send the job a signal; one that has just ended needs none."""
        key = encode.job_id(scheduler_id)
        self._kill(key, {"signal": name})

    def requeue(self, scheduler_id: str) -> None:
        """Put the job back into the queue; REST before v0.0.45 has no such call, so there this needs scontrol."""
        key = encode.job_id(scheduler_id)
        if self._rest.version not in CAN_REQUEUE:
            self._run_scontrol(["requeue", key], about="job")
            return
        body = self._rest.call("POST", "/slurm/{v}/jobs/requeue", about="job", body={"jobs": [key]}).body
        self._raise_status(body, key)

    def hold(self, scheduler_id: str) -> None:
        """Keep a waiting job from starting; a running one stays as it is and waits only when it is put back."""
        self._job_update(encode.job_id(scheduler_id), {"hold": True}, (), as_operator=False)

    def release(self, scheduler_id: str, *, as_operator: bool = False) -> None:
        """Let a held job start; as an operator also one that an administrator holds."""
        key = encode.job_id(scheduler_id)
        self._job_update(key, {"hold": False}, ["release", key], as_operator)

    def update(self, scheduler_id: str, change: v.JobChange, *, as_operator: bool = False) -> None:
        """Change a job by REST, or by scontrol where only an operator may and we act as one.

        Slurm forgets the hold of a held job whose nice is changed: the caller must not ask for that.
        """
        key = encode.job_id(scheduler_id)
        words = ["update", f"jobid={key}", *encode.change_words(change)]
        self._job_update(key, encode.change(change, self._rest.version), words, as_operator)

    def _job_update(self, key: str, body: Mapping[str, Any], words: Sequence[str], as_operator: bool) -> None:
        try:
            self._rest.call("POST", f"/slurm/{{v}}/job/{key}", about="job", body=body)
        except e.AccessDenied:
            if not (as_operator and self._scontrol):
                raise
            self._run_scontrol(words, about="job")
        except e.Unavailable as error:
            # 22.05 calls every update of an array failed, whatever became of it: what the array shows tells.
            if not (self._rest.old and "job array update" in error.message and self._shows(key, body)):
                raise

    def _shows(self, key: str, body: Mapping[str, Any]) -> bool:
        """Whether the waiting tasks of an array are as an update wanted them."""
        records = self._records("GET", f"/slurm/{{v}}/job/{key}", "jobs", about="job")
        jobs = [decode.guarded(decode.queue_job, record, "job") for record in records]
        waiting = [job for job in jobs if job.state == "PENDING"]
        if "hold" in body:
            return bool(waiting) and all(job.reason.startswith("JobHeld") == body["hold"] for job in waiting)
        if "time_limit" in body:
            return all(job.time_limit_min == body["time_limit"] for job in waiting)
        return all(job.partition == body.get("partition", job.partition) for job in waiting)

    def node_drain(self, name: str, reason: str) -> None:
        """Accept no new job on the node; ``Unsupported`` where neither REST nor scontrol can do it."""
        encode.node_name(name)
        why = " ".join(reason.split())
        if not why:
            raise e.InvalidRequest(f"draining {name} needs a reason", source=se.SOURCE, code="reason")
        self._node_update(name, {"state": ["DRAIN"], "reason": why}, ["state=DRAIN", f"reason={why}"])

    def node_resume(self, name: str) -> None:
        """Undo a drain; a node that is not drained is left as it is."""
        encode.node_name(name)
        try:
            self._node_update(name, {"state": ["RESUME"]}, ["state=RESUME"])
        except e.Conflict as error:
            if error.code != str(se.INVALID_NODE_STATE):
                raise

    def node_evict(self, name: str, grace_s: int) -> int:
        """Slurm ends jobs, not nodes' contents."""
        raise e.Unsupported("Slurm ends no jobs because of a node: cancel or requeue them", source="slurm")

    def _node_update(self, name: str, body: Mapping[str, Any], words: Sequence[str]) -> None:
        """By REST from v0.0.39 on; by scontrol where REST cannot, or where our REST user is no operator."""
        command = ["update", f"nodename={name}", *words]
        if self._rest.old:
            self._run_scontrol(command, about="node")
            return
        try:
            self._rest.call("POST", f"/slurm/{{v}}/node/{name}", about="node", body=body)
        except e.AccessDenied:
            if not self._scontrol:
                raise
            self._run_scontrol(command, about="node")

    def _run_scontrol(self, words: Sequence[str], *, about: str) -> None:
        if not self._scontrol:
            shown = " ".join(f"'{word}'" if " " in word else word for word in words)
            raise e.Unsupported(
                f"Slurm's REST {self._rest.version} cannot do this; a person can run: scontrol {shown}",
                source=se.SOURCE,
                code="scontrol",
            )
        try:
            done = subprocess.run(
                [*self._scontrol, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                env={**os.environ, "SLURM_JWT": self._rest.access.token} if self._lends_token else None,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise e.Unavailable(
                f"{self._scontrol[-1]} did not end within {self._timeout_s:g} s", source=se.SOURCE, code="timeout"
            ) from None
        except OSError as error:
            raise e.Unavailable(
                f"cannot run {self._scontrol[0]}: {error.strerror or error}", source=se.SOURCE, code="scontrol"
            ) from None
        if done.returncode != 0:
            raise se.from_scontrol(done.stderr or done.stdout, about=about)


def _submitted(job: v.SchedulerJob) -> datetime:
    return job.submitted_at or datetime.min.replace(tzinfo=UTC)
