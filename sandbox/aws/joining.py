"""Lets booted instances join the cluster that their user data names, and leave it when they end."""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Final

from sandbox.aws.state import Cloud, Machine
from sandbox.world import World

_LINE: Final = re.compile(r"^# quarterdeck-node: (\{.*\})\s*$", re.MULTILINE)
_TICK_S: Final = 0.2


@dataclass(frozen=True)
class NodeLine:
    """What the line in the user data says: which cluster and partition, and which GPUs the node has."""

    cluster: str
    partition: str
    gpu_type: str
    gpus: int


def node_line(user_data: str) -> NodeLine | None:
    """The node line of base64 user data, None where there is none. Raises ``ValueError`` for a malformed one."""
    try:
        text = base64.b64decode(user_data).decode(errors="replace")
    except binascii.Error as exc:
        raise ValueError("user data is not base64") from exc
    found = _LINE.search(text)
    if found is None:
        return None
    try:
        raw = json.loads(found[1])
        return NodeLine(str(raw["cluster"]), str(raw["partition"]), str(raw["gpu_type"]), int(raw["gpus"]))
    except (KeyError, TypeError, ValueError) as exc:
        raise ValueError(f"the line “{found[0].strip()}” lacks or garbles a key: {exc}") from exc


class Joiner:
    """Watches the account's machines and tells the world which joined and which left."""

    def __init__(self, cloud: Cloud, world: World) -> None:
        self._cloud = cloud
        self._world = world
        self._joined: dict[str, str] = {}
        self._silent: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sandbox-aws-joiner", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; joined nodes stay in the world."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def _watch(self) -> None:
        while not self._ended.wait(_TICK_S):
            try:
                self.tick()
            except Exception:
                # A listener's mistake must not stop all later nodes from joining.
                traceback.print_exc(file=sys.stderr)

    def tick(self) -> None:
        """One look at all machines."""
        with self._cloud.lock:
            self._cloud.settle()
            now = time.time()
            states = {m.id: (m, self._cloud.state_of(m, now)) for m in self._cloud.machines.values()}
        for machine_id, name in list(self._joined.items()):
            if machine_id not in states or states[machine_id][1] != "running":
                del self._joined[machine_id]
                node = self._world.nodes.get(name)
                # A later machine may have got the same address and with it the name.
                if node is not None and node.instance_id == machine_id:
                    self._world.node_leave(name)
        ready_after_s = self._cloud.options.boot_s + self._cloud.options.join_s
        for machine, state in states.values():
            new = machine.id not in self._joined and machine.id not in self._silent
            if new and state == "running" and now >= machine.launched_at + ready_after_s:
                self._join(machine)

    def _join(self, machine: Machine) -> None:
        try:
            line = node_line(machine.user_data)
        except ValueError as exc:
            print(f"sandbox: {machine.id} does not join a cluster: {exc}", file=sys.stderr, flush=True)
            line = None
        if line is None:
            self._silent.add(machine.id)
            return
        self._joined[machine.id] = machine.node_name
        self._world.node_join(
            name=machine.node_name,
            instance_id=machine.id,
            instance_type=machine.instance_type,
            cluster=line.cluster,
            partition=line.partition,
            gpu_type=line.gpu_type,
            gpu_count=line.gpus,
            cpus=machine.vcpus,
            memory_mib=machine.memory_mib,
        )
