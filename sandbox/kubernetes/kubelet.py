"""The pretend scheduler and kubelets: pods get nodes, and their commands run as processes of this machine."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandbox.kubernetes.actors import Actor, condition, finished, with_condition
from sandbox.kubernetes.environment import environment_of
from sandbox.kubernetes.placing import hindrances, unschedulable, used_on
from sandbox.kubernetes.server import ClusterApi
from sandbox.kubernetes.status import Object
from sandbox.kubernetes.store import Key

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


class Scheduler(Actor):
    """Gives each pending pod the first node that has room for it; says why where none has."""

    name = "default-scheduler"

    def tick(self) -> None:
        """Place what waits, the most important first."""
        pods = self.store.scan("pods")
        waiting = [
            pod
            for pod in pods
            if not pod["spec"].get("nodeName")
            and not pod["spec"].get("schedulingGates")
            and not pod["metadata"].get("deletionTimestamp")
            and not finished(pod)
            and pod["spec"].get("schedulerName") == self.name
        ]
        if not waiting:
            return
        nodes = self.store.scan("nodes")
        used = {node["metadata"]["name"]: used_on(node["metadata"]["name"], pods) for node in nodes}
        for pod in sorted(waiting, key=lambda one: -int(one["spec"].get("priority") or 0)):
            free = [node for node in nodes if not hindrances(pod["spec"], node, used[node["metadata"]["name"]])]
            if free:
                name = free[0]["metadata"]["name"]
                self._bind(pod, name)
                used[name] = used_on(name, self.store.scan("pods"))
                continue
            said = unschedulable(pod["spec"], nodes, used)
            status = with_condition(pod["status"], "PodScheduled", "False", "Unschedulable", said, self.now())
            if status is not pod["status"]:
                self.status("pods", pod, status)
                self.event(pod, "Warning", "FailedScheduling", said)

    def _bind(self, pod: Object, node: str) -> None:
        metadata = pod["metadata"]
        self.cluster.api.below.bind(metadata["namespace"], metadata["name"], {"target": {"name": node}}, self.how)
        said = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
        self.event(pod, "Normal", "Scheduled", said)


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
    kill_at: float | None = None
    evicted: str = ""


class Kubelets(Actor):
    """All nodes' kubelets in one. Processes end with it; pods it finds running without one have failed."""

    name = "kubelet"
    pause_s = 0.1

    def __init__(self, cluster: ClusterApi, *, eviction_s: float = 5.0, restart_s: float = 0.5) -> None:
        super().__init__(cluster)
        self.eviction_s = eviction_s
        self.restart_s = restart_s
        self._held: dict[str, Held] = {}
        self._lost: dict[str, float] = {}
        self._lock = threading.RLock()

    # --- switches

    def add_node(
        self,
        name: str,
        allocatable: Mapping[str, str],
        labels: Mapping[str, str] | None = None,
        taints: list[Object] | None = None,
    ) -> None:
        """A ready node joins. Raises ApiError where it is there."""
        whole = {"cpu": "192", "memory": "2000Gi", "pods": "110", **allocatable}
        now = self.now()
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
                "spec": {"taints": taints or []},
                "status": {
                    "capacity": whole,
                    "allocatable": whole,
                    "conditions": [_ready("True", "KubeletReady", "kubelet is posting ready status", now)],
                },
            }
        )

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
        """A node is gone for good, and its pods with it."""
        with self._lock:
            for pod in self.store.scan("pods"):
                if pod["spec"].get("nodeName") == name:
                    self.delete("pods", pod, grace_s=0)
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
            held.evicted = why
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
                if not node or self.store.get(Key("nodes", "", node)) is None:
                    continue
                seen.add(uid)
                if node in self._lost:
                    self._taken_away(pod, node)
                else:
                    self._visit(pod, node)
            for uid in [one for one in self._held if one not in seen]:
                self._end_processes(self._held.pop(uid), signal.SIGKILL)

    def _taken_away(self, pod: Object, node: str) -> None:
        if time.monotonic() - self._lost[node] < self.eviction_s or finished(pod):
            return
        said = "Taint manager: deleting due to NoExecute taint"
        status = with_condition(pod["status"], "DisruptionTarget", "True", "DeletionByTaintManager", said, self.now())
        self.status("pods", pod, {**status, "phase": "Failed", "reason": "NodeLost"})
        self.event(pod, "Warning", "TaintManagerEviction", f"Cancelling pod on lost node {node}")
        self.delete("pods", pod, grace_s=0)

    def _visit(self, pod: Object, node: str) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        held = self._held.get(uid)
        if finished(pod) and held is None:
            if metadata.get("deletionTimestamp"):
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
        if held.evicted:
            self._tell_end(pod, held, "Failed", reason="Evicted", message=held.evicted)
            return
        self._advance(pod, held)

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
                # Backing off as the real one does would make every test wait; it is short and the same each time.
                self._tell(pod, held, "Running")
                time.sleep(self.restart_s)
                held.runs[name] = held.runs.get(name, 0) + 1
                self._launch(pod, held, one)
        if not held.containers:
            codes = [held.ended[one["name"]]["terminated"]["exitCode"] for one in spec["containers"]]
            self._tell_end(pod, held, "Failed" if any(codes) else "Succeeded")
        else:
            self._tell(pod, held, "Running")

    def _launch(self, pod: Object, held: Held, container: Object) -> None:
        name = container["name"]
        run = held.runs.setdefault(name, 0)
        command = [*(container.get("command") or ()), *(container.get("args") or ())]
        folder = self.cluster.state_dir / "pods" / held.uid
        folder.mkdir(parents=True, exist_ok=True)
        try:
            told = environment_of(pod, container, self.store, held.node)
            environment = {"PATH": _PATH, "HOME": str(folder), "HOSTNAME": _host(pod), **told}
            process = subprocess.Popen(
                [_filled(part, environment) for part in command] or ["true"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, KeyError) as error:
            self.cluster.logs.append(held.uid, name, run, str(error))
            held.ended[name] = _ended(128, "StartError", self.now(), self.now())
            self.event(pod, "Warning", "Failed", f"Error: failed to start container {name!r}: {error}")
            return
        reader = threading.Thread(target=self._drain, args=(process, held.uid, name, run), daemon=True)
        reader.start()
        held.ended.pop(name, None)
        held.containers[name] = Running(process, self.now(), run, reader)
        self.event(pod, "Normal", "Started", f"Started container {name}")

    def _drain(self, process: subprocess.Popen[bytes], uid: str, name: str, run: int) -> None:
        for line in process.stdout or ():
            self.cluster.logs.append(uid, name, run, line.decode(errors="replace"))

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
        return told


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _host(pod: Object) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def _filled(part: str, environment: Mapping[str, str]) -> str:
    """A part of a command with $(NAME) of its environment filled in."""
    for name, value in environment.items():
        part = part.replace(f"$({name})", value)
    return part


def _ended(code: int, reason: str, begun_at: str, ended_at: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": begun_at, "finishedAt": ended_at}}


def _ready(value: str, reason: str, message: str, now: str) -> Object:
    return {"type": "Ready", "status": value, "reason": reason, "message": message, "lastTransitionTime": now}
