"""The pretend controllers of what serves: Deployments, and LeaderWorkerSets with a leader and its workers a replica."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Final

from sandbox.kubernetes.actors import Actor, condition, finished, owner_of, with_condition
from sandbox.kubernetes.meeting import has_service, service_of
from sandbox.kubernetes.status import Object

_LWS: Final = "leaderworkersets.leaderworkerset.x-k8s.io"
_MARK: Final = "leaderworkerset.sigs.k8s.io"


class ServingController(Actor):
    """Keeps as many pods as are wanted, of the newest template."""

    name = "deployment-controller"

    def tick(self) -> None:
        """Visit every Deployment and LeaderWorkerSet."""
        for resource, wanted_of in (("deployments.apps", self._of_deployment), (_LWS, self._of_set)):
            for thing in self.store.scan(resource):
                if not thing["metadata"].get("deletionTimestamp"):
                    self._visit(resource, thing, wanted_of(thing))

    def _visit(self, resource: str, thing: Object, wanted: dict[str, Object]) -> None:
        metadata = thing["metadata"]
        mine = {
            pod["metadata"]["name"]: pod
            for pod in self.store.scan("pods", metadata["namespace"])
            if any(one["uid"] == metadata["uid"] for one in pod["metadata"].get("ownerReferences") or ())
        }
        for name, pod in mine.items():
            if (name not in wanted or finished(pod)) and not pod["metadata"].get("deletionTimestamp"):
                self.delete("pods", pod, grace_s=0 if finished(pod) else None)
        for name, body in wanted.items():
            if name not in mine:
                self.create(body)
        ready = {name for name, pod in mine.items() if name in wanted and _is_ready(pod)}
        status, now = dict(thing.get("status") or {}), self.now()
        if resource == _LWS:
            size = int(thing["spec"]["leaderWorkerTemplate"].get("size", 1))
            count = int(thing["spec"].get("replicas", 1))
            groups = [
                {name for name, pod in wanted.items() if pod["metadata"]["labels"][f"{_MARK}/group-index"] == str(at)}
                for at in range(count)
            ]
            whole = sum(len(group) == size and group <= ready for group in groups)
        else:
            count, whole = len(wanted), len(ready)
            status |= {"availableReplicas": whole, "observedGeneration": metadata.get("generation", 1)}
        status |= {"replicas": count, "readyReplicas": whole, "updatedReplicas": count}
        value, reason = (
            ("True", "MinimumReplicasAvailable") if whole >= count else ("False", "MinimumReplicasUnavailable")
        )
        status = with_condition(status, "Available", value, reason, f"{whole} of {count} are available", now)
        if status != (thing.get("status") or {}):
            self.status(resource, thing, status)

    @staticmethod
    def _of_deployment(thing: Object) -> dict[str, Object]:
        metadata, template = thing["metadata"], thing["spec"]["template"]
        mark = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]
        found = {}
        for index in range(int(thing["spec"].get("replicas", 1))):
            name = f"{metadata['name']}-{mark}-{index}"
            found[name] = _pod(thing, name, template, {"pod-template-hash": mark})
        return found

    def _of_set(self, thing: Object) -> dict[str, Object]:
        metadata, spec = thing["metadata"], thing["spec"]
        template = spec["leaderWorkerTemplate"]
        size, found = int(template.get("size", 1)), {}
        if not has_service(self.store, metadata["namespace"], metadata["name"]):
            selector = {f"{_MARK}/name": metadata["name"]}
            self.create(service_of(metadata["namespace"], metadata["name"], owner_of(thing), selector))
        for group in range(int(spec.get("replicas", 1))):
            leader = f"{metadata['name']}-{group}"
            for worker in range(size):
                name = leader if worker == 0 else f"{leader}-{worker}"
                marks = {
                    f"{_MARK}/name": metadata["name"],
                    f"{_MARK}/group-index": str(group),
                    f"{_MARK}/worker-index": str(worker),
                }
                chosen = (template.get("leaderTemplate") if worker == 0 else None) or template["workerTemplate"]
                pod = _pod(thing, name, chosen, marks)
                pod["spec"].setdefault("subdomain", metadata["name"])
                pod["spec"].setdefault("hostname", name)
                address = f"{leader}.{metadata['name']}.{metadata['namespace']}"
                told = {"LWS_LEADER_ADDRESS": address, "LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": str(worker)}
                for container in pod["spec"]["containers"]:
                    own = container.get("env") or []
                    container["env"] = [*({"name": key, "value": value} for key, value in told.items()), *own]
                found[name] = pod
        return found


def _is_ready(pod: Object) -> bool:
    found = condition(pod.get("status") or {}, "Ready")
    return found is not None and found["status"] == "True" and not pod["metadata"].get("deletionTimestamp")


def _pod(thing: Object, name: str, template: Object, marks: dict[str, str]) -> Object:
    head = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": thing["metadata"]["namespace"],
            "labels": {**(head.get("labels") or {}), **marks},
            "annotations": dict(head.get("annotations") or {}),
            "ownerReferences": owner_of(thing),
        },
        "spec": copy.deepcopy(template["spec"]),
    }
