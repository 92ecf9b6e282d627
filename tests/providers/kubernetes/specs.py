"""Ten jobs of different sorts, as values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from worker.providers.workload_values import ClaimMount, Toleration, TopologyWish, WorkloadSpec

TRAIN = "#!/bin/bash\nset -eu\ntorchrun train.py --steps 1000\n"
PLAIN_JOB: dict[str, Any] = {
    "name": "pretrain",
    "uid": "att_01jdz8k3v7q4n5t6x8y9z0abcd",
    "job_uid": "job_01jdz8k3v7q4n5t6x8y9z0abce",
    "team": "vision",
    "owner": "owner",
    "namespace": "team-vision",
    "image": "registry.example/vision/train:2026.11",
    "nodes": 1,
    "time_limit_min": 60,
    "script": TRAIN,
    "queue": "vision",
}


def workload(**values: Any) -> WorkloadSpec:
    return WorkloadSpec(**{**PLAIN_JOB, **values})


P5EN = {
    "gpus_per_node": 8,
    "gpu_type": "h200",
    "cpus_per_node": 180,
    "memory_mib": 1_900_000,
    "instance_types": ("p5en.48xlarge",),
}
JOBS: dict[str, WorkloadSpec] = {
    "one-gpu-script": workload(gpus_per_node=1, cpus_per_node=8, memory_mib=65536, instance_types=("g6e.xlarge",)),
    "cpu-command": workload(name="prepare", script="", command=("python", "-m", "prepare", "--all"), cpus_per_node=16),
    "p5en-4-topology": workload(
        **P5EN,
        nodes=4,
        topology=TopologyWish("topology.k8s.aws/network-node-layer-3", is_required=True),
        priority_class="high",
        mounts=(ClaimMount("fsx-vision", "/fsx"), ClaimMount("fsx-vision", "/data", "datasets", is_read_only=True)),
        environment={"QD_CHECKPOINT_DIR": "/fsx/checkpoints", "NCCL_DEBUG": "INFO"},
    ),
    "p5-64-restarts": workload(
        gpus_per_node=8,
        cpus_per_node=180,
        memory_mib=1_900_000,
        instance_types=("p5.48xlarge", "p5e.48xlarge"),
        nodes=64,
        max_restarts=3,
        topology=TopologyWish("topology.k8s.aws/network-node-layer-2"),
        excluded_nodes=("ip-10-0-1-7.ec2.internal",),
        tolerations=(Toleration("quarterdeck.dev/block", "cr-0a1b", "NoSchedule"),),
        grace_s=600,
    ),
    "hyperpod-auto-resume": workload(
        gpus_per_node=8,
        cpus_per_node=160,
        memory_mib=1_900_000,
        instance_types=("ml.p5en.48xlarge",),
        nodes=8,
        auto_resume_retries=2,
    ),
    "b300-2-runner": workload(
        gpus_per_node=8,
        cpus_per_node=180,
        memory_mib=3_800_000,
        instance_types=("p6-b300.48xlarge",),
        nodes=2,
        runner="print('runner')\n",
        secret_environment={"QD_INGEST_TOKEN": "not-in-the-clear"},
        environment={"QD_INGEST_URL": "https://portal.example/api/v1/ingest/attempts/att/events"},
    ),
    "gb200-4-nodes": workload(
        gpus_per_node=4,
        cpus_per_node=128,
        memory_mib=900_000,
        instance_types=("p6e-gb200.36xlarge",),
        nodes=4,
        processes_per_node=4,
        shm_mib=200_000,
    ),
    "array-of-20": workload(
        array=tuple(range(0, 40, 2)), array_at_once=4, gpus_per_node=1, memory_mib=32768, runner="print('runner')\n"
    ),
    "plain-gang": workload(scheduler="plain", queue="", nodes=2, gpus_per_node=8, instance_types=("p4d.24xlarge",)),
    "volcano-gang": workload(
        scheduler="volcano",
        queue="research",
        nodes=3,
        gpus_per_node=8,
        instance_types=("p5.48xlarge",),
        pod_priority_class="training",
        service_account="trainer",
        image_pull_secrets=("registry",),
        team="Équipe Vision & Langage",
        owner="first.last+tag@example.org",
        labels={"project": "scaling laws"},
    ),
}
#: Beyond the ten, a runtime that the cluster has.
CLUSTER_RUNTIME = replace(JOBS["p5en-4-topology"], runtime="torch-distributed")
KAI_GANG = replace(JOBS["volcano-gang"], scheduler="kai")
