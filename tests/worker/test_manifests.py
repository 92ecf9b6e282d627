"""What the pages are told of a manifest: its size and its end, and the policy that a cluster's settings make."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import yaml

from tests.demo_kubernetes import MANIFEST
from worker.manifests import check, marked

pytestmark = pytest.mark.django_db


@pytest.fixture
def pods(cluster: Any) -> Any:
    """The cluster of the other tests, run by Kubernetes."""
    from apps.clusters.kube_models import KubernetesSettings
    from apps.clusters.models import Cluster

    Cluster.objects.filter(pk=cluster.pk).update(kind="kubernetes")
    KubernetesSettings.objects.create(cluster=cluster, observed={"kinds": ["jobset.x-k8s.io/v1alpha2 JobSet"]})
    return Cluster.objects.select_related("kubernetes").get(pk=cluster.pk)


def job(name: str, gpus: int, pods: int = 1, deadline: str = "") -> str:
    return textwrap.dedent(f"""\
        apiVersion: batch/v1
        kind: Job
        metadata: {{name: {name}}}
        spec:
          parallelism: {pods}
          completions: {pods}
          {deadline or "backoffLimit: 0"}
          template:
            spec:
              containers:
              - name: main
                image: registry.example/one:1
                resources: {{limits: {{nvidia.com/gpu: {gpus}, cpu: 2500m, memory: 3Gi}}}}
        """)


def test_pods_with_gpus_count_and_each_holds_as_many_as_the_largest(pods: Any, team: Any) -> None:
    found = check("---\n".join([job("a", 8, 2), job("b", 4), job("launcher", 0)]), pods, team)
    assert found["problems"] == []
    assert (found["pods"], found["nodes"], found["gpus"], found["gpus_per_node"]) == (4, 3, 20, 8)
    assert (found["cpus_per_node"], found["memory_per_node_mib"]) == (3, 3072)
    assert found["name"] == "a"
    bare = check(job("cpu", 0, 3), pods, team)
    assert (bare["nodes"], bare["gpus_per_node"]) == (3, 0)


def test_the_end_is_that_of_the_last_to_end_and_none_where_one_has_none(pods: Any, team: Any) -> None:
    first = job("a", 1, deadline="activeDeadlineSeconds: 90")
    assert check(first, pods, team)["time_limit_min"] == 2
    both = "---\n".join([first, job("b", 1, deadline="activeDeadlineSeconds: 7200")])
    assert check(both, pods, team)["time_limit_min"] == 120
    assert check("---\n".join([first, job("b", 1)]), pods, team)["time_limit_min"] is None
    assert check(MANIFEST, pods, team)["time_limit_min"] == 120


def test_settings_of_the_cluster_are_the_policy(pods: Any, team: Any) -> None:
    other = MANIFEST.replace("jobset.x-k8s.io/v1alpha2", "jobset.x-k8s.io/v1alpha9")
    assert [row["document"] for row in check(other, pods, team)["problems"]] == [1]
    away = MANIFEST.replace("  name: grpo-config\n", "  name: grpo-config\n  namespace: other\n")
    assert [row["path"] for row in check(away, pods, team)["problems"]] == ["metadata.namespace"]
    mine = away.replace("namespace: other", "namespace: nlp")
    assert check(mine, pods, team)["problems"] == []


def test_only_lines_of_the_owner_are_added(pods: Any) -> None:
    sent = marked(MANIFEST, job="job_1", attempt="att_1", team="nlp", owner="owner", queue="nlp")
    kept = [line for line in sent.splitlines() if "quarterdeck.dev" not in line and "kueue" not in line]
    missing = [line for line in MANIFEST.splitlines() if line not in sent.splitlines()]
    assert missing == []
    assert "att_1" in sent
    assert len(kept) - len(MANIFEST.splitlines()) < 8, "no more than the mappings that hold the labels"
    assert marked("a: [", job="j", attempt="a", team="t", owner="o") == "a: ["


def test_the_clusters_own_scheduler_may_be_named(pods: Any, team: Any) -> None:
    named = MANIFEST.replace("restartPolicy: Never\n", "restartPolicy: Never\n              schedulerName: volcano\n")
    assert [row["code"] for row in check(named, pods, team)["problems"]] == ["SchedulerName"]
    pods.kubernetes.scheduler = "volcano"
    assert check(named, pods, team)["problems"] == []


def test_the_policy_knows_efa_and_the_priority_classes_of_the_cluster(pods: Any, team: Any) -> None:
    from apps.clusters.models import Node

    size: dict[str, Any] = {"instance_type": "p5.48xlarge", "gpus": 8, "cpus": 192, "memory_mib": 2_000_000}
    Node.objects.create(cluster=pods, name="n1", labels={"capacity:efa": "32"}, **size)
    Node.objects.create(cluster=pods, name="n2", labels={}, **size)
    asked = job("a", 8).replace("nvidia.com/gpu: 8", "nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 32")
    assert check(asked, pods, team)["problems"] == []
    more = asked.replace("efa: 32", "efa: 33")
    assert [row["code"] for row in check(more, pods, team)["problems"]] == ["TooLargeForAnyNode"]
    first = job("a", 8).replace(
        "    spec:\n      containers", "    spec:\n      priorityClassName: high\n      containers"
    )
    assert [row["code"] for row in check(first, pods, team)["problems"]] == ["PriorityClass"]
    pods.kubernetes.pod_priority_class = "high"
    assert check(first, pods, team)["problems"] == []


@pytest.mark.parametrize(
    ("scheduler", "name", "part", "key"),
    [
        ("volcano", "volcano", "annotations", "scheduling.volcano.sh/queue-name"),
        ("kai", "kai-scheduler", "labels", "kai.scheduler/queue"),
    ],
)
def test_pods_go_to_the_cluster_s_scheduler_and_the_team_s_queue(
    pods: Any, team: Any, scheduler: str, name: str, part: str, key: str
) -> None:
    owner = {"job": "job_1", "attempt": "att_1", "team": "nlp", "owner": "owner"}
    made = yaml.safe_load(marked(job("a", 8), **owner, queue="nlp", scheduler=scheduler))
    template = made["spec"]["template"]
    assert template["spec"]["schedulerName"] == name
    assert template["metadata"][part][key] == "nlp"
    assert "kueue.x-k8s.io/queue-name" not in made["metadata"]["labels"]
    pods.kubernetes.scheduler = scheduler
    assert check(job("a", 8), pods, team)["problems"] == []
    for past in ("default-scheduler", '""'):
        text = job("a", 8).replace(
            "    spec:\n      containers", f"    spec:\n      schedulerName: {past}\n      containers"
        )
        assert [row["code"] for row in check(text, pods, team)["problems"]] == ["SchedulerName"]
