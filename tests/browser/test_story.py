"""The main story in the browser: fleet, job, checkpoint, node failure, resume, settled cost, nothing left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser_kit import Person, browser, chromium, person
from tests.portal_stack import Portal, portal

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not chromium(), reason="Debian's package chromium is not installed"),
]
PASSWORD = "quarterdeck-demo"
SLOW_MS = 60_000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    with portal(tmp_path_factory.mktemp("browser") / "var") as found:
        yield found


@pytest.fixture(scope="module")
def people(running: Portal) -> Iterator[dict[str, Person]]:
    with browser() as found:
        yield {
            name: person(found, running.url, user=name, password=PASSWORD)
            for name in ("operator", "researcher", "lead")
        }


def facts(running: Portal) -> dict[str, Any]:
    return dict(json.loads(running.sandbox_json.read_text()))


def fill(page: Page, **values: str) -> None:
    """Type into fields by their name."""
    for name, value in values.items():
        page.locator(f"main [name={name}]").first.fill(value)


def reload_until(one: Person, path: str, text: str) -> None:
    """Open a page again and again, as an impatient person does, until it shows the text."""
    for _ in range(60):
        one.open(path)
        if text in one.page.locator("main").inner_text():
            return
        one.page.wait_for_timeout(500)
    raise AssertionError(f"{path} never showed {text!r}")


def break_a_gpu(page: Page, running: Portal, node: str) -> None:
    """Log an XID 79 with the form on the sandbox's own page."""
    page.goto(running.control_url)
    form = page.locator("form", has=page.locator("[name=code]")).first
    field = form.locator("[name=node]")
    if field.evaluate("e => e.tagName") == "SELECT":
        field.select_option(node)
    else:
        field.fill(node)
    form.locator("[name=code]").fill("79")
    form.locator("button").click()
    expect(page.locator("body")).to_contain_text("XID 79")


def submit(page: Page) -> None:
    """Press the form's own button."""
    page.locator("main form button[type=submit]:visible, main form button.btn-primary:visible").last.click()
    page.wait_for_load_state("load")


def test_the_story(running: Portal, people: dict[str, Person], tmp_path: Path) -> None:
    sandbox = facts(running)
    operator, researcher = people["operator"], people["researcher"]

    # 1. The operator connects the account and the cluster, and launches four p5.48xlarge.
    page = operator.page
    operator.open("/connections/new")
    fill(
        page,
        name="sandbox",
        region=sandbox["aws"]["region"],
        credentials_ref="file:sandbox-aws",
        endpoint_url=sandbox["aws"]["endpoint_url"],
    )
    submit(page)
    expect(page.locator("main")).to_contain_text("Connected", timeout=SLOW_MS)

    operator.open("/clusters/new")
    fill(
        page,
        name="research",
        api_url=sandbox["slurm"]["url"],
        user_name=sandbox["slurm"]["user_name"],
        token_ref="file:sandbox-slurm",
        working_root=str(tmp_path / "work"),
        partition="gpu",
        exporter_url=sandbox["dcgm"]["url_template"],
    )
    (tmp_path / "work").mkdir()
    account = page.locator("main [name=account]")
    account.select_option(account.locator("option", has_text="sandbox").get_attribute("value"))
    submit(page)
    expect(page.locator("main")).to_contain_text("Ready", timeout=SLOW_MS)
    cluster = page.url

    page.goto(f"{cluster}/fleets/new")
    page.locator("main [name=instance_type]").select_option("p5.48xlarge")
    fill(
        page,
        name="train",
        nodes="4",
        subnet_id=sandbox["aws"]["subnet_id"],
        security_group_ids=sandbox["aws"]["security_group_id"],
        image_id=sandbox["aws"]["image_id"],
    )
    expect(page.locator("main")).to_contain_text("$220.16", timeout=SLOW_MS)
    submit(page)
    fleet = page.url
    page.reload()
    for step in ("Preflight", "Placement group", "Launch template", "Launching", "Booting", "Joining"):
        expect(page.locator("main")).to_contain_text(step)
    expect(page.locator("main")).to_contain_text("Ready: 4 × p5.48xlarge", timeout=SLOW_MS)

    # 2. The researcher pastes a script; its #SBATCH lines fill the form; the page says what will be held.
    page = researcher.page
    researcher.open("/jobs/new")
    script = (
        "#!/bin/bash\n#SBATCH --job-name=charlm\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=h100:8\n"
        "#SBATCH --ntasks-per-node=2\n#SBATCH --time=01:00:00\n"
        'srun --ntasks-per-node=2 python3 "$QD_EXAMPLES/charlm/train.py" --steps 120 --save-every 10 '
        '--step-seconds 0.3 --checkpoint-dir "$QD_CHECKPOINT_DIR"\n'
    )
    page.locator("main [name=script]").fill(script)
    expect(page.locator("main [name=nodes]")).to_have_value("2", timeout=SLOW_MS)
    expect(page.locator("main [name=name]")).to_have_value("charlm")
    expect(page.locator("main")).to_contain_text("$110.08", timeout=SLOW_MS)
    expect(page.locator("main")).to_contain_text("16 GPU-h")
    expect(page.locator("main")).to_contain_text("$49,889.92 left")
    button = page.get_by_role("button", name=re.compile(r"\$110\.08"))
    expect(button).to_be_enabled()
    button.click()

    # 3. The job page: why it waits or how it runs, logs, progress.
    page.wait_for_url(re.compile(r"/jobs/job_"))
    job = page.url.split("?")[0]
    expect(page.locator("main")).to_contain_text("Running on 2 nodes", timeout=SLOW_MS)
    expect(page.locator("main")).to_contain_text(re.compile(r"step \d+ of 120"), timeout=SLOW_MS)
    page.goto(f"{job}/logs")
    expect(page.locator("main")).to_contain_text('"loss"', timeout=SLOW_MS)

    # 4. Checkpoints as they are written.
    page.goto(f"{job}/checkpoints")
    expect(page.locator("main")).to_contain_text("Complete", timeout=SLOW_MS)
    expect(page.locator("main")).to_contain_text(".metadata was written after 4 shards")

    # 5. XID 79 on a node of the job, injected on the sandbox's own page.
    nodes = json.loads(running.manage("shell", "-v0", "-c", _NODES))
    break_a_gpu(people["lead"].page, running, nodes[1])
    reload_until(operator, "/findings", "XID 79 GPU_HAS_FALLEN_OFF_THE_BUS")
    operator.page.get_by_role("link", name=re.compile("XID 79")).first.click()
    expect(operator.page.locator("main")).to_contain_text("DCGM_EXP_XID_ERRORS_COUNT")
    expect(operator.page.locator("main")).to_contain_text(f"drained {nodes[1]}", timeout=SLOW_MS)
    page.goto(f"{job}/timeline")
    expect(page.locator("main")).to_contain_text("Node failure", timeout=SLOW_MS)
    page.goto(job)
    expect(page.locator("main")).to_contain_text("Running on 2 nodes", timeout=SLOW_MS)

    # 6. It succeeds; the ledger shows hold, charges, release and sums to zero.
    expect(page.locator("main")).to_contain_text("Succeeded", timeout=120_000)
    page.goto(f"{job}/cost")
    for word in ("Hold", "Charge", "Release"):
        expect(page.locator("main")).to_contain_text(word)
    researcher.open("/costs/teams/nlp")
    expect(page.locator("main")).to_contain_text("charlm")

    # 7. The fleet is deleted with its name typed, and AWS holds nothing.
    page = operator.page
    page.goto(fleet)
    expect(page.get_by_role("button", name="Delete…")).to_be_visible()
    page.wait_for_timeout(6000)
    page.get_by_role("button", name="Delete…").click()
    page.locator("dialog[open] [name=typed]").fill("train")
    page.locator("dialog[open] button.btn-bad").click()
    expect(page.locator("main")).to_contain_text("AWS holds nothing of it any more", timeout=SLOW_MS)
    left = json.loads(running.manage("sandbox", "census", "--json", "--control-url", running.control_url))
    assert [left[k] for k in ("instances", "placement_groups", "launch_templates", "network_interfaces")] == [0] * 4
    for one in (operator, researcher):
        assert one.complaints == [], one.complaints


_NODES = "import json; from apps.jobs.models import Attempt; print(json.dumps(Attempt.objects.latest('id').nodes))"


def test_pages_answer_while_the_cloud_is_gone(running: Portal, people: dict[str, Person]) -> None:
    """Stop the sandbox: every page still answers at once, with the age of what it shows."""
    import os
    import signal
    import time

    pid = json.loads(running.sandbox_json.read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(20)
        operator = people["operator"]
        for path in ("/", "/jobs", "/clusters", "/health", "/findings", "/checkpoints", "/costs", "/connections"):
            began = time.monotonic()
            operator.open(path)
            assert time.monotonic() - began < 3, path
            assert operator.page.locator("main").count() == 1
        operator.open("/clusters/research")
        expect(operator.page.locator("main")).to_contain_text(re.compile("as of|Unreachable"))
    finally:
        os.kill(pid, signal.SIGCONT)
