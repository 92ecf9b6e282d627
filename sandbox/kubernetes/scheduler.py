"""The pretend scheduler: pods get the nodes that have room for them, or are told why none has."""

from __future__ import annotations

from sandbox.kubernetes.actors import Actor, finished, with_condition
from sandbox.kubernetes.mounts import missing_claims
from sandbox.kubernetes.placing import hindrances, unschedulable, used_on
from sandbox.kubernetes.status import Object


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
            without = missing_claims(pod, self.store)
            free = [node for node in nodes if not hindrances(pod["spec"], node, used[node["metadata"]["name"]])]
            if free and not without:
                name = free[0]["metadata"]["name"]
                self._bind(pod, name)
                used[name] = used_on(name, self.store.scan("pods"))
                continue
            said = unschedulable(pod["spec"], nodes, used)
            if without:
                said = f'0/{len(nodes)} nodes are available: persistentvolumeclaim "{without[0]}" not found.'
            status = with_condition(pod["status"], "PodScheduled", "False", "Unschedulable", said, self.now())
            if status is not pod["status"]:
                self.status("pods", pod, status)
                self.event(pod, "Warning", "FailedScheduling", said)

    def _bind(self, pod: Object, node: str) -> None:
        metadata = pod["metadata"]
        self.cluster.api.below.bind(metadata["namespace"], metadata["name"], {"target": {"name": node}}, self.how)
        said = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
        self.event(pod, "Normal", "Scheduled", said)
