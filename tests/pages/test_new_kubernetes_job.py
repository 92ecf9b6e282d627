"""The page of a new job on Kubernetes: its own fields, what is left out there, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.jobs.models import Job
from tests.demo_kubernetes import IMAGE, demo_kubernetes
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]


@pytest.fixture(scope="module")
def kube(site: DemoRows, django_db_blocker: Any) -> DemoRows:
    """The demo site with a cluster of Kubernetes."""
    with django_db_blocker.unblock():
        return demo_kubernetes(site)


@pytest.fixture
def filled(kube: DemoRows) -> dict[str, str]:
    """Everything a valid submit to it sends."""
    return {
        "key": "fedcba9876543210",
        "source": "script",
        "team": "nlp",
        "cluster": kube.clusters["kepler"].uid,
        "script": "#!/bin/bash\ntorchrun train.py\n",
        "name": "on-pods",
        "nodes": "1",
        "gpus_per_node": "8",
        "gpu_type": "h100",
        "time_limit": "1:00:00",
        "tasks_per_node": "1",
        "cpus_per_task": "8",
        "max_recoveries": "2",
        "image": "",
        "workload_kind": "",
        "priority_class": "",
    }


def told(answer: Any) -> dict[str, Any]:
    return json.loads(answer["HX-Trigger-After-Settle"])


def test_a_cluster_shows_its_own_fields_and_keeps_what_was_typed(
    sign_in: SignIn, filled: dict[str, str], kube: DemoRows
) -> None:
    client = sign_in("owner")
    answer = client.post("/jobs/new/read", {**filled, "partition": "train", "what": "cluster"})
    assert told(answer)["qd:scheduler"] == {"name": "kubernetes"}
    assert told(answer)["qd:fill"] == {"image": IMAGE}, "the cluster's own, and nothing else is touched"
    text = answer.content.decode()
    assert 'value="pytorchjob"' in text
    assert 'value="trainjob"' not in text, "the server has no such kind"
    assert '<option value="high">' in text
    own = client.post("/jobs/new/read", {**filled, "image": "mine/own:1", "what": "cluster"})
    assert told(own)["qd:fill"] == {}, "a person's own image stays"
    back = client.post("/jobs/new/read", {**filled, "cluster": kube.clusters["ada"].uid, "what": "cluster"})
    assert told(back)["qd:scheduler"] == {"name": "slurm"}


def test_a_submit_stores_image_and_kind(sign_in: SignIn, filled: dict[str, str]) -> None:
    answer = sign_in("owner").post("/jobs/new", {**filled, "priority_class": "high"})
    assert answer.status_code == 302, answer.content.decode()
    job = Job.objects.get(name="on-pods")
    assert (job.image, job.workload_kind, job.priority_class) == (IMAGE, "jobset", "high")
    assert (job.slurm_user, job.slurm_options, job.partition) == ("", [], "")
    config = sign_in("owner").get(f"/jobs/{job.uid}/config").content.decode()
    assert IMAGE in config
    assert "JobSet" in config
    assert "<dt>Partition</dt>" not in config
    again = sign_in("owner").get(f"/jobs/new?from={job.uid}").content.decode()
    assert f'value="{IMAGE}"' in again
    listed = sign_in("owner").get("/jobs?cluster_kind=kubernetes").content.decode()
    assert "on-pods" in listed
    assert "moe-8x7b-ablation" not in listed
    rows = b"".join(sign_in("owner").get("/jobs/export.csv?cluster_kind=kubernetes")).decode().splitlines()
    assert any(row.endswith("kubernetes,jobset") for row in rows)


def test_what_slurm_alone_knows_is_left_out_and_told(sign_in: SignIn, filled: dict[str, str]) -> None:
    script = "#!/bin/bash\n#SBATCH --switches=1\nsrun python train.py\n"
    typed = {**filled, "partition": "train", "slurm_options": "--switches=1", "script": script}
    text = sign_in("owner").post("/jobs/new/preview", typed).content.decode()
    assert "Left out here" in text
    assert "--switches=1" in text
    assert "calls srun" in text
    assert "Not yet possible" not in text
    assert sign_in("owner").post("/jobs/new", {**typed, "key": "left-out", "name": "left-out"}).status_code == 302
    assert Job.objects.get(name="left-out").slurm_options == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image": "two words"}, "is no name of an image"),
        ({"image": "line\nbreak"}, "is no name of an image"),
        ({"workload_kind": "trainjob"}, "has no TrainJob"),
        ({"workload_kind": "cronjob"}, "cronjob"),
        ({"priority_class": "urgent"}, "no priority class urgent"),
        ({"array": "0-3", "nodes": "2"}, "an array is an Indexed Job"),
        ({"parts": "--nodes=1"}, "which does not know this"),
        ({"dependency": "afterok:4711"}, "for Slurm to keep"),
        ({"workload_kind": "pytorchjob", "environment": "MASTER_ADDR=x"}, "sets this by itself"),
    ],
)
def test_what_cannot_be_is_told_at_its_field(
    sign_in: SignIn, filled: dict[str, str], fields: dict[str, str], words: str
) -> None:
    before = Job.objects.count()
    preview = sign_in("owner").post("/jobs/new/preview", {**filled, **fields}).content.decode()
    answer = sign_in("owner").post("/jobs/new", {**filled, "key": "refused", **fields})
    assert words in preview.replace("&#x27;", "'")
    assert answer.status_code == 422
    assert Job.objects.count() == before
