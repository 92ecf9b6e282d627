"""Templates in a real browser: one is made with rows and a preview, used with its locks, compared, and retired."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser_kit import axe, browser, chromium, person
from tests.demo_rows import PASSWORD, demo_rows

pytestmark = [pytest.mark.browser, pytest.mark.skipif(not chromium(), reason="needs Chromium")]
# Playwright keeps an event loop in this thread; Django would take our plain ORM calls for async ones.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
NAME = "bench"


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.mark.django_db(transaction=True)
def test_templates_in_a_browser(window: Any, live_server: Any) -> None:
    """The story of one template, told by its lead and by who uses it."""
    from tests.demo_templates import demo_templates

    demo_templates(demo_rows())
    every_page_is_sound(window, live_server.url)
    a_lead_makes_one(window, live_server.url)
    a_researcher_uses_it(window, live_server.url)
    a_lead_retires_it(window, live_server.url)


def every_page_is_sound(window: Any, origin: str) -> None:
    """No complaint, no sideways scroll, nothing for axe."""
    base = "/templates/pretrain-sweep"
    for width, theme, language in (("wide", "light", "en"), ("phone", "dark", "ko")):
        visitor = person(window, origin, user="lead", password=PASSWORD, width=width, theme=theme, language=language)
        for path in (
            "/templates",
            base,
            f"{base}/versions/3",
            f"{base}/edit",
            "/templates/new",
            "/templates/retries/nlp",
        ):
            visitor.open(path)
            assert visitor.sideways() == 0, (path, width)
            assert axe(visitor.page) == [], (path, width, theme)
        visitor.open("/jobs/new?template=pretrain-sweep")
        visitor.page.wait_for_selector("#verdict .facts")
        assert visitor.sideways() == 0
        assert axe(visitor.page) == []
        assert visitor.complaints == []
        visitor.context.close()


def a_lead_makes_one(window: Any, origin: str) -> None:
    visitor = person(window, origin, user="lead", password=PASSWORD)
    page = visitor.page
    visitor.open("/templates/new")
    page.fill("#id_name", NAME)
    page.fill("#id_title", "Bench")
    page.get_by_label("Language models (nlp)").check()
    page.fill("#id_script", "#!/bin/bash\nbench --rounds {{ rounds }} {{ deep }}\n")
    page.wait_for_selector("#template-preview :text('there is no parameter of this name')")
    # Two rows come, a third goes again.
    for count in (1, 2, 3):
        page.get_by_role("button", name="Add a parameter").click()
        expect(page.locator(".param")).to_have_count(count)
    page.locator(".param").nth(2).get_by_role("button", name="Remove").click()
    expect(page.locator(".param")).to_have_count(2)
    rounds, deep = page.locator(".param").nth(0), page.locator(".param").nth(1)
    rounds.get_by_label("Name").fill("rounds")
    assert rounds.get_by_label("Least").is_hidden()
    rounds.get_by_label("Kind").select_option("integer")
    assert rounds.get_by_label("Least").is_visible()
    rounds.get_by_label("Default").fill("5")
    rounds.get_by_label("Most").fill("9")
    deep.get_by_label("Name").fill("deep")
    deep.get_by_label("Kind").select_option("switch")
    deep.get_by_label("Value", exact=True).select_option("locked")
    deep.get_by_label("Default").fill("true")
    deep.get_by_label("Text when on").fill("--deep")
    for name, state, value in (("nodes", "locked", "1"), ("gpus_per_node", "default", "8"), ("array", "free", "")):
        page.select_option(f"#id_s_{name}", state)
        page.fill(f"#id_d_{name}", value)
    page.select_option("#id_s_time_limit_min", "default")
    page.fill("#id_d_time_limit_min", "0:45:00")
    page.wait_for_selector("#template-preview :text('bench --rounds 5 --deep')")
    page.fill("#id_why", "to try it")
    page.get_by_role("button", name="Make the template").click()
    page.wait_for_url(re.compile(rf"/templates/{NAME}$"))
    assert "2 values are fixed" in page.inner_text("main")
    # A bad value comes back at its place, with everything else as it was typed.
    page.get_by_role("link", name="Edit").click()
    page.locator(".param").nth(0).get_by_label("Default").fill("many")
    page.get_by_role("button", name="Save as a new version").click()
    page.wait_for_selector(".param .problem:text('must be a whole number')")
    page.locator(".param").nth(0).get_by_label("Default").fill("6")
    page.fill("#id_why", "six rounds")
    page.get_by_role("button", name="Save as a new version").click()
    page.wait_for_url(re.compile(rf"/templates/{NAME}$"))
    page.get_by_role("link", name="version 2").click()
    page.wait_for_selector("text=Against version 1")
    assert "six rounds" in page.inner_text("main")
    refused = [c for c in visitor.complaints if "422" not in c]
    assert refused == []
    visitor.context.close()


def a_researcher_uses_it(window: Any, origin: str) -> None:
    from apps.jobs.models import Job

    visitor = person(window, origin, user="owner", password=PASSWORD)
    page = visitor.page
    visitor.open("/jobs/new")
    page.get_by_role("tab", name="Template").click()
    page.select_option("#id_template", NAME)
    page.wait_for_selector("#id_nodes[readonly]")
    assert page.input_value("#id_nodes") == "1"
    assert page.input_value("#id_time_limit") == "0:45:00"
    assert page.input_value("#id_name") == NAME
    assert "Fixed by the template" in page.inner_text("#field-nodes")
    page.fill("#id_p_rounds", "12")
    page.wait_for_selector("#p_rounds-problem:text('must be at most 9')")
    page.fill("#id_p_rounds", "7")
    page.wait_for_selector("#submit-job:not([disabled])")
    page.click("#submit-job")
    page.wait_for_url(re.compile(r"/jobs/job_"))
    job = Job.objects.get(name=NAME)
    assert (job.template_version, job.script) == (2, "#!/bin/bash\nbench --rounds 7 --deep\n")
    assert "version 2" in page.inner_text("#job-rail")
    # Another template locks other fields, one's own script none.
    page.get_by_role("link", name="Copy and edit").click()
    page.wait_for_selector("#id_nodes[readonly]")
    assert page.input_value("#id_p_rounds") == "7"
    page.select_option("#id_template", "pretrain-sweep")
    page.wait_for_selector("#id_gpus_per_node[readonly]")
    assert page.get_attribute("#id_nodes", "readonly") is None
    page.select_option("#id_template", NAME)
    page.wait_for_selector("#id_nodes[readonly]")
    page.fill("#id_p_rounds", "8")
    page.get_by_role("tab", name="Changes").click()
    page.wait_for_selector("#changes-in .add:text('bench --rounds 8 --deep')")
    assert "rounds" in page.inner_text("#changes-in table")
    page.get_by_role("tab", name="My script").click()
    page.wait_for_selector("#id_nodes:not([readonly])")
    assert visitor.complaints == []
    visitor.context.close()


def a_lead_retires_it(window: Any, origin: str) -> None:
    visitor = person(window, origin, user="lead", password=PASSWORD)
    page = visitor.page
    visitor.open(f"/templates/{NAME}")
    assert page.locator("table a", has_text=NAME).count() == 1
    page.get_by_role("button", name="Retire…").click()
    page.get_by_role("button", name="Retire", exact=True).click()
    page.wait_for_selector("text=its jobs keep it")
    visitor.open("/jobs/new")
    assert page.locator(f"#id_template option[value={NAME}]").count() == 0
    assert visitor.complaints == []
    visitor.context.close()
