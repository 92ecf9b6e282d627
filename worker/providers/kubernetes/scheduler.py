"""The port ``Scheduler`` on Kubernetes: what runs is kept in memory by watches, changes go to the API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from worker.providers import values as v
from worker.providers.errors import AccessDenied, Conflict, InvalidRequest, NotFound, Unsupported
from worker.providers.kubernetes import actions, names, node_reads, plain
from worker.providers.kubernetes.calls import Caller, path_of
from worker.providers.kubernetes.client import KubernetesAccess
from worker.providers.kubernetes.decode import deleted, forgotten
from worker.providers.kubernetes.ends import Scene
from worker.providers.kubernetes.errors import SOURCE
from worker.providers.kubernetes.informer import Informer, Known
from worker.providers.kubernetes.made_kinds import RUNNING_KINDS
from worker.providers.kubernetes.many import combined, jobs_of
from worker.providers.kubernetes.reason_values import Reason
from worker.providers.kubernetes.reasons import NODE_EVENTS
from worker.providers.kubernetes.resources import NODES, PODS, WORKLOADS, Resource, Served
from worker.providers.kubernetes.rivals import who_of
from worker.providers.kubernetes.submit import Submitter
from worker.providers.kubernetes.told import ContainerLog, Told, logs_of, tellings
from worker.providers.kubernetes.works import MANIFEST, Thing, Work, attempt_of, gather, is_own, split_id
from worker.providers.workload_values import KUEUE, PLAIN, WorkloadSubmit

#: The kinds whose changes can make a job look different.
_OF_JOBS = ("Pod", *WORKLOADS, "Workload")
_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"})


@dataclass(frozen=True, slots=True)
class KubernetesSite:
    """What the portal decided about a cluster. ``scheduler`` lets jobs begin; ``name`` is the cluster's name here."""

    name: str = ""
    scheduler: str = KUEUE


class KubernetesScheduler:
    """One cluster as one user. Raises only provider errors; see ``ports.Scheduler`` for the contract."""

    def __init__(
        self,
        access: KubernetesAccess,
        site: KubernetesSite,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.site = site
        self.caller = Caller(access)
        self.informer = Informer(self.caller)
        self._clock = clock
        #: The instant and the state of the last whole read that was handed out.
        self._told: tuple[datetime, tuple[Any, ...]] | None = None
        self._decoded: dict[str, tuple[Any, tuple[v.SchedulerJob, ...]]] = {}
        self._settling = False
        self._nodes: tuple[tuple[Any, ...], tuple[v.SchedulerNode, ...]] | None = None

    @property
    def access(self) -> KubernetesAccess:
        """How it is reached now."""
        return self.caller.access

    def renew(self, token: str) -> None:
        """Go on with another token of the same user."""
        if token != self.caller.access.token:
            self.caller.renew(token)
            self.informer.try_again()

    def close(self) -> None:
        """End all watches and let go of the connections."""
        self.informer.stop()
        self.caller.close()

    # --- reads

    def info(self) -> v.SchedulerInfo:
        """Ask the server what it is and serves; kinds that are new are watched from now on."""
        served = self.informer.discover()
        kueue = served.by_kind("Workload", "kueue.x-k8s.io")
        return v.SchedulerInfo(self.site.name, served.version, f"kueue {kueue.version}" if kueue is not None else "v1")

    def served(self) -> Served:
        """What the server serves."""
        return self.informer.served()

    def rights(self, wanted: Iterable[tuple[str, str, str]]) -> dict[str, bool]:
        """What of these (verb, resource with its subresource, group) we may do, by "verb resource"."""
        found: dict[str, bool] = {}
        for verb, resource, group in wanted:
            plural, _sep, sub = resource.partition("/")
            attributes = {"verb": verb, "group": group, "resource": plural, "subresource": sub}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            answer = self.caller.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
            found[f"{verb} {resource}"] = bool((answer.get("status") or {}).get("allowed"))
        return found

    def partitions(self) -> tuple[v.Partition, ...]:
        """The LocalQueues where Kueue lets jobs begin; every one of them may reach every node."""
        known = self.informer.look()
        nodes = tuple(sorted(name for _namespace, name in known.of("Node")))
        found: list[v.Partition] = []
        for (_namespace, name), queue in sorted(known.of("LocalQueue").items()) if self.site.scheduler == KUEUE else ():
            stopped = (queue.get("spec") or {}).get("stopPolicy", "None") != "None"
            found.append(v.Partition(name, nodes, None, not found, "INACTIVE" if stopped else "UP"))
        return tuple(found)

    def nodes(self) -> tuple[v.SchedulerNode, ...]:
        """All nodes."""
        return self.node_read().nodes

    def node_read(self) -> v.NodeRead:
        """All nodes with what their pods take, from memory."""
        began, before = time.monotonic(), replace(self.caller.tally)
        known = self.informer.look()
        state = tuple(known.versions.get(kind) for kind in ("Node", "Pod", "LocalQueue"))
        if self._nodes is None or self._nodes[0] != state:
            queues = [name for _namespace, name in sorted(known.of("LocalQueue"))]
            self._nodes = (state, node_reads.seen_nodes(known, tuple(dict.fromkeys(queues))))
        return v.NodeRead(
            self._nodes[1],
            read_s=time.monotonic() - began,
            size_bytes=self.caller.tally.received_bytes - before.received_bytes,
            calls=self.caller.tally.requests - before.requests,
        )

    def queue(self, since: datetime | None = None, watch: Collection[str] = ()) -> v.QueueRead:
        """All workloads, from memory; nothing where nothing changed since the read that told ``since``."""
        began, before = time.monotonic(), replace(self.caller.tally)
        known = self.informer.look()
        state = self._state(known)
        as_of = self._clock()
        jobs: tuple[v.SchedulerJob, ...] | None = None
        # What settles does so by the clock and by its nodes, too.
        if since is None or self._told is None or self._told != (since, state) or self._settling:
            jobs = self._jobs(known)
            self._settling = any(job.state == "COMPLETING" for job in jobs)
        self._told = (as_of, state)
        return v.QueueRead(
            as_of,
            jobs,
            read_s=time.monotonic() - began,
            size_bytes=self.caller.tally.received_bytes - before.received_bytes,
            calls=self.caller.tally.requests - before.requests,
        )

    def remember(self, jobs: Iterable[v.SchedulerJob], as_of: datetime | None) -> None:
        """Nothing to do: every process watches for itself."""

    def _state(self, known: Known) -> tuple[Any, ...]:
        kinds = (*_OF_JOBS, "Node") if self.site.scheduler == PLAIN else _OF_JOBS
        return tuple(known.versions.get(kind) for kind in kinds)

    def _jobs(self, known: Known) -> tuple[v.SchedulerJob, ...]:
        works = gather(known)
        scene = self._scene(known, works)
        found: dict[str, tuple[Any, tuple[v.SchedulerJob, ...]]] = {}
        for work in works.values():
            print_ = (work.fingerprint(), str(scene.waits(work) or ""))
            kept = self._decoded.get(work.id)
            is_kept = kept is not None and kept[0] == print_ and all(j.state != "COMPLETING" for j in kept[1])
            found[work.id] = kept if kept is not None and is_kept else (print_, tuple(jobs_of(work, scene)))
        self._decoded = found
        return tuple(job for _print, jobs in found.values() for job in jobs)

    def _scene(self, known: Known, works: Mapping[str, Work]) -> Scene:
        waits: Callable[[Work], Reason | None] = lambda work: None  # noqa: E731
        if self.site.scheduler == PLAIN:
            line = plain.line_up(works, known)
            waits = lambda work: line.waits.get(work.id)  # noqa: E731
        events: dict[tuple[str, str], list[Thing]] = {}
        for event in known.of("Event").values():
            about = event.get("involvedObject") or {}
            if event.get("reason") in NODE_EVENTS:
                events.setdefault((str(about.get("namespace") or ""), str(about.get("name") or "")), []).append(event)
        silent = frozenset(name for (_ns, name), node in known.of("Node").items() if node_reads.is_silent(node))
        return Scene(self._clock(), self.caller.skew_s, who_of(known), waits, events, silent, self._maker)

    def _maker(self, work: Work) -> Thing | None:
        """What made the pods of a workload of a kind that is not watched, as the server has it; None for none."""
        resource = self.served().by_kind(work.kind)
        if resource is None:
            return None
        try:
            return self.caller.get(resource.path(work.namespace, work.name))
        except NotFound:
            return None
        except AccessDenied:
            # It may be there.
            return {"kind": work.kind, "metadata": {}}

    # --- single jobs

    def accounted(self, scheduler_ids: Sequence[str]) -> tuple[v.SchedulerJob, ...]:
        """These as they are or were; what is gone without a word was deleted."""
        if not scheduler_ids:
            return ()
        known = self.informer.look()
        here, all_ = gather(known), gather(known, gone=True)
        scene = self._scene(known, here)
        found: dict[str, v.SchedulerJob] = {}
        for scheduler_id in scheduler_ids:
            for job in self._one(scheduler_id, here, all_, scene):
                found[job.scheduler_id] = job
        return tuple(found.values())

    def job(self, scheduler_id: str) -> v.SchedulerJob:
        """One, as it is or was. ``NotFound`` for what was never the portal's and is not there."""
        known = self.informer.look()
        here, all_ = gather(known), gather(known, gone=True)
        found = self._one(scheduler_id, here, all_, self._scene(known, here))
        for job in found:
            if job.scheduler_id == scheduler_id:
                return job
        if not found:
            raise NotFound(f"{scheduler_id} is not in the cluster", source=SOURCE)
        return found[0]

    def _one(
        self, scheduler_id: str, here: Mapping[str, Work], all_: Mapping[str, Work], scene: Scene
    ) -> list[v.SchedulerJob]:
        try:
            namespace, kind, name = split_id(scheduler_id)
        except ValueError:
            return []
        whole = f"{namespace}/{kind}/{name}"
        if (work := here.get(whole)) is not None:
            return jobs_of(work, scene)
        # Memory may be a moment behind what was just made.
        there = self._asked(namespace, kind, name)
        if there:
            # Kept as it is: the watch will bring the rest.
            fresh = Work(namespace, kind, name, there[0]) if kind != MANIFEST else None
            if fresh is None:
                fresh = Work(namespace, kind, name, parts=[Work(namespace, "", name, there[0])], root=there[0])
                fresh.parts[0].kind = str(there[0].get("kind") or "")
            return jobs_of(fresh, scene)
        if (work := all_.get(whole)) is not None:
            if not work.parts:
                return [deleted(work, scene)]
            return [combined(work, [deleted(part, scene) for part in work.parts])]
        if not name.startswith("qd-"):
            return []
        return [forgotten(whole, namespace, name)]

    def _asked(self, namespace: str, kind: str, name: str) -> list[Thing]:
        """The workload as the server has it now; nothing where it has none."""
        served = self.served()
        if kind == MANIFEST:
            for one in RUNNING_KINDS:
                resource = served.by_kind(one)
                if resource is None:
                    continue
                items = self._marked(resource, namespace, names.LABEL_ATTEMPT)
                mine = [i for i in items if is_own(i["metadata"]) and _whole_of(i["metadata"]) == name]
                if mine:
                    return mine
            return []
        resource = served.by_kind(kind)
        if resource is None:
            return []
        try:
            found = self.caller.get(resource.path(namespace, name))
        except NotFound:
            return []
        return [{**found, "apiVersion": resource.api_version, "kind": kind}]

    def jobs_by_comment(
        self, comment: str, since: datetime | None = None, *, user_name: str = ""
    ) -> tuple[v.SchedulerJob, ...]:
        """What was made for this attempt, asked of the server and not of memory."""
        served = self.served()
        works: dict[str, Work] = {}
        for kind in RUNNING_KINDS:
            resource = served.by_kind(kind)
            if resource is None:
                continue
            label = names.label_value(comment)
            items = self._marked(resource, "", f"{names.LABEL_ATTEMPT}={label}")
            for item in items:
                head = item["metadata"]
                if attempt_of(head) != comment or not is_own(head):
                    continue
                work = Work(str(head["namespace"]), kind, str(head["name"]), item)
                if work.name != names.object_name(comment):
                    parts = [work]
                    work = Work(work.namespace, MANIFEST, names.object_name(comment), item, parts=parts)
                works.setdefault(work.id, work)
        scene = Scene(self._clock(), self.caller.skew_s)
        return tuple(job for work in works.values() for job in jobs_of(work, scene)[:1])

    def _marked(self, resource: Resource, namespace: str, selector: str) -> list[Thing]:
        """Objects with a label; none of a kind that only manifests have and that we may not list."""
        try:
            return self.caller.listed(resource.path(namespace), {"labelSelector": selector})[0]
        except AccessDenied:
            if resource.kind in WORKLOADS:
                raise
            return []

    # --- changes

    def submit(self, request: v.SubmitRequest | WorkloadSubmit) -> v.SubmitReceipt:
        """Make the attempt's objects, each once; asked again, what is missing."""
        if not isinstance(request, WorkloadSubmit):
            raise InvalidRequest("a batch script of Slurm is nothing that Kubernetes runs", source=SOURCE)
        return self._submitter().submit(request)

    def _submitter(self) -> Submitter:
        return Submitter(self.caller, self.served())

    def cancel(self, scheduler_id: str) -> None:
        """Delete it with all that belongs to it; its pods get their time to end."""
        _namespace, _kind, name = self._parts_of(scheduler_id)
        work = self._known_work(scheduler_id)
        task = scheduler_id.partition(f"{name}_")[2]
        actions.cancel(self.caller, self._submitter(), work, task, [] if work is None else self._jobs_of(work))
        if work is None:
            self._cancel_unknown(scheduler_id)

    def _cancel_unknown(self, scheduler_id: str) -> None:
        """Memory does not have it: the server may."""
        namespace, kind, name = self._parts_of(scheduler_id)
        there = self._asked(namespace, kind, name)
        if not there:
            raise NotFound(f"{scheduler_id} is not in the cluster", source=SOURCE)
        if kind == MANIFEST:
            self._submitter().delete_all(namespace, attempt_of(there[0]["metadata"]))
            return
        resource = self.served().by_kind(kind)
        assert resource is not None
        self.caller.delete(path_of(resource, there[0]), uid=str(there[0]["metadata"]["uid"]))

    def _parts_of(self, scheduler_id: str) -> tuple[str, str, str]:
        try:
            return split_id(scheduler_id)
        except ValueError as error:
            raise InvalidRequest(str(error), source=SOURCE) from None

    def _known_work(self, scheduler_id: str) -> Work | None:
        namespace, kind, name = self._parts_of(scheduler_id)
        return gather(self.informer.look()).get(f"{namespace}/{kind}/{name}")

    def _jobs_of(self, work: Work) -> list[v.SchedulerJob]:
        return jobs_of(work, Scene(self._clock(), self.caller.skew_s, maker=self._maker))

    def _waiting(self, scheduler_id: str) -> Work:
        """A workload that can still be changed. NotFound, or Conflict for one that has ended."""
        work = self._known_work(scheduler_id)
        if work is None or (work.root is None and not work.parts):
            raise NotFound(f"{scheduler_id} is not in the cluster", source=SOURCE)
        if all(job.state in _ENDED for job in self._jobs_of(work)):
            raise Conflict(f"{scheduler_id} has ended", source=SOURCE, code="ended")
        return work

    def hold(self, scheduler_id: str) -> None:
        """Under Kueue its Workload is set aside; elsewhere it is marked, and the portal lets nothing marked begin."""
        actions.hold(self.caller, self.served(), self._waiting(scheduler_id), held=True)

    def release(self, scheduler_id: str, *, as_operator: bool = False) -> None:
        """Let it be considered again."""
        actions.hold(self.caller, self.served(), self._waiting(scheduler_id), held=False)

    def update(self, scheduler_id: str, change: v.JobChange, *, as_operator: bool = False) -> None:
        """Time limit, priority class or queue; other schedulers' words are Unsupported."""
        actions.update(self.caller, self.served(), self._waiting(scheduler_id), change)

    def signal(self, scheduler_id: str, name: str) -> None:
        """Kubernetes has no such call."""
        raise Unsupported(
            "Kubernetes sends pods no signal but SIGTERM at their end: write checkpoints at intervals, or cancel",
            source=SOURCE,
        )

    def requeue(self, scheduler_id: str) -> None:
        """Attempts are made here."""
        raise Unsupported(
            "Kubernetes puts nothing back into a queue: ask the portal for another attempt", source=SOURCE
        )

    def output_of(self, scheduler_id: str) -> v.OutputFile:
        """There is no file: output is read from the pods."""
        raise Unsupported("jobs of Kubernetes write no output file; their pods' output is read", source=SOURCE)

    def let_in(self) -> int:
        """Where the portal itself lets jobs begin: begin with those that fit as a whole; how many."""
        if self.site.scheduler != PLAIN:
            return 0
        known = self.informer.look()
        line = plain.line_up(gather(known), known)
        for work in line.may_begin:
            for part in filter(plain.is_held_back, work.parts or [work]):
                actions.unsuspend(self.caller, self.served(), part)
        return len(line.may_begin)

    def sweep(self, is_due: Callable[[str], bool]) -> int:
        """Delete what is left of ended attempts that are due, and nobody else's; how many attempts."""
        submitter = self._submitter()
        live = {
            (work.namespace, work.attempt)
            for work in gather(self.informer.look()).values()
            if work.attempt and not all(job.state in _ENDED for job in self._jobs_of(work))
        }
        due = {(namespace, attempt) for namespace, attempt in submitter.uids() - live if is_due(attempt)}
        for namespace, attempt in sorted(due):
            submitter.delete_all(namespace, attempt)
        return len(due)

    def end_rest(self, scheduler_id: str) -> bool:
        """End what still runs of a manifest that is over; whether there was any. Asked of the server, not of memory."""
        namespace, _kind, name = self._parts_of(scheduler_id)
        there = self._asked(namespace, MANIFEST, name)
        if not there:
            return False
        now = self._clock() + timedelta(seconds=self.caller.skew_s)
        return self._submitter().end_rest(namespace, attempt_of(there[0]["metadata"]), now)

    def forget(self, namespace: str, attempt: str) -> None:
        """Delete what a submit that nobody saw the end of left of an attempt that is not to be."""
        self._submitter().delete_all(namespace, attempt)

    # --- nodes

    def node_drain(self, name: str, reason: str) -> None:
        """Cordon it, with our reason beside."""
        body = {"metadata": {"annotations": {node_reads.DRAIN_REASON: reason}}, "spec": {"unschedulable": True}}
        self.caller.patch(NODES.path("", name), body)

    def node_resume(self, name: str) -> None:
        """Uncordon it and take our reason away."""
        body = {"metadata": {"annotations": {node_reads.DRAIN_REASON: None}}, "spec": {"unschedulable": None}}
        self.caller.patch(NODES.path("", name), body)

    def node_evict(self, name: str, grace_s: int) -> int:
        """Ask every pod on it to go, each with its time to end; how many are still there.

        One that a disruption budget keeps is asked again by the next call.
        """
        items, _rev = self.caller.listed(PODS.path(), {"fieldSelector": f"spec.nodeName={name}"})
        left = [pod for pod in items if node_reads.is_to_be_evicted(pod)]
        for pod in left:
            if not pod["metadata"].get("deletionTimestamp"):
                actions.evict(self.caller, pod, grace_s)
        return len(left)

    # --- what it tells beside

    def tellings(self, since: int) -> tuple[int, list[Told]]:
        """Events in words that came after the change ``since``, and the change to go on from; from memory."""
        known = self.informer.look()
        last = known.versions.get("Event", 0)
        if last <= since:
            return since, []
        works = gather(known, gone=True)
        return last, tellings(known, works, self._scene(known, works), since)

    def logs_of(self, scheduler_ids: Collection[str]) -> list[ContainerLog]:
        """Containers of these workloads whose output can be read."""
        return logs_of(gather(self.informer.look()), scheduler_ids)

    def log(self, one: ContainerLog, since: str, most_bytes: int) -> bytes:
        """A container's output with a timestamp before each line, from the second of ``since`` on ("": all).

        Raises NotFound once the pod is gone.
        """
        asked: dict[str, str | int] = {
            "timestamps": "true",
            "container": one.container,
            "limitBytes": most_bytes,
        }
        if since:
            asked["sinceTime"] = since.partition(".")[0].rstrip("Z") + "Z"
        return self.caller.text(PODS.path(one.namespace, one.pod, "log"), asked, most_bytes=most_bytes)


def _whole_of(head: Mapping[str, Any]) -> str:
    """The name that a manifest goes by here, by the metadata of an object of it."""
    return names.object_name(attempt_of(head))
