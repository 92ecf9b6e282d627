"""One job asked of every cluster: who takes it, at what price, when, which is recommended; bounded work."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.clusters.models import Cluster, Node
from apps.jobs.candidates import MOST, candidates_for
from apps.jobs.services import JobSpec
from apps.teams.permissions import actor_for_user
from tests.demo_kubernetes import demo_kubernetes
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]


@pytest.fixture(scope="module")
def kube(site: DemoRows, django_db_blocker: Any) -> DemoRows:
    """The demo site with a cluster of Kubernetes."""
    with django_db_blocker.unblock():
        return demo_kubernetes(site)


def spec(**more: Any) -> JobSpec:
    base: dict[str, Any] = {"name": "try", "nodes": 2, "gpus_per_node": 8, "gpu_type": "h100", "time_limit_min": 120}
    return JobSpec(**{**base, "script": "#!/bin/bash\ntorchrun train.py\n", **more})


def ask(kube: DemoRows, wanted: JobSpec, chosen: str = "ada") -> Any:
    clusters = [c for c in Cluster.objects.select_related("kubernetes", "account").order_by("name") if c.takes_jobs]
    return candidates_for(
        actor=actor_for_user(kube.users["owner"]),
        team=kube.teams["nlp"],
        clusters=clusters,
        spec=wanted,
        chosen=kube.clusters[chosen].uid,
    )


@pytest.mark.django_db
def test_each_cluster_says_whether_it_takes_the_job_and_one_is_recommended(kube: DemoRows) -> None:
    Node.objects.filter(cluster=kube.clusters["ada"]).update(phase="DRAINED")
    found = ask(kube, spec(partition="train", slurm_options=["--switches=1"]))
    rows = {row.cluster.name: row for row in found.rows}
    assert "has no h100" in rows["hopper"].problem
    assert rows["hopper"].start is None
    kepler, ada = rows["kepler"], rows["ada"]
    assert kepler.is_valid
    assert kepler.start.is_now, "two of its nodes are free"
    assert (kepler.spec.partition, list(kepler.spec.slurm_options)) == ("", [])
    assert any("--switches=1" in text for text in kepler.left_out)
    assert ada.is_chosen
    assert not ada.left_out
    assert ada.start_words == "no start is in sight"
    assert found.best is kepler
    assert found.why.startswith("kepler: ")
    assert found.rows[0] is kepler
    assert kepler.preview.usd_left == kepler.preview.budget.free - kepler.preview.usd


@pytest.mark.django_db
def test_the_cheaper_is_taken_where_it_starts_soon_enough(kube: DemoRows) -> None:
    Node.objects.filter(cluster=kube.clusters["kepler"]).update(instance_type="p5en.48xlarge")
    found = ask(kube, spec(nodes=1), chosen="kepler")
    rows = {row.cluster.name: row for row in found.rows}
    assert rows["ada"].start.is_now
    assert rows["kepler"].start.is_now
    cheap = min(rows["ada"], rows["kepler"], key=lambda row: row.preview.usd)
    assert rows["ada"].preview.usd != rows["kepler"].preview.usd
    assert found.best is cheap
    assert "less" in found.why
    Node.objects.filter(cluster=cheap.cluster).update(phase="DRAINED")
    other = ask(kube, spec(nodes=1), chosen="kepler")
    assert other.best.cluster != cheap.cluster, "what starts in nobody's sight is not cheap"


@pytest.mark.django_db
def test_nothing_takes_what_nobody_has(kube: DemoRows) -> None:
    found = ask(kube, spec(nodes=500))
    assert found.best is None
    assert found.why == ""
    assert all(row.problem for row in found.rows)
    poor = ask(kube, spec(nodes=4, time_limit_min=60 * 24 * 7 * 12))
    assert all(row.problem for row in poor.rows)


@pytest.mark.django_db
def test_work_does_not_grow_with_the_number_of_clusters(kube: DemoRows) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as caught:
            found = ask(kube, spec())
        assert len(found.rows) <= MOST
        return len(caught)

    for number in range(MOST):
        _copy(number)
    few = queries()
    assert few < 250
    for number in range(MOST, 3 * MOST):
        _copy(number)
    assert queries() <= few + 8
    found = ask(kube, spec())
    assert found.more == 2 * MOST + MOST + 3 - MOST
    assert any(row.is_chosen for row in found.rows), "the chosen one is asked whatever the others have"


def _copy(number: int) -> None:
    now = timezone.now()
    cluster = Cluster.objects.create(
        name=f"copy-{number}",
        api_url="http://127.0.0.1:9",
        user_name="qd",
        token_ref="env:T",
        working_root="/fsx",
        phase="READY",
        queue_read_at=now - timedelta(seconds=2),
    )
    for node in range(3):
        Node.objects.create(
            cluster=cluster, name=f"n{node}", instance_type="p5.48xlarge", phase="READY", gpu_type="h100", gpus=8
        )


def test_the_page_compares_and_takes_over_by_one_click(sign_in: SignIn, kube: DemoRows) -> None:
    typed = {
        "key": "a",
        "source": "script",
        "team": "nlp",
        "cluster": kube.clusters["ada"].uid,
        "script": "#!/bin/bash\nsrun train\n",
        "name": "both",
        "nodes": "1",
        "gpus_per_node": "8",
        "gpu_type": "h100",
        "time_limit": "2:00:00",
        "partition": "train",
        "tasks_per_node": "1",
        "cpus_per_task": "8",
        "max_recoveries": "1",
    }
    client = sign_in("owner")
    text = client.post("/jobs/new/candidates", typed).content.decode()
    assert "Recommended" in text
    assert re.search(rf'data-fill="cluster"\s+data-value="{kube.clusters["kepler"].uid}"', text)
    assert "as a request to Slurm" in text
    assert "as Kubernetes objects" in text
    assert "job/submit" in text
    assert "kind: JobSet" in text or "kind: &quot;JobSet&quot;" in text or "kind: Job" in text
    assert text.count("data-copy=") == 2, "each of the two can be copied"
    assert "has no h100" in text
    empty = client.post("/jobs/new/candidates", {**typed, "nodes": "many"}).content.decode()
    assert "Choose team, size" in empty
    assert 'id="candidates-in"' in client.get("/jobs/new").content.decode()
    assert sign_in("member").post("/jobs/new/candidates", typed).status_code in (403, 404)
