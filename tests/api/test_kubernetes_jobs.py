"""Jobs on Kubernetes through the API: the members of a submit, what either scheduler refuses, the dry run."""

from __future__ import annotations

from typing import Any

import pytest

from apps.jobs.models import Job
from tests.api.test_behaviour import SUBMIT, problem

pytestmark = pytest.mark.django_db
IMAGE = "registry.example.org/pytorch:2.9"


@pytest.fixture
def pods(cluster: Any) -> Any:
    """The cluster of the other tests, run by Kubernetes."""
    from apps.clusters.kube_models import KubernetesSettings
    from apps.clusters.models import Cluster

    Cluster.objects.filter(pk=cluster.pk).update(kind="kubernetes", partition="", observed_partitions=[])
    cluster.refresh_from_db()
    KubernetesSettings.objects.create(
        cluster=cluster, default_image=IMAGE, observed={"kinds": ["batch/v1 Job", "jobset.x-k8s.io/v1alpha2 JobSet"]}
    )
    return cluster


def test_a_submit_gets_the_clusters_image_and_a_kind(as_user: Any, owner: Any, pods: Any) -> None:
    client = as_user(owner)
    answer = client.send("POST", "jobs", SUBMIT, Idempotency_Key="k1")
    assert answer.status_code == 202, answer.content
    body = answer.json()
    assert (body["image"], body["workload_kind"]) == (IMAGE, "indexed_job")
    own = {**SUBMIT, "name": "own", "image": "other/one:2", "workload_kind": "jobset", "priority_class": "high"}
    body = client.send("POST", "jobs", own, Idempotency_Key="k2").json()
    assert (body["image"], body["workload_kind"], body["priority_class"]) == ("other/one:2", "jobset", "high")
    again = client.send("GET", f"jobs/{body['uid']}/spec").json()
    assert (again["image"], again["workload_kind"], again["priority_class"]) == ("other/one:2", "jobset", "high")
    listed = client.send("GET", "jobs?cluster_kind=kubernetes").json()["results"]
    assert {row["name"] for row in listed} == {"train", "own"}
    assert client.send("GET", "jobs?cluster_kind=eks").json()["results"] == []
    problem(client.send("GET", "jobs?cluster_kind=abacus"), 400, "BadQuery")


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"partition": "gpu"}, "/partition"),
        ({"slurm_options": ["--switches=1"]}, "/slurm_options"),
        ({"qos": "long"}, "/slurm_options"),
        ({"image": "a\nb"}, "/image"),
        ({"image": "-"}, "/image"),
        ({"workload_kind": "trainjob"}, "/workload_kind"),
        ({"workload_kind": "manifest"}, "/workload_kind"),
        ({"priority_class": "Not a name"}, "/priority_class"),
        ({"dependency": "singleton"}, "/dependency"),
        ({"array": "0-3"}, "/array"),
    ],
)
def test_what_kubernetes_does_not_know_is_refused(
    as_user: Any, owner: Any, pods: Any, members: dict[str, Any], pointer: str
) -> None:
    answer = as_user(owner).send("POST", "jobs", {**SUBMIT, **members}, Idempotency_Key="k1")
    assert answer.status_code == 422, answer.content
    assert pointer in [found["pointer"] for found in answer.json()["errors"]]
    assert not Job.objects.exists()


def test_slurm_refuses_what_is_for_kubernetes(as_user: Any, owner: Any, cluster: Any) -> None:
    for members in ({"image": IMAGE}, {"workload_kind": "jobset"}, {"priority_class": "high"}):
        answer = as_user(owner).send("POST", "jobs", {**SUBMIT, **members}, Idempotency_Key=str(members))
        assert answer.status_code == 422, members
        assert [found["pointer"] for found in answer.json()["errors"]] == [f"/{name}" for name in members]
    assert not Job.objects.exists()


def test_the_dry_run_asks_every_cluster(as_user: Any, owner: Any, member: Any, outsider: Any, pods: Any) -> None:
    from apps.clusters.models import Cluster

    Cluster.objects.create(
        name="slurm", api_url="http://127.0.0.1:9", user_name="qd", token_ref="env:T", working_root="/x", phase="READY"
    )
    body = {name: value for name, value in SUBMIT.items() if name != "cluster"}
    told = as_user(owner).send("POST", "jobs/candidates", body)
    assert told.status_code == 200, told.content
    answer = told.json()
    rows = {row["cluster"]: row for row in answer["candidates"]}
    assert (answer["recommended"], answer["not_asked"]) == ("lab", 0)
    assert (rows["lab"]["accepted"], rows["lab"]["scheduler"], rows["lab"]["image"]) == (True, "kubernetes", IMAGE)
    assert rows["lab"]["request"] is not None
    assert (rows["slurm"]["accepted"], rows["slurm"]["request"]) == (False, None)
    assert "no nodes" in rows["slurm"]["problem"]
    one = as_user(owner).send("POST", "jobs/candidates", {**body, "clusters": ["slurm"]}).json()
    assert [row["cluster"] for row in one["candidates"]] == ["slurm"]
    assert one["recommended"] is None
    problem(as_user(owner).send("POST", "jobs/candidates", {**body, "clusters": ["abacus"]}), 422, "InvalidInput")
    problem(as_user(owner).send("POST", "jobs/candidates", {"team": "nlp"}), 422, "InvalidInput")
    assert as_user(outsider).send("POST", "jobs/candidates", body).status_code == 404
    assert as_user(member).send("POST", "jobs/candidates", body).status_code == 403
    assert not Job.objects.exists()


def test_a_manifest_by_the_api(as_user: Any, owner: Any, pods: Any) -> None:
    from tests.demo_kubernetes import MANIFEST

    client = as_user(owner)
    body = {"team": "nlp", "cluster": "lab", "name": "rl", "manifest": MANIFEST}
    shown = client.send("POST", "jobs/preview", body).json()
    assert shown["accepted"] is True, shown["problems"]
    read = shown["manifest"]
    assert (read["pods"], read["gpus"], read["time_limit_min"], read["flaws"]) == (1, 8, 120, [])
    made = client.send("POST", "jobs", body, Idempotency_Key="k1")
    assert made.status_code == 202, made.content
    assert (made.json()["gpus"], made.json()["manifest"]) == (8, MANIFEST)
    again = client.send("GET", f"jobs/{made.json()['uid']}/spec").json()
    assert again["manifest"] == MANIFEST
    assert client.send("POST", "jobs", again, Idempotency_Key="k2").status_code == 202
    bad = MANIFEST.replace("restartPolicy: Never", "hostPID: true")
    refused = client.send("POST", "jobs", {**body, "manifest": bad}, Idempotency_Key="k3")
    (found,) = problem(refused, 422, "InvalidInput")["errors"]
    assert found["pointer"] == "/manifest"
    assert f"line {bad.splitlines().index('              hostPID: true') + 1}" in found["detail"]
    assert "hostPID" in found["detail"]
    told = client.send("POST", "jobs", {**body, "image": IMAGE, "environment": {"A": "1"}}, Idempotency_Key="k4")
    assert {row["pointer"] for row in told.json()["errors"]} == {"/image", "/environment"}
    huge = client.send("POST", "jobs", {**body, "manifest": "#" * (1024 * 1024 + 1)}, Idempotency_Key="k5")
    assert huge.status_code in (413, 422)
    assert Job.objects.count() == 2


def test_what_the_cluster_said_is_read_by_the_api(as_user: Any, owner: Any, outsider: Any, pods: Any) -> None:
    from django.utils import timezone

    from apps.core.said import said
    from apps.jobs.models import JobHappening

    client = as_user(owner)
    uid = client.send("POST", "jobs", SUBMIT, Idempotency_Key="k1").json()["uid"]
    attempt = Job.objects.get(uid=uid).attempts.get()
    text = said("The image %(image)s is not in its registry.", image="a:1")
    JobHappening.objects.create(
        attempt=attempt, key="e1/1", code="ImageMissing", text=text, is_bad=True, at=timezone.now()
    )
    (row,) = client.send("GET", f"jobs/{uid}/happenings").json()["results"]
    assert (row["attempt"], row["code"], row["is_bad"]) == (1, "ImageMissing", True)
    assert row["text"] == "The image a:1 is not in its registry."
    assert as_user(outsider).send("GET", f"jobs/{uid}/happenings").status_code == 404


SECRET = """\
# the team's key
apiVersion: v1
kind: Secret
metadata:
  name: key
  annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"password":"hunter2"}'}
# password: hunter2
stringData:
  password: hunter2
  file: |
    hunter2
data: &data {token: aHVudGVyMg==}
---
"""


def test_what_secrets_hold_is_for_those_who_submit_alone(
    as_user: Any, owner: Any, member: Any, pods: Any, client: Any
) -> None:
    from tests.demo_kubernetes import MANIFEST

    text = SECRET + MANIFEST
    body = {"team": "nlp", "cluster": "lab", "name": "rl", "manifest": text}
    made = as_user(owner).send("POST", "jobs", body, Idempotency_Key="k1")
    assert made.status_code == 202, made.content
    uid = made.json()["uid"]
    told = [made.json()["manifest"], as_user(owner).send("GET", f"jobs/{uid}").json()["manifest"]]
    told += [as_user(member).send("GET", f"jobs/{uid}/spec").json()["manifest"]]
    for shown in told:
        assert "hunter2" not in shown
        assert "aHVudGVyMg" not in shown
        assert "password: …" in shown
        assert "name: key" in shown
        assert shown.startswith("# the team's key\napiVersion: v1\nkind: Secret\n")
        assert shown.endswith(MANIFEST)
    assert as_user(owner).send("GET", f"jobs/{uid}/spec").json()["manifest"] == text
    for person, sees in ((member, False), (owner, True)):
        client.force_login(person)
        page = client.get(f"/jobs/{uid}/config").content.decode()
        assert ("hunter2" in page) is sees
        if sees:
            assert "hunter2" not in page.partition('<pre class="script diff"')[2].partition("</pre>")[0]
    again = as_user(owner).send("POST", "jobs", {**body, "manifest": told[0]}, Idempotency_Key="k2")
    pointers = {row["pointer"] for row in problem(again, 422, "InvalidInput")["errors"]}
    assert pointers == {"/manifest"}
    dry = as_user(owner).send("POST", "jobs/preview", body).json()
    assert "hunter2" not in str(dry)


def test_a_secret_is_hidden_however_it_is_written() -> None:
    from worker.manifests import shown

    held = "{kind: Secret, apiVersion: v1, metadata: {name: a}, data: {b: hunter2}}"
    for text in (held, f"--- {held}\n", f"  {held}", f"kind: A\n--- # first\n{held}\n---\nkind: B\n"):
        found = shown(text)
        assert "hunter2" not in found
        assert "b: …" in found
        assert ("kind: B\n" in text) == found.endswith("---\nkind: B\n")
    assert shown("kind: Secret\ndata: [hunter2\n") == "…"
    assert shown("kind: Secret\ndata: hunter2\n") == "kind: Secret\ndata: …\n"
