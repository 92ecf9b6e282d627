"""How workloads ended: by themselves, by their limit, with their node or deleted; from conditions and pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from worker.providers.kubernetes import names
from worker.providers.kubernetes.kueue_reasons import condition, eviction
from worker.providers.kubernetes.pod_sets import as_list, as_map, at
from worker.providers.kubernetes.pods import HYPERPOD_RESUME
from worker.providers.kubernetes.reason_values import Reason, Who
from worker.providers.kubernetes.reason_values import text as _
from worker.providers.kubernetes.reasons import NODE_EVENTS, is_limit, is_of_the_node, pod_reason
from worker.providers.kubernetes.resources import WORKLOADS
from worker.providers.kubernetes.works import Thing, Work

#: How each kind says that it succeeded.
_DONE = {"Job": "Complete", "JobSet": "Completed", "PyTorchJob": "Succeeded", "TrainJob": "Complete"}
#: Reasons of pods for which their node is to blame, and for which nobody of the job is.
LOST = frozenset({"NodeLost", "NodeTainted", "NodeShutdown"})
_TAKEN = frozenset({"PodPreempted", "Drained"})
#: How long after a failure pods that have not ended are waited for: their time to end, and until a silent node is told.
_SETTLES = timedelta(seconds=180)


@dataclass(frozen=True)
class Scene:
    """What decoding needs to know beyond one workload.

    ``now`` bounds every time, ``skew_s`` is how far the server's clock is ahead of ours. ``waits`` says why a workload
    is held back by the portal itself. ``events`` are the events of pods by namespace and name, ``silent`` the nodes
    that do not answer. ``maker`` reads what made a workload's pods, where that is of a kind that is not watched.
    """

    now: datetime
    skew_s: float = 0.0
    who: Who | None = None
    waits: Callable[[Work], Reason | None] = lambda work: None
    events: Mapping[tuple[str, str], Sequence[Thing]] | None = None
    silent: frozenset[str] = frozenset()
    maker: Callable[[Work], Thing | None] = lambda work: None

    def at(self, told: Any) -> datetime | None:
        """An instant of the server by our clock; never in the future, for no clock here has been there."""
        if not isinstance(told, str) or not told:
            return None
        try:
            found = datetime.fromisoformat(told).astimezone(UTC)
        except ValueError:
            return None
        return min(found - timedelta(seconds=self.skew_s), self.now)


@dataclass(frozen=True)
class End:
    """How a workload ended, why, and when, as far as that is known."""

    state: str
    why: Reason | None = None
    ended_at: datetime | None = None


def is_live(pod: Thing) -> bool:
    """Whether it may still use its node."""
    return at(pod, "status", "phase") not in ("Succeeded", "Failed")


def has_ended(thing: Thing) -> bool:
    """Whether an object that has pods says that it is over; what only ever replaces its pods never is."""
    if thing.get("kind") == "Pod":
        return not is_live(thing)
    return any(condition(thing, end).get("status") == "True" for end in (*_DONE.values(), "Failed"))


def is_overdue(pod: Thing, now: datetime) -> bool:
    """Whether it was told to end so long ago that only its node can keep it: one that does not answer."""
    told = at(pod, "metadata", "deletionTimestamp")
    try:
        # Its time to end lies before that instant.
        return told is not None and now - datetime.fromisoformat(str(told)) > _SETTLES
    except (TypeError, ValueError):
        return False


def is_placed(pod: Thing) -> bool:
    """Whether it has a node and is still on it."""
    return bool(at(pod, "spec", "nodeName")) and is_live(pod)


def end_of(work: Work, scene: Scene) -> End | None:
    """Its end, None while it has not ended."""
    root = work.root
    if root is None:
        if work.kind not in WORKLOADS:
            return _end_of_pods(work, scene)
        return None if any(is_live(pod) for pod in work.pods) else was_deleted(work, scene)
    done, failed = condition(root, _DONE.get(work.kind, "Complete")), condition(root, "Failed")
    if done.get("status") == "True":
        told = at(root, "status", "completionTime") or done.get("lastTransitionTime")
        return End("COMPLETED", ended_at=scene.at(told))
    if failed.get("status") == "True":
        return _failure(work, failed, scene)
    if work.kind == "Pod":
        return _end_of_pods(work, scene)
    if at(root, "metadata", "deletionTimestamp") and not any(is_live(pod) for pod in work.pods):
        # Somebody's finalizer may keep the object; nothing of it runs.
        return was_deleted(work, scene)
    if work.queued is not None and at(work.queued, "spec", "active") is False:
        why = eviction(work.queued, scene.who)
        if why is not None and why.code == "MaximumExecutionTimeExceeded":
            evicted = condition(work.queued, "Evicted")
            return End("TIMEOUT", why, scene.at(evicted.get("lastTransitionTime")))
    return None


def was_deleted(work: Work, scene: Scene) -> End:
    """The end of what somebody deleted."""
    ends = [end for pod in (*work.pods, *work.lost) if (end := _pod_end(pod, scene)) is not None]
    why = Reason("Deleted", _("It was deleted in the cluster."), is_final=True)
    return End("CANCELLED", why, max(ends, default=None))


def _end_of_pods(work: Work, scene: Scene) -> End | None:
    """Pods of no workload that we know: they have ended when all have."""
    pods = work.pods
    if not pods or any(is_live(pod) for pod in pods):
        return None if pods else was_deleted(work, scene)
    at_last = max((end for pod in pods if (end := _pod_end(pod, scene)) is not None), default=None)
    if work.root is None and _makes_others(work, at_last or _last_change(pods, scene), scene):
        return End("COMPLETING", Reason("Ending", _("Its pods ended; whether others take their place is waited for.")))
    if all(at(pod, "status", "phase") == "Succeeded" for pod in pods):
        return End("COMPLETED", ended_at=at_last)
    return replace(_blame(work, scene) or End("FAILED"), ended_at=at_last)


def _makes_others(work: Work, last: datetime | None, scene: Scene) -> bool:
    """Whether what made the pods may still put others in their place: it is there, and they ended only just now."""
    if last is None or scene.now - last > _SETTLES:
        return False
    maker = scene.maker(work)
    return maker is not None and not at(maker, "metadata", "deletionTimestamp") and not has_ended(maker)


def _last_change(pods: Sequence[Thing], scene: Scene) -> datetime | None:
    """When pods whose containers never began became what they are."""
    told = [as_map(row).get("lastTransitionTime") for pod in pods for row in as_list(at(pod, "status", "conditions"))]
    told += [at(pod, "metadata", "creationTimestamp") for pod in pods]
    return max((found for one in told if (found := scene.at(one)) is not None), default=None)


def _failure(work: Work, failed: Mapping[str, Any], scene: Scene) -> End:
    ended = scene.at(failed.get("lastTransitionTime"))
    told = [failed, *(condition(job, "Failed") for job in work.jobs)]
    if any(is_limit(one) for one in told):
        why = Reason("DeadlineExceeded", _("It ran as long as it may."), is_final=True)
        return End("TIMEOUT", why, ended)
    found = _blame(work, scene)
    if (unsettled := _unsettled(work, scene, ended)) is not None and (found is None or found.state == "FAILED"):
        return unsettled
    if found is not None:
        return replace(found, ended_at=ended)
    message = str(failed.get("message") or failed.get("reason") or "")
    why = Reason("Failed", _("The cluster says: %(message)s", message=message), is_final=True, raw=message)
    return End("FAILED", why if message else None, ended)


def _unsettled(work: Work, scene: Scene, ended: datetime | None) -> End | None:
    """A gang fails at once where one of its nodes dies: its other ranks miss their peer long before anybody says so.

    So a program's own end is believed once no pod is left of which it is not known how it ended.
    """
    left = [pod for pod in work.pods if is_placed(pod)]
    for pod in left:
        node = str(at(pod, "spec", "nodeName"))
        if node in scene.silent:
            text = _("The node %(node)s stopped answering under it.", node=node)
            return End("NODE_FAIL", Reason("NodeLost", text, is_final=True), ended)
    if left and ended is not None and scene.now - ended < _SETTLES:
        return End("COMPLETING", Reason("Ending", _("It failed; how its other pods end is waited for.")))
    return None


def interruption(work: Work) -> Reason | None:
    """Why a job of ours that goes on is no whole any more: a pod was taken from it, or lost with its node.

    What its controller makes in that pod's place begins from where the whole began, beside ranks that are far ahead.
    """
    if not is_ours(work) or (work.root is not None and at(work.root, "metadata", "annotations", HYPERPOD_RESUME)):
        return None
    found = [reason for pod in (*work.pods, *lately(work)) if (reason := pod_reason(pod)) is not None]
    lost = [reason for reason in found if reason.code in LOST]
    return next((reason for reason in (*lost, *found) if reason.code in LOST | _TAKEN), None)


def is_ours(work: Work) -> bool:
    """Whether it is one whole that the portal wrote itself: no array, nothing of a manifest."""
    attempt = work.attempt
    if work.root is None or not attempt or work.name != names.object_name(attempt):
        return False
    return not at(work.root, "metadata", "annotations", names.ARRAY)


def lately(work: Work) -> list[Thing]:
    """Deleted pods of the run that counts: a job that was put back and let in again has those of earlier runs, too."""
    begun = [str(at(thing, "status", "startTime") or "") for thing in (*work.jobs, *([work.root] if work.root else []))]
    since = max(begun, default="")
    return [pod for pod in work.lost if str(pod["metadata"].get("creationTimestamp") or "") >= since]


def _blame(work: Work, scene: Scene) -> End | None:
    """Why it failed by its pods: a lost node before a program's end, for that follows from it."""
    found = [reason for pod in (*work.pods, *lately(work)) if (reason := pod_reason(pod)) is not None]
    for reason in found:
        if reason.code in LOST:
            return End("NODE_FAIL", reason)
    for reason in found:
        if reason.code in _TAKEN or is_of_the_node(reason):
            return End("PREEMPTED", reason)
    for reason in found:
        if reason.code == "OOMKilled":
            return End("OUT_OF_MEMORY", reason)
    for reason in found:
        if reason.is_final:
            return End("FAILED", reason)
    return _by_events(work, scene)


def _by_events(work: Work, scene: Scene) -> End | None:
    """Nothing is left of its pods: what the cluster said while they were taken away."""
    mine = {str(pod["metadata"].get("name") or "") for pod in (*work.pods, *lately(work))}
    # Of a pod that nobody here has seen there is the name alone: nothing else begins with a name made from a uid.
    start = f"{work.name}-" if work.attempt and work.name == names.object_name(work.attempt) else None
    for (namespace, name), events in (scene.events or {}).items():
        if namespace != work.namespace or not (name in mine or (start is not None and name.startswith(start))):
            continue
        if any(event.get("reason") in NODE_EVENTS for event in events):
            text = _("A node under it stopped answering.")
            return End("NODE_FAIL", Reason("NodeLost", text, is_final=True))
    return None


def lost_nodes(work: Work, scene: Scene) -> list[str]:
    """Nodes that were lost under its pods."""
    nodes = [str(at(pod, "spec", "nodeName") or "") for pod in work.pods if is_placed(pod)]
    found = [node for node in nodes if node in scene.silent]
    for pod in (*work.pods, *lately(work)):
        reason = pod_reason(pod)
        if reason is not None and reason.code in LOST:
            found.append(str(at(pod, "spec", "nodeName") or ""))
    return found


def _ends(pod: Thing) -> list[Mapping[str, Any]]:
    rows = as_list(at(pod, "status", "containerStatuses"))
    states = [part for row in rows for part in (as_map(as_map(row).get("state")), as_map(as_map(row).get("lastState")))]
    return [as_map(state["terminated"]) for state in states if as_map(state.get("terminated"))]


def _pod_end(pod: Thing, scene: Scene) -> datetime | None:
    ends = [found for end in _ends(pod) if (found := scene.at(end.get("finishedAt"))) is not None]
    return max(ends, default=None)


def exit_of(work: Work) -> tuple[int | None, int | None]:
    """Exit code and signal of the container that failed first."""
    bad = [
        end
        for pod in (*work.pods, *lately(work))
        for end in _ends(pod)
        if isinstance(end.get("exitCode"), int) and end["exitCode"] != 0
    ]
    if not bad:
        return None, None
    code = int(min(bad, key=lambda end: str(end.get("finishedAt") or "~"))["exitCode"])
    return code, code - 128 if 128 < code < 193 else None
