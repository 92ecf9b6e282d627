"""The templates for Kubernetes: each makes a manifest that is taken, counted to its most, and kept as its job's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.jobs.kube_starters import KUBERNETES_STARTERS
from apps.jobs.models import Job
from apps.jobs.services import JobSpec, job_preview, job_submit
from apps.jobs.template_rules import check_content, fill_template, yaml_text
from apps.jobs.template_services import template_create
from apps.teams.permissions import system_actor
from tests.conftest import actor_of
from worker.manifests import check

pytestmark = pytest.mark.django_db
KINDS = [
    "jobset.x-k8s.io/v1alpha2 JobSet",
    "kubeflow.org/v1 PyTorchJob",
    "sagemaker.amazonaws.com/v1 HyperPodPyTorchJob",
]
#: Name → (pods, GPUs, minutes) by the defaults.
SIZES = {
    "hyperpod-elastic": (8, 64, None),
    "hyperpod-checkpointless": (5, 40, None),
    "elastic-pytorchjob": (8, 64, 1440),
    "self-mending-jobset": (4, 32, 1440),
}


@pytest.fixture
def pods(cluster: Any) -> Any:
    """The cluster of the other tests with eight nodes, run by Kubernetes."""
    from apps.clusters.kube_models import KubernetesSettings
    from apps.clusters.models import Cluster, Node

    Cluster.objects.filter(pk=cluster.pk).update(kind="kubernetes", partition="", observed_partitions=[])
    KubernetesSettings.objects.create(cluster=cluster, observed={"kinds": KINDS})
    for number in range(5, 9):
        Node.objects.create(
            cluster=cluster, name=f"n{number}", instance_type="p5.48xlarge", phase="READY", gpu_type="h100", gpus=8
        )
    return Cluster.objects.select_related("kubernetes").get(pk=cluster.pk)


@pytest.mark.parametrize("name", sorted(KUBERNETES_STARTERS))
def test_each_is_well_formed_and_counted_to_its_most(name: str, pods: Any, team: Any) -> None:
    content = KUBERNETES_STARTERS[name]
    assert check_content(content) == []
    text, problems = fill_template(content.script, content.parameters, {}, name, yaml_text)
    assert problems == []
    assert "{{" not in text
    found = check(text, pods, team)
    assert found["problems"] == []
    assert (found["pods"], found["gpus"], found["time_limit_min"]) == SIZES[name]


def test_a_cluster_without_the_kind_says_so(pods: Any, team: Any) -> None:
    pods.kubernetes.observed = {"kinds": KINDS[:2]}
    content = KUBERNETES_STARTERS["hyperpod-elastic"]
    text, _problems = fill_template(content.script, content.parameters, {}, "t", yaml_text)
    (flaw,) = check(text, pods, team)["problems"]
    assert "HyperPodPyTorchJob" in str(flaw["text"])


def test_text_is_put_in_as_yaml_whatever_is_in_it(pods: Any, team: Any) -> None:
    content = KUBERNETES_STARTERS["elastic-pytorchjob"]
    nasty = "x\": }\\ #'{{ image }} &a *b !c"
    text, problems = fill_template(content.script, content.parameters, {"program": nasty}, "t", yaml_text)
    assert problems == []
    assert f"- {json.dumps(nasty)}" in text
    assert check(text, pods, team)["problems"] == []


def test_a_job_is_made_of_one(pods: Any, team: Any, owner: Any, as_user: Any) -> None:
    content = KUBERNETES_STARTERS["hyperpod-elastic"]
    template = template_create(actor=system_actor("test"), name="hyperpod-elastic", teams=[], content=content)
    spec = JobSpec(
        name="grow",
        nodes=1,
        gpus_per_node=0,
        time_limit_min=90,
        workload_kind="manifest",
        template=template,
        template_parameters={"most_nodes": 4, "object_name": "grow"},
    )
    preview = job_preview(actor=actor_of(owner), team=team, cluster=pods, spec=spec)
    assert preview.problems == ()
    assert preview.gpus == 32
    job = job_submit(actor=actor_of(owner), team=team, cluster=pods, spec=spec)
    assert (job.nodes, job.gpus, job.time_limit_min, job.workload_kind) == (4, 32, 90, "manifest")
    assert 'name: "grow"' in job.manifest
    assert job.script == ""
    client = as_user(owner)
    body = client.send("GET", f"jobs/{job.uid}/spec").json()
    assert body["template"] == "hyperpod-elastic"
    assert "manifest" not in body
    again = {"team": "nlp", "cluster": "lab", "name": "again", "template": "hyperpod-elastic"}
    more = {"template_parameters": {"most_nodes": 2}}
    answer = client.send("POST", "jobs", {**again, **more}, Idempotency_Key="k1")
    assert answer.status_code == 202, answer.content
    assert Job.objects.get(name="again").gpus == 16
    wrong = {"template_parameters": {"most_nodes": 1001}}
    refused = client.send("POST", "jobs", {**again, **wrong}, Idempotency_Key="k2").json()
    assert [row["pointer"] for row in refused["errors"]][0] == "/template_parameters/most_nodes"


def test_slurm_takes_no_template_of_a_manifest(cluster: Any, team: Any, owner: Any) -> None:
    content = KUBERNETES_STARTERS["self-mending-jobset"]
    template = template_create(actor=system_actor("test"), name="mending", teams=[], content=content)
    spec = JobSpec(name="a", nodes=1, gpus_per_node=0, time_limit_min=5, workload_kind="manifest", template=template)
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
    assert any("runs Slurm" in problem.detail for problem in preview.problems)
