"""A whole pretend Kubernetes cluster behind a row of the database, with a team's namespace, queue and two GPU nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.kube_models import KubernetesSettings, TeamNamespace
from apps.clusters.models import Cluster
from apps.jobs.models import Attempt, Job
from sandbox.kubernetes import Cluster as PretendCluster
from sandbox.world import World
from worker import kube_doors, workloads
from worker.providers.kubernetes import access
from worker.providers.kubernetes.calls import Caller
from worker.providers.kubernetes.resources import PODS

SECRET = "TEST_KUBECONFIG"
GPU_NODE = {"cpu": "192", "memory": "2000Gi", "nvidia.com/gpu": "8"}


class KubeWorld:
    """The pretend cluster, its row, and visits until something holds."""

    def __init__(self, pretend: PretendCluster, row: Any, work: Callable[..., int]) -> None:
        self.pretend = pretend
        self.row = row
        self.work = work

    def node(self, name: str, **labels: str) -> None:
        told = {"node.kubernetes.io/instance-type": "p5.48xlarge", "eks.amazonaws.com/nodegroup": "p5", **labels}
        self.pretend.kubelets.add_node(name, GPU_NODE, told)
        rows = self.row.nodes.filter(name=name, phase="READY")
        self.until(f"node {name} is read", rows.exists, "cluster.nodes")

    def occupy(self, node: str) -> None:
        """A pod of somebody else that takes all GPUs of a node."""
        container = {
            "name": "a",
            "image": "local/test:1",
            "command": ["sleep", "60"],
            "resources": {"limits": {"nvidia.com/gpu": "8"}},
        }
        spec = {"restartPolicy": "Never", "nodeName": node, "containers": [container]}
        head = {"name": f"on-{node}", "namespace": "default"}
        self.pretend.api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec})

    def free(self, node: str) -> None:
        """It ends."""
        made = Caller(access.of_kubeconfig(json.dumps(self.pretend.api.kubeconfig())))
        made.delete(PODS.path("default", f"on-{node}"), grace_s=0)
        made.close()

    def until(self, what: str, look: Callable[[], Any], *kinds: str, timeout_s: float = 60.0) -> Any:
        """Make visits of these kinds (all without) until ``look`` finds something."""
        from apps.intents.models import Intent

        chosen = kinds or ("job.reconcile", "cluster.queue", "job.act")
        end = time.monotonic() + timeout_s
        while True:
            from apps.core import clock
            from apps.intents.services import intent_ask

            for kind in chosen:
                if kind.startswith("cluster."):
                    intent_ask(kind, self.row.uid)
            Cluster.objects.filter(pk=self.row.pk).update(queue_read_at=None)
            Intent.objects.update(due_at=clock.now())
            self.work(*chosen, most=12)
            if found := look():
                return found
            assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}; {self.state()}"
            time.sleep(0.1)

    def state(self) -> list[Any]:
        columns = ("phase", "observed_state", "observed_reason", "observed_words", "message", "scheduler_id")
        return [*Attempt.objects.values_list(*columns), *Job.objects.values_list("phase", "message")]

    def count(self, resource: str, namespace: str = "nlp") -> int:
        return len(list(self.pretend.api.store.scan(resource, namespace)))


@contextmanager
def kube_world(
    folder: Path, cluster: Any, team: Any, work: Callable[..., int], monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Iterator[KubeWorld]:
    """The Slurm cluster of the other tests, run by a pretend Kubernetes instead."""
    pretend = PretendCluster(World(), folder, name="lab", eviction_s=0.5, restart_s=0.1)
    pretend.start()
    try:
        # Nobody listens to a runner here, and it would try to be heard for a while before it ends.
        monkeypatch.setattr(workloads, "runner_source", lambda: b"")
        monkeypatch.setenv(SECRET, json.dumps(pretend.api.kubeconfig()))
        cluster.nodes.all().delete()
        Cluster.objects.filter(pk=cluster.pk).update(
            kind="kubernetes",
            api_url="",
            user_name="",
            token_ref="",
            working_root="",
            partition="",
            observed_partitions=[],
            observed_max_time_min=None,
        )
        wanted = {"auth": "kubeconfig", "kubeconfig_ref": f"env:{SECRET}", "default_image": "local/test:1"}
        KubernetesSettings.objects.create(cluster=cluster, **{**wanted, "scheduler": "plain", **settings})
        TeamNamespace.objects.create(cluster=cluster, team=team, namespace="nlp", queue="nlp")
        row = Cluster.objects.select_related("account", "kubernetes").get(pk=cluster.pk)
        pretend.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nlp"}})
        yield KubeWorld(pretend, row, work)
    finally:
        kube_doors.close_all()
        pretend.stop()
