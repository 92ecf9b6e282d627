"""The page of a new job: reading scripts, the preview, the submit, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from apps.clusters.models import Cluster
from apps.costs.selectors import ledger_check, standing_of
from apps.jobs.models import Job
from tests.blocks import at, make_block
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]
SCRIPT = (
    "#!/bin/bash\n#SBATCH --job-name=from-script\n#SBATCH -N 2\n#SBATCH --gpus-per-node=h100:4\n#SBATCH -t 90\ntrue\n"
)


@pytest.fixture
def filled(site: DemoRows) -> dict[str, str]:
    """Everything a valid submit sends."""
    return {
        "key": "0123456789abcdef",
        "source": "script",
        "team": "nlp",
        "cluster": site.clusters["ada"].uid,
        "script": "#!/bin/bash\nsrun true\n",
        "name": "try-it",
        "nodes": "1",
        "gpus_per_node": "8",
        "gpu_type": "h100",
        "time_limit": "1:00:00",
        "partition": "",
        "tasks_per_node": "1",
        "cpus_per_task": "1",
        "memory": "",
        "max_recoveries": "2",
        "environment": "A=1\n# a remark\nB=two words",
    }


def filling(answer: Any) -> dict[str, str]:
    return json.loads(answer["HX-Trigger-After-Settle"])["qd:fill"]


def test_the_page_offers_what_the_person_may_use(sign_in: SignIn, site: DemoRows) -> None:
    text = sign_in("owner").get("/jobs/new").content.decode()
    assert 'value="nlp"' in text
    assert 'value="vision"' not in text
    assert "PyTorch DDP with torchrun" in text
    assert site.clusters["ada"].uid in text
    assert 'name="key" value="' in text


def test_a_pasted_script_fills_the_fields(sign_in: SignIn, filled: dict[str, str]) -> None:
    answer = sign_in("owner").post("/jobs/new/read", {**filled, "script": SCRIPT, "what": "script"})
    fill = filling(answer)
    assert fill["name"] == "from-script"
    assert fill["nodes"] == "2"
    assert fill["gpus_per_node"] == "4"
    assert fill["gpu_type"] == "h100"
    assert fill["time_limit"] == "1:30:00"
    # The same script again changes nothing that the person may have corrected meanwhile.
    again = filling(sign_in("owner").post("/jobs/new/read", {**filled, "script": SCRIPT, "seen": fill["seen"]}))
    assert list(again) == ["seen"]


def test_another_script_keeps_nothing_of_the_first(sign_in: SignIn, filled: dict[str, str]) -> None:
    first = "#!/bin/bash\n#SBATCH --array=0-3 --mem=64G --cpus-per-task=8\n#SBATCH -N 2 --gpus-per-node=8\nsrun x\n"
    client = sign_in("owner")
    fill = filling(client.post("/jobs/new/read", {**filled, "script": first}))
    assert (fill["array"], fill["cpus_per_task"]) == ("0-3", "8")
    form = {**filled, **fill, "cpus_per_task": "9", "script": "#!/bin/bash\n#SBATCH -N 1 --gpus-per-node=8\nsrun x\n"}
    slip = filling(client.post("/jobs/new/read", {**form, "script": "#!/bin/bash\n#SBATCH --nodes=two\n"}))
    assert list(slip) == ["seen"], "a slip of the pen clears nothing"
    assert json.loads(slip["seen"])["array"] == "0-3"
    again = filling(client.post("/jobs/new/read", {**form, "seen": slip["seen"]}))
    assert (again["array"], again["memory"], again["nodes"]) == ("", "", "1")
    assert "cpus_per_task" not in again, "a person wrote over it"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#SBATCH --nodes=two\ntrue\n", "line 1: --nodes must be a whole number from 1, not &#x27;two&#x27;"),
        ("#!/bin/bash\n#SBATCH --time\ntrue\n", "line 2: --time has no value"),
        ("#SBATCH --nodes=1 'x\ntrue", "line 1: a quote is not closed"),
        ("x" * (1024 * 1024 + 1), "at most 1,048,576 (1 MiB)"),
    ],
)
def test_what_is_wrong_with_a_script_is_told_by_line(
    sign_in: SignIn, filled: dict[str, str], script: str, words: str
) -> None:
    read = sign_in("owner").post("/jobs/new/read", {**filled, "script": script, "what": "script"})
    assert words in read.content.decode()
    sent = sign_in("owner").post("/jobs/new", {**filled, "script": script})
    assert sent.status_code == 422
    assert words in sent.content.decode()
    assert "Not submitted; nothing is held" in sent.content.decode()


def test_a_form_of_many_megabytes_is_refused_in_words(sign_in: SignIn, filled: dict[str, str]) -> None:
    answer = sign_in("owner").post("/jobs/new", {**filled, "script": "x" * (5 * 1024 * 1024)})
    assert answer.status_code == 400
    assert "too large or malformed" in answer.content.decode()


def test_what_the_portal_does_not_use_is_said(sign_in: SignIn, filled: dict[str, str]) -> None:
    script = "#SBATCH --output=x.log\n#SBATCH --wckey=high\ntrue\n"
    text = sign_in("owner").post("/jobs/new/read", {**filled, "script": script}).content.decode()
    assert "line 1: --output is decided by the portal and not used" in text
    assert "line 2: --wckey=high is kept and handed to Slurm as it is" in text


def test_a_file_lands_in_the_text_box_and_names_the_job(sign_in: SignIn, filled: dict[str, str]) -> None:
    upload = SimpleUploadedFile("my train.sbatch", b"#!/bin/bash\n#SBATCH -N 3\necho '</textarea><b>'\n")
    answer = sign_in("owner").post("/jobs/new/read", {**filled, "name": "", "upload": upload})
    assert filling(answer)["nodes"] == "3"
    assert filling(answer)["name"] == "my-train"
    text = answer.content.decode()
    assert 'id="id_script"' in text
    assert "&lt;/textarea&gt;&lt;b&gt;" in text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x7fELF\x00\x01", "a binary file, not a script"),
        (b"caf\xe9\n", "not UTF-8 text (byte 3)"),
        (b"#" * (1024 * 1024 + 5), "1,048,581 bytes; at most 1,048,576 (1 MiB)"),
        (b"", "The submitted file is empty"),
    ],
)
def test_a_file_that_is_no_script_is_refused(sign_in: SignIn, filled: dict[str, str], data: bytes, words: str) -> None:
    client = sign_in("owner")
    before = Job.objects.count()
    if data:
        read = client.post("/jobs/new/read", {**filled, "upload": SimpleUploadedFile("a.sh", data)})
        assert words in read.content.decode()
    sent = client.post("/jobs/new", {**filled, "upload": SimpleUploadedFile("a.sh", data)})
    assert sent.status_code == 422
    assert words in sent.content.decode()
    assert Job.objects.count() == before


def test_the_preview_says_what_is_held_and_what_is_left(
    sign_in: SignIn, filled: dict[str, str], site: DemoRows
) -> None:
    usd = standing_of(site.teams["nlp"], "USD").free
    text = sign_in("owner").post("/jobs/new/preview", filled).content.decode()
    assert "$55.04" in text
    assert "8 GPU-h" in text
    assert "$6.8800 per GPU-h" in text
    assert "p5.48xlarge on demand" in text
    assert f"${usd - 55:,.0f}"[:5] in text
    assert "24 of 32 GPUs left" in text
    assert "Submit and hold $55.04" in text
    assert "srun true" in text
    assert "disabled" not in text.split('id="submit-job"')[1].split(">")[0]
    assert standing_of(site.teams["nlp"], "USD").free == usd


def test_the_preview_of_an_empty_form_asks_and_does_not_scold(sign_in: SignIn, filled: dict[str, str]) -> None:
    text = sign_in("owner").post("/jobs/new/preview", {**filled, "name": "", "script": ""}).content.decode()
    assert "Still needed:" in text
    assert "Name, Script" in text or "Script, Name" in text
    assert "$55.04" in text
    assert "disabled" in text.split('id="submit-job"')[1].split(">")[0]


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"nodes": "40"}, "nodes", "40 nodes asked for; cluster ada has 8 that fit"),
        ({"gpu_type": "b200"}, "gpu_type", "cluster ada has no b200; it has h100"),
        ({"time_limit": "30-00:00:00"}, "time_limit", "43200 min; the cluster allows 10080 min"),
        ({"time_limit": "soon"}, "time_limit", "is not a time"),
        ({"memory": "lots"}, "memory", "is not an amount of memory"),
        ({"name": "a\x07b"}, "name", "one line of text"),
        ({"environment": "NOPE"}, "environment", "line 1 is not NAME=value"),
        ({"environment": "QD_X=1"}, "environment", "not a name a job may set"),
        ({"nodes": "0"}, "nodes", "greater than or equal to 1"),
        ({"partition": "gold"}, "partition", "no partition gold"),
    ],
)
def test_problems_stand_at_their_fields_in_preview_and_submit(
    sign_in: SignIn, filled: dict[str, str], change: dict[str, str], field: str, words: str
) -> None:
    client = sign_in("owner")
    for address in ("/jobs/new/preview", "/jobs/new"):
        text = client.post(address, {**filled, **change}).content.decode()
        shown = text.split(f'id="{field}-problem"')[1].split("</p>")[0]
        assert words in shown.replace("&#x27;", "'"), address


def test_more_than_budget_or_quota_is_said_before_and_refused_after(
    sign_in: SignIn, filled: dict[str, str], site: DemoRows
) -> None:
    client = sign_in("owner")
    dear = {**filled, "nodes": "4", "time_limit": "7-00:00:00"}
    text = client.post("/jobs/new/preview", {**dear, "nodes": "8"}).content.decode()
    assert "needs 64 GPUs, 32 left" in text
    from apps.costs.services import budget_set
    from apps.teams.permissions import actor_for_user

    team = site.teams["nlp"]
    budget_set(actor=actor_for_user(site.users["admin"]), team=team, usd_per_month=9000)  # type: ignore[arg-type]
    text = client.post("/jobs/new/preview", dear).content.decode()
    assert "The team's budget has" in text
    sent = client.post("/jobs/new", dear)
    assert sent.status_code == 422
    assert "left of this month&#x27;s budget" in sent.content.decode()
    assert ledger_check().is_balanced


def test_a_submit_makes_one_job_however_often_it_is_sent(sign_in: SignIn, filled: dict[str, str]) -> None:
    client = sign_in("owner")
    before = Job.objects.count()
    first = client.post("/jobs/new", filled)
    assert first.status_code == 302
    second = client.post("/jobs/new", filled)
    assert second["Location"] == first["Location"]
    assert Job.objects.count() == before + 1
    job = Job.objects.order_by("-id")[0]
    assert first["Location"] == f"/jobs/{job.uid}"
    assert job.environment == {"A": "1", "B": "two words"}
    assert job.owner_name == "owner"
    assert job.time_limit_min == 60
    # Going back, editing and sending again is a new wish, not the old one.
    third = client.post("/jobs/new", {**filled, "name": "try-again"})
    assert third["Location"] != first["Location"]
    assert Job.objects.count() == before + 2
    assert ledger_check().is_balanced


def test_a_refused_submit_does_not_use_up_its_key(sign_in: SignIn, filled: dict[str, str]) -> None:
    client = sign_in("owner")
    assert client.post("/jobs/new", {**filled, "nodes": "40"}).status_code == 422
    assert client.post("/jobs/new", filled).status_code == 302


def test_a_foreign_team_cannot_be_chosen(sign_in: SignIn, filled: dict[str, str]) -> None:
    sent = sign_in("owner").post("/jobs/new", {**filled, "team": "vision"})
    assert sent.status_code == 422
    assert "Select a valid choice" in sent.content.decode()


def test_a_template_is_filled_and_checked(sign_in: SignIn, filled: dict[str, str]) -> None:
    client = sign_in("owner")
    chosen = {**filled, "source": "template", "template": "pytorch-ddp", "script": ""}
    read = client.post("/jobs/new/read", {**chosen, "what": "template"}).content.decode()
    assert 'name="p_steps"' in read
    assert 'value="1000"' in read
    given = {
        **chosen,
        "p_program": "/fsx/train.py",
        "p_torchrun": "torchrun",
        "p_processes_per_node": "8",
        "p_steps": "many",
        "p_save_every": "100",
    }
    text = client.post("/jobs/new/preview", given).content.decode()
    assert "must be a whole number, not" in text.split('id="p_steps-problem"')[1].split("</p>")[0]
    given["p_steps"] = "5000"
    text = client.post("/jobs/new/preview", given).content.decode()
    assert "--steps 5000" in text
    sent = client.post("/jobs/new", given)
    assert sent.status_code == 302
    job = Job.objects.order_by("-id")[0]
    assert job.template is not None
    assert job.template.name == "pytorch-ddp"
    assert "--nproc-per-node=8" in job.script


def test_submit_again_starts_from_an_old_job_and_shows_the_changes(
    sign_in: SignIn, filled: dict[str, str], site: DemoRows
) -> None:
    client = sign_in("owner")
    old = site.jobs["baseline-1b"]
    text = client.get(f"/jobs/new?from={old.uid}").content.decode()
    assert 'value="baseline-1b"' in text
    assert 'value="5:00:00"' in text
    assert "WANDB_MODE=offline" in text
    assert sign_in("outsider").get(f"/jobs/new?from={old.uid}").status_code == 404
    changed = old.script.replace("50000", "60000")
    text = client.post("/jobs/new/preview", {**filled, "name": "baseline-1b", "script": changed}).content.decode()
    assert '<span class="add">+srun python' in text
    assert "60000" in text


def test_a_cluster_change_brings_its_own_gpu_types(sign_in: SignIn, filled: dict[str, str], site: DemoRows) -> None:
    data = {**filled, "cluster": site.clusters["hopper"].uid, "gpu_type": "", "what": "cluster"}
    text = sign_in("owner").post("/jobs/new/read", data).content.decode()
    assert '<option value="a100">' in text
    assert "h100" not in text


def test_a_limit_beyond_its_block_offers_the_one_that_fits(
    sign_in: SignIn, filled: dict[str, str], site: DemoRows
) -> None:
    make_block(Cluster.objects.get(name="ada"), site.teams["nlp"])
    with at(300):
        client = sign_in("owner")
        text = client.post("/jobs/new/preview", {**filled, "time_limit": "10:00:00"}).content.decode()
        assert 'data-fill="time_limit"' in text
        assert 'data-value="4:10:00"' in text
        assert "Set the time limit to 4:10:00" in text
        text = client.post("/jobs/new/preview", {**filled, "time_limit": "4:10:00"}).content.decode()
    assert "data-fill" not in text
    assert "disabled" not in text.split('id="submit-job"')[1].split(">")[0]


def test_more_slurm_options_are_kept_shown_and_held_to(sign_in: SignIn, filled: dict[str, str]) -> None:
    client = sign_in("owner")
    script = "#!/bin/bash\n#SBATCH -C h100 --qos=high --wckey=a --exclusive\ntrue\n"
    fill = filling(client.post("/jobs/new/read", {**filled, "script": script}))
    found = {name: fill[name] for name in ("constraint", "qos", "exclusive", "slurm_options")}
    assert found == {"constraint": "h100", "qos": "high", "exclusive": "node", "slurm_options": "--wckey=a"}
    # What has left the script leaves its field, unless a person wrote over it.
    seen = {**filled, "script": SCRIPT, "seen": fill["seen"], "qos": "high", "constraint": "a100"}
    again = filling(client.post("/jobs/new/read", seen))
    assert (again["qos"], "constraint" in again) == ("", False)
    text = client.post("/jobs/new", {**filled, "slurm_options": "-C h100\n--nodes=64"}).content.decode()
    assert "--nodes=64: --nodes has a field of its own" in text
    answer = client.post("/jobs/new", {**filled, "slurm_options": "-C h100\n--wckey=a", "qos": "high"})
    assert answer.status_code == 302
    job = Job.objects.get(uid=answer["Location"].rsplit("/", 1)[-1])
    assert job.slurm_options == ["--constraint=h100", "--wckey=a", "--qos=high"]
    assert "--constraint=h100" in client.get(f"/jobs/{job.uid}/config").content.decode()
    form = client.get(f"/jobs/new?from={job.uid}").content.decode()
    assert 'name="constraint" value="h100"' in form
    assert 'name="qos" value="high"' in form


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("begin", "25:00", "is no time"),
        ("constraint", "[h100", "is no expression of features"),
        ("qos", "a b", "cannot be a name in Slurm"),
        ("licenses", "matlab:many", "is no list of licences"),
        ("nodelist", "p5-[1-", "is no list of nodes"),
        ("exclude", "/tmp/nodes", "a file of nodes lies on another machine"),
        ("container_mounts", "a b:c", "is no list of mounts"),
    ],
)
def test_a_bad_option_is_told_at_its_field(
    sign_in: SignIn, filled: dict[str, str], name: str, value: str, words: str
) -> None:
    text = sign_in("owner").post("/jobs/new", {**filled, name: value}).content.decode()
    assert words in text.split(f'id="{name}-problem"')[1].split("</p>")[0]
    # The same in the text box is told at the same place.
    option = f"--{name.replace('_', '-')}='{value}'"
    text = sign_in("owner").post("/jobs/new", {**filled, "slurm_options": option}).content.decode()
    assert words in text
    twice = {**filled, "slurm_options": "--qos=low", "qos": "high"}
    text = sign_in("owner").post("/jobs/new", twice).content.decode()
    assert "is also among the other Slurm options" in text.split('id="qos-problem"')[1].split("</p>")[0]


def test_whole_nodes_are_paid_whole(sign_in: SignIn, filled: dict[str, str]) -> None:
    for option, words in (
        ("--exclusive", "--exclusive takes whole nodes: all 8 GPUs of each are held"),
        ("--core-spec=2", "--core-spec takes whole nodes"),
        ("-S 0", "--core-spec takes whole nodes"),
        ("--thread-spec=4", "--thread-spec takes whole nodes"),
    ):
        asked = {**filled, "gpus_per_node": "1", "slurm_options": option}
        assert words in sign_in("owner").post("/jobs/new/preview", asked).content.decode()
        assert sign_in("owner").post("/jobs/new", asked).status_code == 302
        assert Job.objects.latest("pk").gpus_per_node == 8
    asked = {**filled, "slurm_options": "--nodelist=p5-[1-9]"}
    assert "names 9 nodes" in sign_in("owner").post("/jobs/new", asked).content.decode()
