"""The page of a new job on Kubernetes: its own fields, what is left out there, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from apps.jobs.models import Job
from tests.demo_kubernetes import IMAGE, MANIFEST, demo_kubernetes
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


def test_the_exact_request_are_the_objects(sign_in: SignIn, filled: dict[str, str]) -> None:
    text = sign_in("owner").post("/jobs/new/request", filled).content.decode()
    assert "jobset.x-k8s.io/v1alpha2" in text
    assert IMAGE in text
    assert "The objects in the order" in text
    assert "X-SLURM" not in text


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


# --- manifests ---------------------------------------------------------------------------------


@pytest.fixture
def brought(filled: dict[str, str]) -> dict[str, str]:
    """A submit of a manifest; the form's size fields are not on the page then."""
    kept = ("key", "team", "cluster")
    return {**{name: filled[name] for name in kept}, "source": "manifest", "manifest": MANIFEST, "name": "brought"}


def test_a_manifest_is_counted_held_and_kept_to_the_letter(sign_in: SignIn, brought: dict[str, str]) -> None:
    client = sign_in("owner")
    preview = client.post("/jobs/new/preview", brought).content.decode()
    assert "1 pod with 8 GPUs" in preview
    assert "JobSet/grpo-rollout, ConfigMap/grpo-config" in preview
    assert "ends itself after 2 h" in preview
    assert "Not yet possible" not in preview
    assert client.post("/jobs/new", {**brought, "nodes": "many"}).status_code == 302, "what is not shown is not judged"
    job = Job.objects.get(name="brought")
    assert job.manifest == MANIFEST
    assert (job.nodes, job.gpus_per_node, job.gpus, job.time_limit_min) == (1, 8, 8, 120)
    assert (job.workload_kind, job.image, job.script, job.max_recoveries) == ("manifest", "", "", 0)
    assert job.retry_defaults == [], "the team's rules would meet the names of the first attempt"
    config = client.get(f"/jobs/{job.uid}/config").content.decode()
    assert "# the name our dashboards know" in config
    assert re.search(r'class="add">\+ .*quarterdeck.dev/attempt', config)
    assert "Script</h2>" not in config
    again = client.get(f"/jobs/new?from={job.uid}").content.decode()
    assert "# the name our dashboards know" in again
    assert client.post(f"/jobs/{job.uid}/requeue").status_code == 409


def test_every_flaw_of_a_manifest_is_told_with_its_place(sign_in: SignIn, brought: dict[str, str]) -> None:
    bad = MANIFEST.replace(
        "              restartPolicy: Never\n", "              restartPolicy: Never\n              hostNetwork: true\n"
    ).replace("  name: grpo-config\n", "  name: grpo-config\n  namespace: speech\n")
    client = sign_in("owner")
    text = client.post("/jobs/new/preview", {**brought, "manifest": bad}).content.decode()
    line = bad.splitlines().index("              hostNetwork: true") + 1
    assert f'data-line="{line}"' in text
    assert "spec.replicatedJobs[0].template.spec.template.spec.hostNetwork" in text
    assert "document 2" in text
    assert "metadata.namespace" in text
    assert "2 problems, listed at their lines" in text
    before = Job.objects.count()
    answer = client.post("/jobs/new", {**brought, "manifest": bad})
    assert answer.status_code == 422
    assert "hostNetwork" in answer.content.decode()
    assert Job.objects.count() == before


def test_the_operators_rules_decide_also_in_the_moment_of_the_submit(
    sign_in: SignIn, brought: dict[str, str], kube: DemoRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apps.clusters.kube_models import KubernetesSettings
    from apps.jobs import services

    wide = MANIFEST.replace("restartPolicy: Never\n", "restartPolicy: Never\n              hostNetwork: true\n")
    settings = KubernetesSettings.objects.filter(cluster=kube.clusters["kepler"])
    settings.update(allowances=["host_network"])
    client = sign_in("owner")
    assert "Not yet possible" not in client.post("/jobs/new/preview", {**brought, "manifest": wide}).content.decode()
    assert client.post("/jobs/new", {**brought, "key": "one", "manifest": wide}).status_code == 302
    take = services.month_open

    def narrowed(team: Any) -> None:
        settings.update(allowances=[])
        take(team)

    monkeypatch.setattr(services, "month_open", narrowed)
    before = Job.objects.count()
    answer = client.post("/jobs/new", {**brought, "key": "two", "name": "late", "manifest": wide})
    assert answer.status_code == 422
    assert "have changed this moment" in answer.content.decode()
    assert Job.objects.count() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Still needed"),
        ("a:\n\tb: 1\n", "line 2"),
        ("kind: Job\nkind: Job\n", "line 2"),
        ("---\na: 1\n" * 51, "problem"),
        ("apiVersion: acme.io/v1\nkind: Rocket\nmetadata: {name: a}\n", "Rocket"),
        (MANIFEST.replace("nvidia.com/gpu: 8", "nvidia.com/gpu: 64"), "64"),
        (MANIFEST.replace("registry.example.org/rl/learner:4.2", '"a\\nb"'), "image"),
    ],
)
def test_nonsense_is_refused_in_words(sign_in: SignIn, brought: dict[str, str], text: str, words: str) -> None:
    preview = sign_in("owner").post("/jobs/new/preview", {**brought, "manifest": text}).content.decode()
    assert words in preview
    assert sign_in("owner").post("/jobs/new", {**brought, "manifest": text}).status_code == 422


def test_a_manifest_without_an_end_takes_the_forms_limit(sign_in: SignIn, brought: dict[str, str]) -> None:
    endless = MANIFEST.replace("          activeDeadlineSeconds: 7200\n", "")
    client = sign_in("owner")
    text = client.post("/jobs/new/preview", {**brought, "manifest": endless}).content.decode()
    assert "say how long it may run" in text
    typed = {**brought, "key": "limit", "name": "limited", "manifest": endless, "time_limit": "3:00:00"}
    assert client.post("/jobs/new", typed).status_code == 302
    assert Job.objects.get(name="limited").time_limit_min == 180


def test_a_file_lands_in_the_box_and_names_the_job(sign_in: SignIn, brought: dict[str, str]) -> None:
    file = SimpleUploadedFile("job.yaml", MANIFEST.encode())
    typed = {**brought, "name": "", "manifest": "", "manifest_file": file, "what": "manifest"}
    answer = sign_in("owner").post("/jobs/new/read", typed)
    assert "# the name our dashboards know" in answer.content.decode()
    assert told(answer)["qd:fill"] == {"name": "grpo-rollout"}
    binary = SimpleUploadedFile("job.yaml", b"\xff\xfe\x00")
    wrong = sign_in("owner").post("/jobs/new/read", {**typed, "manifest_file": binary}).content.decode()
    assert "not UTF-8" in wrong


def test_slurm_takes_no_manifest(sign_in: SignIn, brought: dict[str, str], kube: DemoRows) -> None:
    typed = {**brought, "cluster": kube.clusters["ada"].uid, "time_limit": "1:00:00"}
    assert "runs Slurm" in sign_in("owner").post("/jobs/new/preview", typed).content.decode()
    assert sign_in("owner").post("/jobs/new", typed).status_code == 422


def test_a_template_that_is_a_manifest_hides_the_size_and_fills_the_text(
    sign_in: SignIn, filled: dict[str, str]
) -> None:
    client = sign_in("owner")
    typed = {name: filled[name] for name in ("key", "team", "cluster")}
    typed |= {"source": "template", "template": "hyperpod-elastic", "name": "grow", "time_limit": "2:00:00"}
    shown = client.post("/jobs/new/read", {**typed, "what": "template"})
    assert told(shown)["qd:manifest"] == {"is": True}
    text = shown.content.decode()
    assert 'name="p_most_nodes"' in text
    values = {
        **{"p_object_name": "grow", "p_image": "mine/torch:1", "p_program": "/fsx/a.py", "p_gpus": "8"},
        **{"p_least_nodes": "1", "p_most_nodes": "2", "p_step_nodes": "1", "p_save_s": "60", "p_retries": "1"},
        "p_claim": "fsx",
    }
    preview = client.post("/jobs/new/preview", {**typed, **values}).content.decode()
    assert "2 pods with 16 GPUs" in preview
    assert "Not yet possible" not in preview
    assert client.post("/jobs/new", {**typed, **values}).status_code == 302
    job = Job.objects.get(name="grow")
    assert job.manifest.startswith("# Grows")
    assert 'image: "mine/torch:1"' in job.manifest
    again = client.get(f"/jobs/new?from={job.uid}").content.decode()
    assert 'value="mine/torch:1"' in again
    wrong = client.post("/jobs/new/preview", {**typed, **values, "p_image": "two words"}).content.decode()
    assert "two words" in wrong
    assert "Not yet possible" in wrong
    script = client.post("/jobs/new/read", {**typed, "template": "torch-ddp", "what": "template"})
    assert told(script)["qd:manifest"] == {"is": False}
