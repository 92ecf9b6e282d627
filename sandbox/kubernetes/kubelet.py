"""The pretend kubelets: commands of pods run as processes of this machine, and their ends are told."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sandbox.kubernetes.actors import Actor, condition, finished, is_true, with_condition
from sandbox.kubernetes.containers import Containers, Waiting
from sandbox.kubernetes.machines import HEALTH, allocatable, provider_id
from sandbox.kubernetes.machines import labels as labels_of
from sandbox.kubernetes.machines import taints as taints_of
from sandbox.kubernetes.server import ClusterApi
from sandbox.kubernetes.status import ApiError, Object
from sandbox.kubernetes.store import Key
from sandbox.world import Node

#: How often the kubelet looks while something ends or begins by the clock, and while nothing does.
_BUSY_S, _QUIET_S = 0.1, 2.0
#: After a mount or an image was missing it is tried again in this time.
_RETRY_S: Final = 0.5
#: So long a pod that failed with its node stays to be seen.
_SEEN_S: Final = 0.6
#: The reason of the Event that tells of a container that waits.
_EVENTS: Final = {"ContainerCreating": "FailedMount", "InvalidImageName": "InspectFailed"}


@dataclass
class Running:
    """One container of a pod as a process, and what became of it."""

    process: subprocess.Popen[bytes]
    begun_at: str
    run: int
    reader: threading.Thread
    #: Why it was killed, where the pretend kubelet did it: OOMKilled.
    doomed: str = ""


@dataclass
class Held:
    """One pod on a node: its containers, and since when it is to end."""

    key: Key
    uid: str
    node: str
    containers: dict[str, Running] = field(default_factory=dict)
    ended: dict[str, Object] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    init_done: int = 0
    #: Why a container does not run yet (reason, message), when it is tried again, and how it ended before.
    waiting: dict[str, tuple[str, str]] = field(default_factory=dict)
    retry_at: dict[str, float] = field(default_factory=dict)
    last: dict[str, Object] = field(default_factory=dict)
    kill_at: float | None = None
    #: What ends the pod as a whole (reason, message): Evicted, DeadlineExceeded, Preempted.
    doom: tuple[str, str] | None = None

    def runs_before(self) -> bool:
        """Whether a container has run and is to run again."""
        return any(name in self.ended for name in self.waiting)


class Kubelets(Actor):
    """All nodes' kubelets in one. Processes end with it; pods it finds running without one have failed."""

    name = "kubelet"

    def __init__(self, cluster: ClusterApi, *, eviction_s: float = 5.0, restart_s: float = 0.5) -> None:
        super().__init__(cluster)
        self.containers = Containers(cluster)
        self.pause_s = _QUIET_S
        self.eviction_s = eviction_s
        self.restart_s = restart_s
        self._held: dict[str, Held] = {}
        self._lost: dict[str, float] = {}
        #: Pods of lost nodes by uid, and when they go.
        self._leaving: dict[str, float] = {}
        self._lock = threading.RLock()

    # --- switches

    def add_node(
        self,
        name: str,
        allocatable: Mapping[str, str],
        labels: Mapping[str, str] | None = None,
        taints: list[Object] | None = None,
        *,
        capacity: Mapping[str, str] | None = None,
        provider_id: str = "",
    ) -> None:
        """A ready node joins. Raises ApiError where it is there."""
        whole = {"cpu": "192", "memory": "2000Gi", "pods": "110", **allocatable}
        now = self.now()
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
                "spec": {"taints": taints or [], **({"providerID": provider_id} if provider_id else {})},
                "status": {
                    "capacity": dict(capacity or whole),
                    "allocatable": whole,
                    "conditions": [_ready("True", "KubeletReady", "kubelet is posting ready status", now)],
                },
            }
        )

    def refresh_node(self, machine: Node) -> None:
        """Lay over a node what has changed of its machine: health, GPUs that pods can take, its identity."""
        node, kind = self.store.get(Key("nodes", "", machine.name)), self.kind("nodes")
        if node is None or kind is None:
            return
        with self.store.lock, contextlib.suppress(ApiError):
            old = self.cluster.writer.read(kind, "", machine.name)
            kept = {key: value for key, value in old["metadata"]["labels"].items() if not key.startswith(HEALTH)}
            spec = {**old["spec"], "taints": taints_of(machine, old["spec"].get("taints") or [])}
            new = {
                **old,
                "metadata": {**old["metadata"], "labels": {**kept, **labels_of(machine)}},
                "spec": {**spec, "providerID": provider_id(machine)},
            }
            self.cluster.writer.update(kind, "", machine.name, new, self.how)
        node = self.store.get(Key("nodes", "", machine.name)) or node
        self.status("nodes", node, {**node["status"], "allocatable": allocatable(machine)})

    def lose_node(self, name: str) -> None:
        """A node falls silent: its processes die unseen, and after a while its pods are taken from it."""
        with self._lock:
            for held in [one for one in self._held.values() if one.node == name]:
                self._end_processes(held, signal.SIGKILL)
                del self._held[held.uid]
            self._lost[name] = time.monotonic()
        self._node_ready(name, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")

    def recover_node(self, name: str) -> None:
        """The node is back, without what ran on it."""
        with self._lock:
            self._lost.pop(name, None)
        self._node_ready(name, "True", "KubeletReady", "kubelet is posting ready status")

    def remove_node(self, name: str) -> None:
        """A node is gone for good; its processes end, and its pods fail before they go."""
        with self._lock:
            for held in [one for one in self._held.values() if one.node == name]:
                self._end_processes(held, signal.SIGKILL)
                del self._held[held.uid]
            self._lost.pop(name, None)
            node = self.store.get(Key("nodes", "", name))
            if node is not None:
                self.delete("nodes", node)

    def oom(self, namespace: str, name: str, container: str = "") -> None:
        """Kill a container as the kernel does when it is over its memory. Raises KeyError where none runs."""
        with self._lock:
            held = self._held_of(namespace, name)
            running = held.containers[container or next(iter(held.containers))]
            running.doomed = "OOMKilled"
            _send(running.process, signal.SIGKILL)

    def evict(self, namespace: str, name: str, why: str = "The node was low on resource: memory.") -> None:
        """End a pod for its node's sake. Raises KeyError where it does not run."""
        with self._lock:
            held = self._held_of(namespace, name)
            held.doom = ("Evicted", why)
            self._end_processes(held, signal.SIGKILL)

    def stop(self) -> None:
        """End every process."""
        super().stop()
        with self._lock:
            for held in self._held.values():
                self._end_processes(held, signal.SIGKILL)
                for running in held.containers.values():
                    running.process.wait(timeout=5)

    def _held_of(self, namespace: str, name: str) -> Held:
        return next(one for one in self._held.values() if (one.key.namespace, one.key.name) == (namespace, name))

    def _node_ready(self, name: str, value: str, reason: str, message: str) -> None:
        node = self.store.get(Key("nodes", "", name))
        if node is None:
            return
        status = with_condition(node["status"], "Ready", value, reason, message, self.now())
        self.status("nodes", node, status)
        key = "node.kubernetes.io/unreachable"
        taints = [one for one in node["spec"].get("taints") or () if one["key"] != key]
        if value != "True":
            taints += [{"key": key, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
        self.edit("nodes", node, taints=taints)

    # --- work

    def tick(self) -> None:
        """Start, watch and end what is on the nodes."""
        with self._lock:
            seen = set()
            for pod in self.store.scan("pods"):
                node, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
                if not node:
                    continue
                seen.add(uid)
                if self.store.get(Key("nodes", "", node)) is None:
                    self._take_away(pod, "DeletionByPodGC", "PodGC: node no longer exists")
                elif node in self._lost:
                    self._taken_away(pod, node)
                else:
                    self._visit(pod, node)
            for uid in [one for one in self._held if one not in seen]:
                self._end_processes(self._held.pop(uid), signal.SIGKILL)
            self._leaving = {uid: at for uid, at in self._leaving.items() if uid in seen}
            self._tidy()
            self.pause_s = _BUSY_S if self._is_timed() else _QUIET_S

    def _tidy(self) -> None:
        """Folders of pods that are gone, and the ports of their jobs."""
        for uid in self.containers.volumes.left_behind():
            if uid not in self._held and self.store.by_uid(uid) is None:
                self.containers.volumes.forget(uid)
        self.containers.meetings.forget()

    def _is_timed(self) -> bool:
        """Whether something goes on by the clock, without a change that would wake us."""
        if self._leaving:
            return True
        return any(one.kill_at or one.doom or one.retry_at for one in self._held.values()) or any(
            pod["spec"].get("nodeName") in self._lost and not finished(pod) for pod in self.store.scan("pods")
        )

    def _taken_away(self, pod: Object, node: str) -> None:
        if finished(pod) and pod["metadata"]["uid"] not in self._leaving:
            return
        if time.monotonic() - self._lost[node] >= self.eviction_s:
            self._take_away(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")

    def _take_away(self, pod: Object, reason: str, said: str) -> None:
        """A pod fails, and goes a moment later: its controller must have seen how it ended, as finalizers have it."""
        uid = pod["metadata"]["uid"]
        if not finished(pod):
            status = with_condition(pod["status"], "DisruptionTarget", "True", reason, said, self.now())
            self.status("pods", pod, {**status, "phase": "Failed", "reason": "NodeLost"})
            self.event(pod, "Warning", "TaintManagerEviction", f"Cancelling pod on lost node {pod['spec']['nodeName']}")
        if uid not in self._leaving:
            self._leaving[uid] = time.monotonic() + _SEEN_S
        elif time.monotonic() >= self._leaving[uid]:
            del self._leaving[uid]
            self.delete("pods", pod, grace_s=0)

    def _visit(self, pod: Object, node: str) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        held = self._held.get(uid)
        if finished(pod) and held is None:
            if metadata.get("deletionTimestamp") and time.monotonic() >= self._leaving.get(uid, 0.0):
                self._leaving.pop(uid, None)
                self.delete("pods", pod, grace_s=0)
            return
        if held is None:
            held = self._held[uid] = Held(Key("pods", metadata["namespace"], metadata["name"]), uid, node)
            for one in pod["status"].get("containerStatuses") or ():
                # It ran under an earlier sandbox; its process ended with that.
                held.runs[one["name"]] = one.get("restartCount", 0)
                if "running" in (one.get("state") or {}):
                    held.ended[one["name"]] = _ended(137, "Error", one["state"]["running"]["startedAt"], self.now())
        self._reap(held)
        if metadata.get("deletionTimestamp"):
            self._leave(pod, held)
            return
        self._watch_deadline(pod, held)
        if held.doom is not None:
            self._tell_end(pod, held, "Failed", reason=held.doom[0], message=held.doom[1])
            return
        self._advance(pod, held)

    def _watch_deadline(self, pod: Object, held: Held) -> None:
        limit, begun = pod["spec"].get("activeDeadlineSeconds"), pod["status"].get("startTime")
        if limit is None or begun is None or held.doom is not None:
            return
        if self.cluster.writer.clock() - datetime.fromisoformat(begun).timestamp() >= limit:
            held.doom = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            self._end_processes(held, signal.SIGKILL)

    def _reap(self, held: Held) -> None:
        for name, running in list(held.containers.items()):
            code = running.process.poll()
            if code is None:
                continue
            running.reader.join(timeout=2)
            exit_code = 128 - code if code < 0 else code
            reason = running.doomed or ("Completed" if exit_code == 0 else "Error")
            held.ended[name] = _ended(exit_code, reason, running.begun_at, self.now())
            del held.containers[name]

    def _leave(self, pod: Object, held: Held) -> None:
        now = time.monotonic()
        if held.kill_at is None:
            held.kill_at = now + float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            self._end_processes(held, signal.SIGTERM)
        if held.containers and now >= held.kill_at:
            self._end_processes(held, signal.SIGKILL)
        if not held.containers:
            codes = [one["terminated"]["exitCode"] for one in held.ended.values()]
            self._tell_end(pod, held, "Failed" if any(codes) else "Succeeded")
            if is_true(pod, "DisruptionTarget"):
                # Its controller must have seen how it ended, as finalizers have it.
                self._leaving[held.uid] = now + _SEEN_S
            else:
                self.delete("pods", pod, grace_s=0)

    def _advance(self, pod: Object, held: Held) -> None:
        spec = pod["spec"]
        inits = spec.get("initContainers") or []
        while held.init_done < len(inits):
            one = inits[held.init_done]
            if one["name"] in held.containers:
                break
            if one["name"] not in held.ended:
                self._launch(pod, held, one)
                if one["name"] not in held.ended:
                    break
            if held.ended[one["name"]]["terminated"]["exitCode"]:
                self._tell_end(pod, held, "Failed")
                return
            held.init_done += 1
        if held.init_done < len(inits):
            self._tell(pod, held, "Pending")
            return
        policy = spec.get("restartPolicy", "Always")
        for one in spec["containers"]:
            name = one["name"]
            if name in held.containers:
                continue
            over = held.ended.get(name)
            if over is None:
                self._launch(pod, held, one)
            elif policy == "Always" or (policy == "OnFailure" and over["terminated"]["exitCode"]):
                self._again(pod, held, one, over)
        if held.waiting or held.retry_at:
            self._tell(pod, held, "Running" if held.containers or held.runs_before() else "Pending")
        elif not held.containers:
            codes = [held.ended[one["name"]]["terminated"]["exitCode"] for one in spec["containers"]]
            self._tell_end(pod, held, "Failed" if any(codes) else "Succeeded")
        else:
            self._tell(pod, held, "Running")

    def _again(self, pod: Object, held: Held, container: Object, over: Object) -> None:
        """Start what has ended once more; the real kubelet's back-off grows, this one is short and the same."""
        name = container["name"]
        if name not in held.retry_at:
            held.retry_at[name] = time.monotonic() + self.restart_s
            said = f"back-off {self.restart_s:g}s restarting failed container={name}"
            held.waiting[name] = ("CrashLoopBackOff", said)
            self.event(pod, "Warning", "BackOff", f"Back-off restarting failed container {name}")
        elif time.monotonic() >= held.retry_at[name]:
            held.runs[name] = held.runs.get(name, 0) + 1
            held.last[name] = over
            del held.ended[name], held.retry_at[name]
            held.waiting.pop(name, None)
            self._launch(pod, held, container)

    def _launch(self, pod: Object, held: Held, container: Object) -> None:
        name = container["name"]
        if time.monotonic() < held.retry_at.get(name, 0.0):
            return
        run = held.runs.setdefault(name, 0)
        held.retry_at.pop(name, None)
        try:
            process = self.containers.start(pod, container, held.node)
        except Waiting as why:
            held.retry_at[name] = time.monotonic() + _RETRY_S
            if held.waiting.get(name) != (why.reason, why.message):
                held.waiting[name] = (why.reason, why.message)
                self.event(pod, "Warning", _EVENTS.get(why.reason, "Failed"), why.message)
            return
        except OSError as error:
            self.cluster.logs.append(held.uid, name, run, str(error))
            held.waiting.pop(name, None)
            held.ended[name] = _ended(128, "StartError", self.now(), self.now())
            self.event(pod, "Warning", "Failed", f"Error: failed to start container {name!r}: {error}")
            return
        reader = threading.Thread(target=self._drain, args=(process, held.uid, name, run), daemon=True)
        reader.start()
        held.ended.pop(name, None)
        held.waiting.pop(name, None)
        held.containers[name] = Running(process, self.now(), run, reader)
        self.event(pod, "Normal", "Started", f"Started container {name}")

    def _drain(self, process: subprocess.Popen[bytes], uid: str, name: str, run: int) -> None:
        for line in process.stdout or ():
            self.cluster.logs.append(uid, name, run, line.decode(errors="replace"))
        process.wait()
        self.store.nudge()

    @staticmethod
    def _end_processes(held: Held, number: signal.Signals) -> None:
        for running in held.containers.values():
            _send(running.process, number)

    # --- status

    def _tell(self, pod: Object, held: Held, phase: str, **more: str) -> None:
        fresh = self.store.get(held.key)
        if fresh is None or fresh["metadata"]["uid"] != held.uid:
            return
        now = self.now()
        status: Object = {**copy.deepcopy(fresh["status"]), "phase": phase, **more}
        status.setdefault("startTime", now)
        number = int(held.uid[:4], 16)
        status.setdefault("podIP", f"10.0.{number // 250 % 250}.{number % 250 + 1}")
        for field_name, listed in (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")):
            told = [self._container(held, one) for one in pod["spec"].get(listed) or ()]
            if told:
                status[field_name] = told
        ready = "True" if phase == "Running" and not held.ended else "False"
        old = condition(status, "Ready")
        if old is None or old["status"] != ready:
            status = with_condition(status, "Ready", ready, "", "", now)
        if status != fresh["status"]:
            self.status("pods", fresh, status)

    def _tell_end(self, pod: Object, held: Held, phase: str, **more: str) -> None:
        self._tell(pod, held, phase, **more)
        if not held.containers:
            self._held.pop(held.uid, None)

    @staticmethod
    def _container(held: Held, container: Object) -> Object:
        name = container["name"]
        state: Object = {"waiting": {"reason": "PodInitializing"}}
        if name in held.containers:
            state = {"running": {"startedAt": held.containers[name].begun_at}}
        elif name in held.waiting:
            reason, message = held.waiting[name]
            state = {"waiting": {"reason": reason, "message": message}}
        elif name in held.ended:
            state = held.ended[name]
        told: Object = {
            "name": name,
            "image": container.get("image", ""),
            "imageID": "",
            "ready": name in held.containers,
            "started": name in held.containers,
            "restartCount": held.runs.get(name, 0),
            "state": state,
        }
        if name in held.last:
            told["lastState"] = held.last[name]
        return told


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _ended(code: int, reason: str, begun_at: str, ended_at: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": begun_at, "finishedAt": ended_at}}


def _ready(value: str, reason: str, message: str, now: str) -> Object:
    return {"type": "Ready", "status": value, "reason": reason, "message": message, "lastTransitionTime": now}
