"""Ends that are told by pods alone: what else may have made others, and whose an event is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from worker.providers.kubernetes import names
from worker.providers.kubernetes.ends import Scene, end_of
from worker.providers.kubernetes.works import Work

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}


def pod(name: str, ended_s: float, **status: Any) -> dict[str, Any]:
    at = (NOW - timedelta(seconds=ended_s)).isoformat()
    ended = {"exitCode": 0, "finishedAt": at}
    body = {"containerStatuses": [{"name": "a", "state": {"terminated": ended}}], **status}
    return {"kind": "Pod", "metadata": {"name": name, "creationTimestamp": at}, "spec": {}, "status": body}


def of(kind: str, *pods: dict[str, Any]) -> Work:
    return Work("nlp", kind, "train", None, pods=list(pods))


def there(**more: Any) -> Any:
    return lambda work: {"kind": work.kind, "metadata": {}, **more}


def state(work: Work, **scene: Any) -> str | None:
    found = end_of(work, Scene(NOW, **scene))
    return found.state if found is not None else None


def test_an_evicted_replica_is_replaced() -> None:
    work = of("ReplicaSet", pod("train-a", 2, **EVICTED))
    assert state(work, maker=there()) == "COMPLETING"
    assert state(work) == "PREEMPTED", "nothing is there to replace it"
    assert state(work, maker=there(metadata={"deletionTimestamp": NOW.isoformat()})) == "PREEMPTED"
    assert state(of("ReplicaSet", pod("train-a", 2, **EVICTED), pod("b", 0, phase="Pending")), maker=there()) is None


def test_one_that_never_began_is_waited_for_as_well() -> None:
    work = of("StatefulSet", pod("train-0", 2, **EVICTED, containerStatuses=[]))
    assert state(work, maker=there()) == "COMPLETING"


def test_what_is_never_replaced_ends_after_all() -> None:
    assert state(of("ReplicaSet", pod("train-a", 300, **EVICTED)), maker=there()) == "PREEMPTED"


def test_a_controller_that_says_so_has_ended() -> None:
    work = of("HyperPodPyTorchJob", pod("train-0", 1, phase="Succeeded"))
    assert state(work, maker=there()) == "COMPLETING"
    done = {"conditions": [{"type": "Completed", "status": "True"}]}
    assert state(work, maker=there(status=done)) == "COMPLETED"


def failed(name: str) -> dict[str, Any]:
    condition = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "it failed"}
    return {"kind": "Job", "metadata": {"name": name}, "spec": {}, "status": {"conditions": [condition]}}


def test_an_event_of_another_workloads_pod_is_none_of_ours() -> None:
    events = {("nlp", "train-2-abcde"): [{"reason": "TaintManagerEviction"}]}
    work = Work("nlp", "Job", "train", failed("train"))
    assert state(work, events=events) == "FAILED"
    assert state(Work("nlp", "Job", "train-2", failed("train-2")), events=events) == "FAILED", "no pod of it is known"
    work.lost = [{"kind": "Pod", "metadata": {"name": "train-2-abcde"}, "spec": {}, "status": {"phase": "Running"}}]
    assert state(work, events=events) == "NODE_FAIL"


def test_names_of_ours_are_nobody_elses() -> None:
    name = names.object_name("att_01abc")
    root = failed(name)
    root["metadata"]["labels"] = {names.LABEL_ATTEMPT: "att_01abc", names.LABEL_MANAGED: names.MANAGED_BY}
    events = {("nlp", f"{name}-0-abcde"): [{"reason": "TaintManagerEviction"}]}
    assert state(Work("nlp", "Job", name, root), events=events) == "NODE_FAIL"
