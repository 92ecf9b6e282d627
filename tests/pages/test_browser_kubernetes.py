"""A new job on Kubernetes in a real browser: fields that come and go, clusters compared, a manifest's flaws by line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser_kit import axe, browser, chromium, person
from tests.demo_kubernetes import IMAGE, MANIFEST, demo_kubernetes
from tests.demo_rows import PASSWORD, demo_rows

pytestmark = [pytest.mark.browser, pytest.mark.skipif(not chromium(), reason="needs Chromium")]
# Playwright keeps an event loop in this thread; Django would take our plain ORM calls for async ones.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.mark.django_db(transaction=True)
def test_kubernetes_in_a_browser(window: Any, live_server: Any) -> None:
    """One person, one job, two schedulers."""
    demo_kubernetes(demo_rows())
    visitor = person(window, live_server.url, user="owner", password=PASSWORD)
    clusters_bring_their_fields(visitor)
    another_cluster_is_taken_by_one_click(visitor)
    a_manifest_is_mended_by_line_and_submitted(visitor)
    assert visitor.complaints == []
    visitor.context.close()


def clusters_bring_their_fields(visitor: Any) -> None:
    page = visitor.page
    visitor.open("/jobs/new")
    page.select_option("#id_cluster", label="ada")
    expect(page.locator("#field-partition")).to_be_visible()
    expect(page.locator("#field-image")).to_be_hidden()
    page.fill("#id_script", "#!/bin/bash\n#SBATCH --job-name=both -N 1 --gpus-per-node=8 -t 30\ntorchrun a.py\n")
    expect(page.locator("#id_name")).to_have_value("both")
    page.select_option("#id_cluster", label="kepler")
    expect(page.locator("#field-image")).to_be_visible()
    expect(page.locator("#id_image")).to_have_value(IMAGE)
    expect(page.locator("#field-partition")).to_be_hidden()
    expect(page.locator("#id_name")).to_have_value("both")
    expect(page.locator("#verdict")).to_contain_text("JobSet")
    expect(page.locator("#submit-job")).to_be_enabled()
    assert axe(page) == []


def another_cluster_is_taken_by_one_click(visitor: Any) -> None:
    page = visitor.page
    page.locator("#candidates > summary").click()
    table = page.locator("#candidates-in table")
    expect(table).to_be_visible()
    expect(page.locator("#candidates-in .recommended")).to_contain_text("Recommended")
    expect(page.locator("#candidates-in .rendering")).to_have_count(2)
    expect(page.locator("#candidates-in")).to_contain_text("kind: JobSet")
    assert axe(page) == []
    assert visitor.sideways() == 0
    table.get_by_role("button", name="Take ada").click()
    expect(page.locator("#id_cluster option:checked")).to_have_text("ada")
    expect(page.locator("#field-partition")).to_be_visible()
    expect(page.locator("#field-image")).to_be_hidden()


def a_manifest_is_mended_by_line_and_submitted(visitor: Any) -> None:
    page = visitor.page
    page.select_option("#id_cluster", label="kepler")
    page.locator("button[data-source=manifest]").click()
    expect(page.locator("#field-nodes")).to_be_hidden()
    expect(page.locator("#field-image")).to_be_hidden()
    page.fill("#id_name", "")
    page.fill("#id_time_limit", "")
    page.fill("#id_manifest", MANIFEST.replace("restartPolicy: Never", "hostNetwork: true"))
    flaw = page.locator("#manifest-flaws li")
    expect(flaw).to_have_count(1)
    expect(flaw).to_contain_text("hostNetwork")
    flaw.locator("button").click()
    chosen = page.evaluate(
        "() => { const b = document.activeElement; return b.value.slice(b.selectionStart, b.selectionEnd); }"
    )
    assert chosen.strip() == "hostNetwork: true"
    assert axe(page) == []
    page.fill("#id_manifest", MANIFEST)
    expect(page.locator("#id_name")).to_have_value("grpo-rollout")
    expect(page.locator("#verdict")).to_contain_text("1 pod with 8 GPUs")
    page.locator("#submit-job").click()
    page.wait_for_url(re.compile(r"/jobs/job_"))
    expect(page.locator("h1")).to_have_text("grpo-rollout")
