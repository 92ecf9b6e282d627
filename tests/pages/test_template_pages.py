"""The pages of templates: made, edited, brought back, retired; locks by page and API; bad parameters by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.jobs.models import Job, JobTemplate
from apps.jobs.part_rules import Part
from apps.jobs.template_models import TeamRetry
from apps.jobs.template_rules import LABELS
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]
NAME = "pretrain-sweep"


@pytest.fixture
def kept(more: DemoRows) -> JobTemplate:
    return JobTemplate.objects.get(name=NAME)


def body(**changes: Any) -> dict[str, Any]:
    sent: dict[str, Any] = {
        "name": "evals",
        "title": "Evaluations",
        "teams": ["nlp"],
        "script": "#!/bin/bash\npython eval.py --shards {{ shards }} {{ deep }}\n",
        "why": "the first",
        "row": ["a1", "b2"],
        "p-a1-name": "shards",
        "p-a1-type": "integer",
        "p-a1-state": "default",
        "p-a1-default": "4",
        "p-a1-minimum": "1",
        "p-a1-maximum": "64",
        "p-a1-required": "1",
        "p-b2-name": "deep",
        "p-b2-type": "switch",
        "p-b2-state": "locked",
        "p-b2-default": "true",
        "p-b2-on": "--deep",
        "p-b2-off": "",
        "s_nodes": "default",
        "d_nodes": "2",
        "s_time_limit_min": "locked",
        "d_time_limit_min": "1:30:00",
        "s_environment": "default",
        "d_environment": "A=1\nB=two",
    }
    return sent | changes


def test_a_lead_makes_edits_brings_back_and_retires(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("lead")
    answer = client.post("/templates/new", body())
    assert (answer.status_code, answer["Location"]) == (302, "/templates/evals")
    template = JobTemplate.objects.get(name="evals")
    assert template.defaults == {"nodes": 2, "time_limit_min": 90, "environment": {"A": "1", "B": "two"}}
    assert template.locked == ["time_limit_min"]
    assert template.parameters == [
        {"name": "shards", "type": "integer", "minimum": 1, "maximum": 64, "default": 4},
        {"name": "deep", "type": "switch", "on": "--deep", "off": "", "default": "true", "locked": True},
    ]
    page = client.get("/templates/evals/edit").content.decode()
    assert 'value="--deep"' in page
    sent = body(version=str(template.version), d_nodes="3", why="one more node")
    assert client.post("/templates/evals/edit", sent).status_code == 302
    # The same again differs in nothing; an old page is told so.
    template.refresh_from_db()
    again = client.post("/templates/evals/edit", sent | {"version": str(template.version)}, follow=True)
    assert "Nothing differs" in again.content.decode()
    assert client.post("/templates/evals/edit", sent | {"d_nodes": "4"}).status_code == 412
    page = client.get("/templates/evals/versions/2").content.decode()
    assert "one more node" in page
    assert "Against version 1" in page
    where = "/templates/evals/versions/1/restore"
    assert client.post(where, {"version": str(template.version)}).status_code == 302
    template.refresh_from_db()
    assert (template.number, template.defaults["nodes"]) == (3, 2)
    assert client.post("/templates/evals/retire").status_code == 302
    assert client.get("/jobs/new?template=evals").status_code == 404
    assert client.post("/templates/evals/offer").status_code == 302
    assert client.get("/jobs/new?template=evals").status_code == 200


def test_what_is_wrong_is_told_at_its_field(sign_in: SignIn, more: DemoRows) -> None:
    wrong = {
        "p-a1-default": "many",
        "p-b2-type": "colour",
        "d_nodes": "two",
        "d_environment": "no equals",
        "script": "echo {{ other }}\n",
    }
    answer = sign_in("lead").post("/templates/new", body(**wrong))
    assert answer.status_code == 422
    text = answer.content.decode()
    for words in (
        "must be a whole number, not &#x27;many&#x27;",
        "must be one of text, integer, number, choice, switch, path",
        "must be a whole number, not &#x27;two&#x27;",
        "line 1 is not NAME=value",
        "the script has {{ other }}, and there is no parameter of this name",
    ):
        assert words in text, words
    assert not JobTemplate.objects.filter(name="evals").exists()


@pytest.mark.parametrize("who", ["owner", "member", "outsider", "operator"])
def test_others_change_nothing(sign_in: SignIn, kept: JobTemplate, who: str) -> None:
    client = sign_in(who)
    for where in ("new", f"{NAME}/edit", f"{NAME}/retire", f"{NAME}/offer", f"{NAME}/versions/1/restore", "preview"):
        assert client.post(f"/templates/{where}", {**body(), "version": "1"}).status_code == 403, where
    assert client.post("/templates/retries/nlp", {"rules": "", "version": "1"}).status_code in (403, 404)
    kept.refresh_from_db()
    assert (kept.number, kept.is_enabled) == (3, True)


def test_a_template_of_a_past_job_and_a_copy(sign_in: SignIn, kept: JobTemplate) -> None:
    job = Job.objects.get(name="moe-8x7b-ablation")
    page = sign_in("lead").get(f"/templates/new?job={job.uid}").content.decode()
    assert 'name="d_nodes" value="2"' in page
    assert "--lr 0.0002" in page
    page = sign_in("lead").get(f"/templates/new?copy={NAME}").content.decode()
    assert f'value="{NAME}-copy"' in page
    assert 'value="learning_rate"' in page
    outside = Job.objects.filter(origin="outside").first()
    assert outside is not None
    assert sign_in("lead").get(f"/templates/new?job={outside.uid}").status_code == 404


def test_of_a_job_of_parts_the_page_says_what_a_template_leaves_out(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("lead")
    job = Job.objects.get(name="moe-8x7b-ablation")
    words = f"Job {job.name} has further parts, and a template holds the first alone"
    assert words not in client.get(f"/templates/new?job={job.uid}").content.decode()
    Job.objects.filter(pk=job.pk).update(parts=[Part(gpus_per_node=1).row()])
    assert words in client.get(f"/templates/new?job={job.uid}").content.decode()


def test_choices_stay_as_they_are_when_a_page_saves_them_untouched(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("lead")
    row = {"name": "mix", "type": "choice", "state": "default", "default": "x,y", "required": "1"}
    sent = body(row=["a1", "b2", "c3"], **{f"p-c3-{name}": value for name, value in row.items()})
    sent["p-c3-choices"] = "x,y\r\n z \r\n\r\n"
    assert client.post("/templates/new", sent).status_code == 302
    template = JobTemplate.objects.get(name="evals")
    assert template.parameters[2]["choices"] == ["x,y", "z"]
    page = client.get("/templates/evals/edit").content.decode()
    assert ">x,y\nz</textarea>" in page
    again = {**sent, "p-c3-choices": "x,y\r\nz", "version": str(template.version)}
    assert "Nothing differs" in client.post("/templates/evals/edit", again, follow=True).content.decode()


def test_the_preview_of_the_form(sign_in: SignIn, more: DemoRows) -> None:
    text = sign_in("lead").post("/templates/preview", body()).content.decode()
    assert "python eval.py --shards 4 --deep" in text
    assert "Not yet possible" not in text
    text = sign_in("lead").post("/templates/preview", body(**{"p-a1-name": "A B"})).content.decode()
    assert "Parameter A B" in text


def test_every_field_of_a_job_can_be_fixed(sign_in: SignIn, more: DemoRows) -> None:
    page = sign_in("lead").get("/templates/new").content.decode()
    for name in LABELS:
        assert f'name="d_{name}"' in page
        assert f'name="s_{name}"' in page


def submit(client: Client, **changes: str) -> Any:
    from apps.clusters.models import Cluster

    sent = {
        "key": "k1",
        "source": "template",
        "team": "nlp",
        "cluster": Cluster.objects.get(name="ada").uid,
        "template": NAME,
        "name": "a-run",
        "nodes": "1",
        "gpus_per_node": "8",
        "gpu_type": "h100",
        "time_limit": "1:00:00",
        "tasks_per_node": "1",
        "cpus_per_task": "1",
        "max_recoveries": "3",
        "p_learning_rate": "0.0003",
        "p_ranks": "8",
        "p_data": "/fsx/corpus/v3",
        "p_context": "4096",
        "p_compile": "true",
    }
    return client.post("/jobs/new", sent | changes)


def test_the_page_refuses_what_a_template_fixes(sign_in: SignIn, kept: JobTemplate) -> None:
    client = sign_in("owner")
    before = Job.objects.count()
    answer = submit(client, gpus_per_node="4", p_ranks="4", gpu_type="h200")
    text = answer.content.decode()
    assert answer.status_code == 422
    assert "GPUs per node is fixed to 8 by template pretrain-sweep" in text
    assert "GPU type is fixed to h100 by template pretrain-sweep" in text
    assert "ranks is fixed to 8 by template pretrain-sweep" in text
    bad = submit(client, p_learning_rate="fast", p_context="1", p_data="/a;b").content.decode()
    for words in ("learning_rate: must be a number", "context: must be one of 2048, 4096", "data: a path of letters"):
        assert words in bad
    assert Job.objects.count() == before
    answer = submit(client)
    assert answer.status_code == 302, answer.content.decode()
    job = Job.objects.get(name="a-run")
    assert (job.template, job.template_version) == (kept, 3)
    assert "--compile" in job.script
    rail = client.get(answer["Location"]).content.decode()
    assert f"/templates/{NAME}/versions/3" in rail
    config = client.get(answer["Location"] + "/config").content.decode()
    assert "template pretrain-sweep v3" in config
    assert "team nlp" in config


def test_copy_and_edit_keeps_the_locks_of_now(sign_in: SignIn, kept: JobTemplate) -> None:
    job = Job.objects.get(name="sft-instruct-v3")
    JobTemplate.objects.filter(pk=kept.pk).update(
        defaults={**kept.defaults, "nodes": 4}, locked=["nodes", "gpus_per_node"]
    )
    page = sign_in("owner").get(f"/jobs/new?from={job.uid}").content.decode()
    field = page[page.index('name="nodes"') - 200 :][:420]
    assert 'value="4"' in field
    assert "data-locked" in field
    assert "readonly" in field


def test_new_job_shows_what_differs_from_the_last_run(sign_in: SignIn, kept: JobTemplate) -> None:
    from apps.clusters.models import Cluster

    sent = {
        "source": "template",
        "team": "nlp",
        "template": NAME,
        "cluster": Cluster.objects.get(name="ada").uid,
        "name": "next",
        "nodes": "4",
        "gpus_per_node": "8",
        "time_limit": "1:00:00",
        "tasks_per_node": "1",
        "cpus_per_task": "1",
        "max_recoveries": "3",
        "p_learning_rate": "0.001",
        "p_context": "2048",
    }
    text = sign_in("owner").post("/jobs/new/preview", sent).content.decode()
    changes = text[text.index('id="changes-in"') :]
    assert "moe-8x7b-ablation" in changes
    assert "Learning rate" in changes
    assert "0.0002" in changes
    assert "0.001" in changes
    assert '<span class="add">' in changes
    # Who has no run of their own sees the team's.
    text = sign_in("lead").post("/jobs/new/preview", sent).content.decode()
    assert "Compared with the team's last run, by owner:" in text


def test_a_lead_sets_the_teams_rules(sign_in: SignIn, kept: JobTemplate) -> None:
    client = sign_in("lead")
    row = TeamRetry.objects.get(team__slug="nlp")
    where = "/templates/retries/nlp"
    bad = client.post(where, {"rules": "retry exit 75\nperhaps exit 1", "version": str(row.version)})
    assert bad.status_code == 422
    assert "line 2" in bad.content.decode()
    good = client.post(where, {"rules": "retry exit 75", "version": str(row.version)}, follow=True)
    text = good.content.decode()
    assert "retry signal BUS · stop exit 2" in text
    assert client.post(where, {"rules": "", "version": str(row.version)}).status_code == 412
    row.refresh_from_db()
    assert (row.rules, row.changed_by) == (["retry exit 75"], "lead")


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_shipped_words_are_translated(sign_in: SignIn, more: DemoRows, language: str) -> None:
    text = sign_in("owner", language).get("/templates").content.decode()
    assert ("PyTorch DDP with torchrun" in text) == (language == "en")
