"""Ten jobs, each as a submit to Slurm and as objects of Kubernetes, compared with files to the letter.

``QD_REWRITE_GOLDEN=1 .venv/bin/pytest tests/worker/test_golden_renderings.py`` writes the files anew.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings

from apps.clusters.kube_models import KubernetesSettings
from apps.clusters.models import Cluster, Node
from apps.jobs.models import Attempt
from apps.jobs.services import JobSpec, job_of, job_preview
from tests.conftest import actor_of
from tests.providers.kubernetes import schemas
from worker import jobscript, workloads
from worker.exact_request import exact_request

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "renderings"
JOB, ATTEMPT = "job_01jdz8k3v7q4n5t6x8y9z0abce", "att_01jdz8k3v7q4n5t6x8y9z0abcd"
PLAIN = '#!/bin/bash\ntorchrun train.py --checkpoint-dir "$QD_CHECKPOINT_DIR"\n'
BASE = JobSpec(name="train", script=PLAIN, nodes=1, gpus_per_node=8, gpu_type="h100", time_limit_min=60)
#: The job, what it is written as on Kubernetes, and what its attempt brings.
CASES: dict[str, tuple[JobSpec, str, dict[str, Any]]] = {
    "one-gpu": (replace(BASE, name="debug", gpus_per_node=1, time_limit_min=15), "indexed_job", {}),
    "two-nodes": (replace(BASE, nodes=2), "jobset", {}),
    "four-nodes-pytorchjob": (replace(BASE, name="pretrain", nodes=4, time_limit_min=4320), "pytorchjob", {}),
    "two-nodes-trainjob": (replace(BASE, name="sft", nodes=2, time_limit_min=240), "trainjob", {}),
    "no-gpus": (
        replace(BASE, name="tokenize", gpus_per_node=0, gpu_type="", cpus_per_task=16, memory_per_node_mib=65_536),
        "indexed_job",
        {},
    ),
    "array": (replace(BASE, name="sweep", gpus_per_node=1, array="0-9%4"), "indexed_job", {}),
    "python-script": (replace(BASE, script="#!/usr/bin/env python3\nprint('step 1')\n"), "jobset", {}),
    "environment": (
        replace(BASE, environment={"WANDB_MODE": "offline", "PROMPT": "say \"hi\" & '안녕' $HOME", "EMPTY": ""}),
        "indexed_job",
        {},
    ),
    "tasks-and-memory": (
        replace(BASE, tasks_per_node=4, cpus_per_task=8, memory_per_node_mib=512_000, nodes=2),
        "jobset",
        {},
    ),
    "after-a-lost-node": (
        replace(BASE, nodes=2),
        "jobset",
        {
            "number": 2,
            "resume_from": "/fsx/nlp/job_x/checkpoints/step-40",
            "resume_step": 40,
            "excluded_nodes": ["p5-3"],
        },
    ),
}


@pytest.fixture
def both(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> dict[str, Cluster]:
    """A cluster of Slurm and one of Kubernetes with the same machines."""
    for place in (jobscript, workloads):
        monkeypatch.setattr(place, "runner_source", lambda: b"# the runner, as it is in runner/\n")
    monkeypatch.setattr(settings.CONFIG, "base_url", "https://quarterdeck.example")
    Cluster.objects.filter(pk=cluster.pk).update(working_root="/fsx", observed_api_version="v0.0.42")
    pods = Cluster.objects.create(name="pods", kind="kubernetes", phase="READY", observed_version="v1.34.1")
    KubernetesSettings.objects.create(
        cluster=pods,
        auth="kubeconfig",
        kubeconfig_ref="file:kubeconfig",
        default_image="registry.example/train:2026.11",
        mounts=[{"claim": "fsx", "path": "/fsx"}],
        topology_level="topology.k8s.aws/network-node-layer-2",
        observed={"version": "v1.34.1", "kueue": "v1beta2", "kinds": schemas_served()},
    )
    for node in Node.objects.filter(cluster=cluster):
        node.pk, node.uid, node.cluster = None, "", pods
        node.labels = {"capacity:efa": "32", "capacity:hugepages": "5120"}
        node.save()
    return {"slurm": Cluster.objects.get(pk=cluster.pk), "kubernetes": Cluster.objects.get(pk=pods.pk)}


def schemas_served() -> list[str]:
    return [
        "batch/v1 Job",
        "jobset.x-k8s.io/v1alpha2 JobSet",
        "kubeflow.org/v1 PyTorchJob",
        "trainer.kubeflow.org/v1alpha1 TrainJob",
        "kueue.x-k8s.io/v1beta2 Workload",
    ]


def rendered(name: str, cluster: Cluster, owner: Any, team: Any) -> dict[str, Any]:
    spec, kind, attempt = CASES[name]
    if cluster.is_kubernetes:
        spec = replace(spec, workload_kind=kind)
    actor = actor_of(owner)
    preview = job_preview(actor=actor, team=team, cluster=cluster, spec=spec)
    assert preview.problems == (), preview.problems
    job = job_of(actor=actor, team=team, cluster=cluster, spec=spec, preview=preview)
    job.uid = JOB
    made = Attempt(uid=ATTEMPT, job=job, array=job.array, tasks=job.tasks, **{"number": 1, **attempt})
    return exact_request(job, made)


def compare(path: Path, text: str) -> None:
    if os.environ.get("QD_REWRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path.name} is not there: write it with QD_REWRITE_GOLDEN=1 and read it"
    assert text == path.read_text()


@pytest.mark.parametrize("name", sorted(CASES))
def test_as_a_submit_to_slurm(name: str, both: dict[str, Cluster], owner: Any, team: Any) -> None:
    found = rendered(name, both["slurm"], owner, team)
    assert found["problem"] == ""
    told = {key: found[key] for key in ("method", "path", "headers", "body")}
    compare(GOLDEN / f"{name}.slurm.json", json.dumps(told, indent=2, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("name", sorted(CASES))
def test_as_objects_of_kubernetes(name: str, both: dict[str, Cluster], owner: Any, team: Any) -> None:
    found = rendered(name, both["kubernetes"], owner, team)
    assert found["problem"] == ""
    for thing in yaml.safe_load_all(found["yaml"]):
        assert schemas.faults(thing) == [], thing["kind"]
    compare(GOLDEN / f"{name}.kubernetes.yaml", found["yaml"])


@pytest.mark.parametrize("name", sorted(CASES))
def test_both_ask_for_the_same(name: str, both: dict[str, Cluster], owner: Any, team: Any) -> None:
    spec = CASES[name][0]
    slurm = json.dumps(rendered(name, both["slurm"], owner, team)["body"])
    objects = rendered(name, both["kubernetes"], owner, team)["yaml"]
    for word in (ATTEMPT, JOB, spec.name, *(CASES[name][2].get("excluded_nodes") or ())):
        assert word in slurm
        assert word in objects
    limits = [
        row["limits"].get("nvidia.com/gpu", "0")
        for thing in yaml.safe_load_all(objects)
        for row in _resources(thing)
        if "limits" in row
    ]
    assert set(limits) == ({str(spec.gpus_per_node)} if spec.gpus_per_node else {"0"} if limits else set())


def _resources(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        own = [value["resources"]] if isinstance(value.get("resources"), dict) else []
        return own + [row for inner in value.values() for row in _resources(inner)]
    return [row for inner in value for row in _resources(inner)] if isinstance(value, list) else []
