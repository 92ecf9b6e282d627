"""An API server for the contract of Kubernetes, pretend or any by its kubeconfig, with the test as its only actor.

No controller, scheduler or kubelet is needed: pods, their ends and Kueue's words are written by the test itself. What
it needs (a namespace, nodes) it makes under names of its own and removes again.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sandbox.world import World
from tests import kubernetes_site
from tests.kubernetes_site import until
from tests.providers.kubernetes.specs import workload
from worker.providers import values as v
from worker.providers.errors import NotFound, ProviderError
from worker.providers.kubernetes import access
from worker.providers.kubernetes.calls import JSON_PATCH, Caller
from worker.providers.kubernetes.client import KubernetesAccess
from worker.providers.kubernetes.names import object_name
from worker.providers.kubernetes.resources import JOBS, NAMESPACES, NODES, PODS, Resource
from worker.providers.kubernetes.scheduler import KubernetesScheduler, KubernetesSite
from worker.providers.workload_values import INDEXED_JOB, JOBSET, KUEUE, WorkloadSubmit

KUBECONFIG = "QD_TEST_KUBECONFIG"
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class KubeSite:
    """One namespace of one server."""

    def __init__(self, how: KubernetesAccess) -> None:
        self.access = how
        self.caller = Caller(how)
        self.mark = secrets.token_hex(4)
        self.namespace = f"qd-contract-{self.mark}"
        self.nodes: list[str] = []
        self._open: list[KubernetesScheduler] = []

    def scheduler(self, kind: str = KUEUE) -> KubernetesScheduler:
        site = KubernetesSite(name="contract", scheduler=kind)
        made = KubernetesScheduler(self.access, site)
        self._open.append(made)
        return made

    def __enter__(self) -> KubeSite:
        named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self.caller.create(NAMESPACES.path(), named)
        # Without a controller manager nobody makes it, and no pod is taken without.
        with suppress(ProviderError):
            accounts = Resource("", "v1", "serviceaccounts", "ServiceAccount")
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            self.caller.create(accounts.path(self.namespace), account)
        return self

    def __exit__(self, *_: object) -> None:
        for made in self._open:
            made.close()
        served = self.caller.served()
        for resource in served.resources:
            if resource.is_namespaced and {"list", "delete"} <= resource.verbs and resource.plural != "events":
                for thing in self.caller.listed(resource.path(self.namespace))[0]:
                    path = resource.path(self.namespace, thing["metadata"]["name"])
                    with suppress(ProviderError):
                        if thing["metadata"].get("finalizers"):
                            self.caller.patch(path, {"metadata": {"finalizers": None}})
                        self.caller.delete(path, grace_s=0)
        for name in self.nodes:
            with suppress(NotFound):
                self.caller.delete(NODES.path("", name))
        with suppress(NotFound):
            self.caller.delete(NAMESPACES.path("", self.namespace))
        with suppress(ProviderError):
            head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
            head = {**head, "spec": {"finalizers": []}}
            self.caller._json("PUT", NAMESPACES.path("", self.namespace, "finalize"), None, head, doing="finalize")
        self.caller.close()

    # --- what the test asks for

    def request(self, uid: str = "", kind: str = JOBSET, **values: Any) -> WorkloadSubmit:
        uid = uid or f"att_{self.mark}{secrets.token_hex(4)}"
        spec = workload(uid=uid, namespace=self.namespace, **values)
        return WorkloadSubmit(
            uid=uid,
            job_uid=spec.job_uid,
            name=spec.name,
            team=spec.team,
            owner=spec.owner,
            namespace=self.namespace,
            queue=spec.queue,
            kind=kind,
            spec=spec,
        )

    def manifest(self, text: str, uid: str = "", queue: str = "vision") -> WorkloadSubmit:
        uid = uid or f"att_{self.mark}{secrets.token_hex(4)}"
        return WorkloadSubmit(
            uid=uid,
            job_uid="job_1",
            name="own",
            team="vision",
            owner="owner",
            namespace=self.namespace,
            queue=queue,
            manifest=text,
        )

    def things(self, resource: Resource) -> list[dict[str, Any]]:
        return self.caller.listed(resource.path(self.namespace))[0]

    # --- what a cluster's own components would do

    def node(self, gpus: int = 8, **labels: str) -> str:
        name = f"qd-node-{self.mark}-{len(self.nodes)}"
        self.nodes.append(name)
        size = {"cpu": "192", "memory": "2000Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        told = {"kubernetes.io/hostname": name, "node.kubernetes.io/instance-type": "p5en.48xlarge", **labels}
        self.caller.create(
            NODES.path(),
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": told},
                "spec": {"providerID": f"aws:///us-east-2a/i-{self.mark}{len(self.nodes):09x}"},
            },
        )
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now()}
        status = {"capacity": size, "allocatable": size, "conditions": [ready]}
        self.caller.patch(NODES.path("", name, "status"), {"status": status})
        # A server without a node controller leaves the taint of nodes that have not reported.
        with suppress(ProviderError):
            self.caller.patch(NODES.path("", name), {"spec": {"taints": None}})
        return name

    def pod(self, owner: dict[str, Any], index: int, node: str = "", **container: Any) -> dict[str, Any]:
        """A pod of a workload, as its controller makes it."""
        head = owner["metadata"]
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": head["name"],
            "uid": head["uid"],
            "controller": True,
        }
        notes = {"batch.kubernetes.io/job-completion-index": str(index)}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{head['name']}-{index}-{secrets.token_hex(2)}",
                "labels": dict(head.get("labels") or {}),
                "annotations": {**(head.get("annotations") or {}), **notes},
                "ownerReferences": [reference],
            },
            "spec": {
                "restartPolicy": "Never",
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": "main",
                        "image": "local/test:1",
                        "resources": {"limits": {"nvidia.com/gpu": "8", "memory": "64Gi", "cpu": "8"}},
                        **container,
                    }
                ],
                **({"nodeName": node} if node else {}),
            },
        }
        return self.caller.create(PODS.path(self.namespace), body)

    def pod_status(self, pod: dict[str, Any], phase: str, **more: Any) -> None:
        status = {"phase": phase, "startTime": now(), **more}
        self.caller.patch(PODS.path(self.namespace, pod["metadata"]["name"], "status"), {"status": status})

    def ended(self, code: int, reason: str = "Error") -> list[dict[str, Any]]:
        end = {"exitCode": code, "reason": reason, "startedAt": now(), "finishedAt": now()}
        return [
            {
                "name": "main",
                "image": "local/test:1",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": end},
            }
        ]

    def status(self, resource: Resource, name: str, *conditions: dict[str, Any], **more: Any) -> None:
        rows = [{"lastTransitionTime": now(), "reason": "Test", "message": "", **row} for row in conditions]
        body = {"status": {"conditions": rows, **more}}
        self.caller.patch(resource.path(self.namespace, name, "status"), body)

    def begin(self, resource: Resource, name: str) -> dict[str, Any]:
        """Let a workload begin, as Kueue does once it is admitted."""
        path = resource.path(self.namespace, name)
        found = self.caller.patch(path, [{"op": "replace", "path": "/spec/suspend", "value": False}], JSON_PATCH)
        return {**found, "apiVersion": resource.api_version, "kind": resource.kind}

    def workload(self, owner: dict[str, Any], uid_note: str = "", *, priority: int = 0) -> str:
        """Kueue's Workload of a job."""
        head = owner["metadata"]
        name = f"w-{head['name']}"[:60]
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": head["name"], "uid": head["uid"]}
        container = {"name": "main", "image": "local/test:1", "resources": {"requests": {"nvidia.com/gpu": "8"}}}
        self.caller.create(
            WORKLOADS.path(self.namespace),
            {
                "apiVersion": WORKLOADS.api_version,
                "kind": "Workload",
                "metadata": {"name": name, "ownerReferences": [{**reference, "controller": True}]},
                "spec": {
                    "queueName": "vision",
                    "priority": priority,
                    "podSets": [
                        {
                            "name": "main",
                            "count": 2,
                            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
                        }
                    ],
                },
            },
        )
        return name


def seen_in(scheduler: KubernetesScheduler, scheduler_id: str) -> v.SchedulerJob | None:
    jobs = scheduler.queue().jobs
    assert jobs is not None
    return next((job for job in jobs if job.scheduler_id == scheduler_id), None)


def until_state(scheduler: KubernetesScheduler, scheduler_id: str, state: str) -> v.SchedulerJob:
    def look() -> v.SchedulerJob | None:
        job = seen_in(scheduler, scheduler_id)
        return job if job is not None and job.state == state else None

    return until(f"{scheduler_id} is {state}", look)


def running_job(
    site: KubeSite, scheduler: KubernetesScheduler, nodes: int = 2
) -> tuple[str, dict[str, Any], list[Any]]:
    """An Indexed Job whose pods run on nodes of the test."""
    request = site.request(kind=INDEXED_JOB, nodes=nodes, gpus_per_node=8, cpus_per_node=8, memory_mib=65536)
    receipt = scheduler.submit(request)
    job = site.begin(JOBS, object_name(request.uid))
    places = [site.node() for _ in range(nodes)]
    pods = [site.pod(job, index, places[index]) for index in range(nodes)]
    for pod in pods:
        site.pod_status(pod, "Running")
    until_state(scheduler, receipt.scheduler_id, "RUNNING")
    return receipt.scheduler_id, job, pods


@contextmanager
def kube_site(folder: Path) -> Iterator[KubeSite]:
    """The server of QD_TEST_KUBECONFIG, else the pretend one."""
    path = os.environ.get(KUBECONFIG, "")
    if path:
        with KubeSite(access.of_kubeconfig(Path(path).read_text())) as site:
            yield site
        return
    with (
        kubernetes_site.cluster(folder, world=World()) as made,
        KubeSite(KubernetesAccess(made.url, token=made.token)) as site,
    ):
        yield site
