"""Rows of a cluster that runs Kubernetes, with jobs that wait, run and ended badly there."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from apps.core.said import said
from tests.demo_rows import DemoRows, _Seed

CLUSTER = "kepler"
IMAGE = "registry.example.org/train/pytorch:2.9-cuda13"
KINDS = [
    "batch/v1 Job",
    "v1 Pod",
    "jobset.x-k8s.io/v1alpha2 JobSet",
    "kubeflow.org/v1 PyTorchJob",
    "kueue.x-k8s.io/v1beta2 Workload",
    "sagemaker.amazonaws.com/v1 HyperPodPyTorchJob",
]
RIVAL = {"name": "asr-final", "team": "speech", "priority": "high"}
TAKEN = said("%(name)s of %(team)s took its place by its priority, %(priority)s.", **RIVAL)
OOM = said(
    "%(container)s used more memory than its limit of %(limit)s and was killed.", container="main", limit="64 GiB"
)
SCRIPT = """#!/bin/bash
set -u
torchrun --nnodes={nodes} --nproc-per-node=8 train.py --config configs/{name}.yaml --checkpoint-dir "$QD_CHECKPOINT_DIR"
"""

MANIFEST = """apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: grpo-rollout   # the name our dashboards know
spec:
  replicatedJobs:
    - name: learner
      replicas: 1
      template:
        spec:
          parallelism: 1
          completions: 1
          activeDeadlineSeconds: 7200
          template:
            spec:
              restartPolicy: Never
              containers:
                - name: main
                  image: registry.example.org/rl/learner:4.2
                  command: ["python", "-m", "rl.learner"]
                  resources:
                    limits: {nvidia.com/gpu: 8}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: grpo-config
data:
  beta: "0.04"
"""


def kubernetes_cluster(rows: DemoRows, now: Any) -> Any:
    """A ready cluster of four machines of 8 H100."""
    from apps.clusters.kube_models import KubernetesSettings, TeamNamespace
    from apps.clusters.models import Cluster, Node
    from apps.connections.models import CloudAccount

    cluster = Cluster.objects.create(
        name=CLUSTER,
        kind="kubernetes",
        account=CloudAccount.objects.filter(name="research").first(),
        phase="READY",
        phase_since=now - timedelta(days=1),
        observed_version="v1.34.2",
        queue_as_of=now,
        queue_read_at=now,
        nodes_read_at=now,
        observed_at=now,
    )
    KubernetesSettings.objects.create(
        cluster=cluster,
        auth="kubeconfig",
        kubeconfig_ref="file:kubeconfig-kepler",
        default_image=IMAGE,
        default_kind="jobset",
        mounts=[{"claim": "fsx", "path": "/fsx", "sub_path": "", "read_only": False}],
        priority_classes=["low", "high"],
        observed={"version": "v1.34.2", "kinds": KINDS, "kueue": "v1beta2"},
    )
    TeamNamespace.objects.create(cluster=cluster, team=rows.teams["nlp"], namespace="nlp")
    rows.clusters[CLUSTER] = cluster
    for number in range(1, 5):
        node = Node.objects.create(
            cluster=cluster,
            name=f"ip-10-2-0-{number}.ec2.internal",
            provider_id=f"i-0kepler{number:08d}",
            instance_type="p5.48xlarge",
            phase="READY",
            phase_since=now - timedelta(days=1),
            gpu_type="h100",
            gpus=8,
            cpus=192,
            memory_mib=2_097_152,
            partitions=["train"],
            observed_state="Ready",
            observed_at=now,
        )
        rows.nodes[node.name] = node
    return cluster


class _Kube(_Seed):
    """The portal's own verbs on that cluster."""

    def kube_job(self, name: str, ago: float, nodes: int, **more: Any) -> Any:
        from apps.jobs.services import JobSpec, job_submit

        with self.ago(ago):
            job = job_submit(
                actor=self.actor("owner"),
                team=self.rows.teams["nlp"],
                cluster=self.rows.clusters[CLUSTER],
                spec=JobSpec(
                    name=name,
                    nodes=nodes,
                    gpus_per_node=8,
                    gpu_type="h100",
                    cpus_per_task=96,
                    time_limit_min=240,
                    script=SCRIPT.format(name=name, nodes=nodes),
                    **more,
                ),
            )
        self.rows.jobs[name] = job
        return job

    def manifest_job(self, name: str, ago: float, **more: Any) -> Any:
        from apps.jobs.services import JobSpec, job_submit

        with self.ago(ago):
            job = job_submit(
                actor=self.actor("owner"),
                team=self.rows.teams["nlp"],
                cluster=self.rows.clusters[CLUSTER],
                spec=JobSpec(name=name, nodes=1, gpus_per_node=0, time_limit_min=0, manifest=MANIFEST, **more),
            )
        self.rows.jobs[name] = job
        return job

    def kube_queue(self, job: Any, ago: float, words: Any, reason: str = "") -> Any:
        from apps.jobs.models import Attempt
        from apps.jobs.observations import attempt_submitted, attempt_submitting

        attempt = self.attempt(job)
        kinds = {"jobset": "JobSet", "pytorchjob": "PyTorchJob", "manifest": "Manifest"}
        kind = kinds.get(job.workload_kind, "Job")
        with self.ago(ago) as at:
            attempt_submitting(attempt)
            attempt_submitted(attempt, f"nlp/{kind}/qd-{attempt.uid.replace('_', '-').lower()}")
            Attempt.objects.filter(pk=attempt.pk).update(
                observed_state="PENDING", observed_reason=reason, observed_words=words, observed_at=at
            )
        attempt.refresh_from_db()
        return attempt

    def happen(self, attempt: Any, ago: float, code: str, text: Any, *, is_bad: bool = False) -> None:
        from apps.jobs.models import JobHappening

        at = self.now - timedelta(minutes=ago)
        JobHappening.objects.create(attempt=attempt, key=f"{code}-{ago}", code=code, text=text, is_bad=is_bad, at=at)

    def pod(self, attempt: Any, rank: int, node: str, exit_code: int | None = None) -> None:
        from apps.jobs.models import LogChunk, RunnerStream

        name = f"pod-{rank}-{attempt.uid[-8:]}"
        text = f"[rank{rank}] NCCL INFO comm up\n"
        RunnerStream.objects.create(
            attempt=attempt,
            runner_id=name,
            role="pod",
            node=node,
            rank=rank,
            log_bytes=len(text),
            heartbeat_at=self.now - timedelta(seconds=6),
            exit_code=exit_code,
        )
        LogChunk.objects.create(
            attempt=attempt, runner_id=name, stream="stdout", offset=0, size=len(text), text=text, at=self.now
        )

    def kube_start(self, job: Any, ago: float, nodes: list[str]) -> Any:
        from apps.jobs.models import Attempt
        from apps.jobs.observations import Seen, attempt_observe, attempt_running

        attempt = self.kube_queue(job, ago + 1, "")
        with self.ago(ago) as at:
            attempt_observe(attempt, Seen("RUNNING", "", tuple(nodes), at, None, None, None, None))
            attempt_running(attempt)
            Attempt.objects.filter(pk=attempt.pk).update(heartbeat_at=self.now - timedelta(seconds=5))
        return attempt


def demo_kubernetes(rows: DemoRows) -> DemoRows:
    """Add the cluster and its jobs to the demo site."""
    from apps.costs.services import budget_set
    from apps.jobs.kube_starters import KUBERNETES_STARTERS
    from apps.jobs.models import Job, RunnerStream
    from apps.jobs.template_services import template_create
    from apps.quotas.services import quota_set

    seed = _Kube()
    seed.rows = rows
    admin = seed.actor("admin")
    quota_set(actor=admin, team=rows.teams["nlp"], gpus=240)
    budget_set(actor=admin, team=rows.teams["nlp"], usd_per_month=Decimal(140_000))
    kubernetes_cluster(rows, seed.now)
    for name, content in KUBERNETES_STARTERS.items():
        template_create(actor=admin, name=name, teams=[], content=content)
    job = seed.kube_job("vit-huge", 95, 2, workload_kind="jobset")
    attempt = seed.kube_start(job, 92, ["ip-10-2-0-1.ec2.internal", "ip-10-2-0-2.ec2.internal"])
    seed.train(attempt, 92, 0.1, 0, 9_000, 30_000)
    job = seed.kube_job("clip-align", 20, 2, priority_class="high")
    words = said(
        "%(one)s %(two)s",
        one=TAKEN,
        two=said(
            "%(more)s more of %(resource)s are needed in %(flavor)s than are free for its team.",
            more=8,
            resource="nvidia.com/gpu",
            flavor="p5-48xlarge",
        ),
    )
    waits = seed.kube_queue(job, 19, words, "QuotaInUse")
    seed.happen(waits, 18, "Preempted", TAKEN, is_bad=True)
    seed.happen(waits, 17.5, "Queued", said("It waits in its queue; Kueue has not looked at it yet."))
    for rank in range(2):
        RunnerStream.objects.filter(attempt=attempt, runner_id=f"{attempt.uid}-{rank}").update(role="rank", rank=rank)
    job = seed.kube_job("dataset-tokenize", 70, 1, workload_kind="indexed_job", image="registry.example.org/data:9")
    attempt = seed.kube_start(job, 66, ["ip-10-2-0-4.ec2.internal"])
    seed.pod(attempt, 0, "ip-10-2-0-4.ec2.internal", exit_code=137)
    seed.happen(attempt, 61, "OOMKilled", OOM, is_bad=True)
    seed.end(job, attempt, 60, "OUT_OF_MEMORY", 137, "FAILED", "OutOfMemory", "FAILED")
    Job.objects.filter(pk=job.pk).update(message=OOM)
    seed.kube_start(seed.manifest_job("grpo-rollout", 31), 30, ["ip-10-2-0-3.ec2.internal"])
    return rows
