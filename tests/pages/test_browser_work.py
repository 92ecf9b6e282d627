"""The pages of Work in a real browser: scripts run under the strict policy, axe is clean, the story of a submit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.blocks import make_block
from tests.browser_kit import Person, axe, browser, chromium, person
from tests.demo_rows import PASSWORD, demo_rows

pytestmark = [pytest.mark.browser, pytest.mark.skipif(not chromium(), reason="needs Chromium")]
# Playwright keeps an event loop in this thread; Django would take our plain ORM calls for async ones.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
SCRIPT = (
    "#!/bin/bash\n#SBATCH --job-name=pasted\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=h100:8\n#SBATCH -t 30\ntrue\n"
)


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with browser() as found:
        yield found


def visitor_of(found: Any, origin: str, **options: str) -> Person:
    """The owner's window."""
    return person(found, origin, user="owner", password=PASSWORD, **options)


def paths(rows: Any) -> list[str]:
    job = rows.jobs["llama-70b-pretrain"].uid
    tabs = ("", "/logs", "/checkpoints", "/timeline", "/config", "/cost")
    return ["/", "/jobs", "/jobs/new", "/tokens", "/accounts/password/change/", *(f"/jobs/{job}{tab}" for tab in tabs)]


@pytest.mark.django_db(transaction=True)
def test_work_in_a_browser(window: Any, live_server: Any) -> None:
    """One seeded site, walked by several people; the parts stand below as functions."""
    rows = demo_rows()
    every_page_is_sound(window, live_server.url, rows)
    a_pasted_script_becomes_a_job(window, live_server.url)
    output_is_text_whatever_it_holds(window, live_server.url, rows)
    the_palette_and_the_keyboard(window, live_server.url, rows)
    new_rows_wait_behind_a_pill(window, live_server.url, rows)
    ticked_rows_survive_polls_and_are_cancelled(window, live_server.url, rows)
    a_limit_beyond_its_block_is_set_by_one_click(window, live_server.url, rows)
    settings_of_the_person(window, live_server.url)


def every_page_is_sound(window: Any, origin: str, rows: Any) -> None:
    """No complaint, no sideways scroll, nothing for axe; each page is opened once a view."""
    for width, theme in (("wide", "light"), ("wide", "dark"), ("phone", "light")):
        visitor = visitor_of(window, origin, width=width, theme=theme)
        for path in paths(rows):
            visitor.open(path)
            visitor.page.wait_for_timeout(300)
            assert visitor.complaints == [], f"{path}, {width}, {theme}"
            assert visitor.sideways() <= 0, f"{path}, {width}, {theme}"
            if width == "wide":
                assert axe(visitor.page) == [], f"{path}, {theme}"
                visitor.complaints.clear()  # of axe's own script, which the policy does not know
        visitor.context.close()


def a_pasted_script_becomes_a_job(window: Any, origin: str) -> None:
    from playwright.sync_api import expect

    from apps.jobs.models import Job

    visitor = visitor_of(window, origin)
    page = visitor.page
    visitor.open("/jobs/new")
    page.fill("#id_script", SCRIPT)
    expect(page.locator("#id_name")).to_have_value("pasted")
    expect(page.locator("#id_time_limit")).to_have_value("0:30:00")
    button = page.locator("#submit-job")
    page.wait_for_selector("#submit-job:not([disabled])")
    assert "Submit and hold $27.52" in button.inner_text()
    page.get_by_role("tab", name="Script", exact=True).click()
    assert "--job-name=pasted" in page.inner_text("#rendered")
    page.get_by_role("tab", name="What will happen").click()
    page.fill("#id_nodes", "99")
    page.wait_for_selector("#nodes-problem:not(:empty)")
    assert "99 nodes asked for" in page.inner_text("#nodes-problem")
    page.fill("#id_nodes", "1")
    page.wait_for_selector("#submit-job:not([disabled])")
    page.set_input_files(
        "#id_upload", files=[{"name": "core.bin", "mimeType": "application/octet-stream", "buffer": b"\x7fELF\x00"}]
    )
    page.wait_for_selector("#upload-problem:not(:empty)")
    assert "binary file" in page.inner_text("#upload-problem")
    page.wait_for_selector("#submit-job:not([disabled])")
    button.dblclick()
    page.wait_for_url(re.compile(r"/jobs/job_"))
    assert "Accepted" in page.inner_text("#job-state")
    assert Job.objects.filter(name="pasted").count() == 1
    assert visitor.complaints == []
    visitor.context.close()


def output_is_text_whatever_it_holds(window: Any, origin: str, rows: Any) -> None:
    from apps.jobs.models import LogChunk

    job = rows.jobs["llama-70b-pretrain"]
    attempt = job.attempts.get(number=2)
    base = {"attempt": attempt, "runner_id": f"{attempt.uid}-0", "stream": "stderr", "at": attempt.started_at}
    LogChunk.objects.create(**base, offset=0, size=1, text="x" * 1_000_000 + "\n")
    LogChunk.objects.create(**base, offset=1, size=1, level=2, text="\x1b[31mRuntimeError: \x1b]0;title\x07NCCL tim")
    LogChunk.objects.create(**base, offset=2, size=1, text="eout\x1b[0m\n<img src=x onerror=alert(1)>\n")
    visitor = visitor_of(window, origin)
    page = visitor.page
    page.on("dialog", lambda dialog: pytest.fail(f"markup ran: {dialog.message}"))
    visitor.open(f"/jobs/{job.uid}/logs")
    page.wait_for_selector("text=RuntimeError: NCCL timeout")
    assert page.locator("[data-log] img").count() == 0
    text = page.inner_text("[data-log]")
    assert "\x1b" not in text
    assert "]0;title" not in text
    assert "loading shards: 100%" in text
    assert "loading shards:  12%" not in text
    longest = page.evaluate(
        "Math.max(...[...document.querySelectorAll('[data-log] li')].map(l => l.textContent.length))"
    )
    assert longest < 10_000
    assert page.locator("[data-log] li").count() <= 5000
    page.get_by_role("button", name="First error").click()
    assert "RuntimeError" in page.inner_text(".hit-now")
    assert page.get_by_role("button", name="Follow").get_attribute("aria-pressed") == "false"
    page.fill("[data-log-search]", "step   1")
    assert page.locator("li.hit").count() > 0
    page.fill("[data-log-search]", "")
    page.get_by_role("button", name="Follow").click()
    LogChunk.objects.create(**base, offset=3, size=1, text="a later line\n")
    page.wait_for_selector("text=a later line")
    page.select_option("[data-log-attempt]", "1")
    # The words of attempt 1 stood there before, too: only the others' going shows that the switch is through.
    expect(page.locator("[data-log]")).not_to_contain_text("RuntimeError")
    expect(page.locator("[data-log]")).to_contain_text("starting from scratch")
    assert visitor.complaints == []
    visitor.context.close()


def the_palette_and_the_keyboard(window: Any, origin: str, rows: Any) -> None:
    visitor = visitor_of(window, origin)
    page = visitor.page
    page.keyboard.press("Control+k")
    page.wait_for_selector("#palette [role=option]")
    page.keyboard.type("llama")
    page.wait_for_selector("#palette [role=option] >> text=llama-70b-pretrain")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{origin}/jobs/{rows.jobs['llama-70b-pretrain'].uid}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.get_by_role("button", name="Cancel…").click()
    assert page.locator("#ask-cancel").evaluate("d => d.open")
    page.keyboard.press("Escape")
    assert not page.locator("#ask-cancel").evaluate("d => d.open")
    visitor.open("/jobs")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    assert visitor.complaints == []
    visitor.context.close()


def new_rows_wait_behind_a_pill(window: Any, origin: str, rows: Any) -> None:
    from apps.health.models import Finding

    visitor = visitor_of(window, origin)
    page = visitor.page
    node = rows.nodes["p5-main-6"]
    facts = {"node": node, "source": "test", "severity": "watch", "suggested_action": "look"}
    first = Finding.objects.create(code="one", title="The first of two", **facts)
    visitor.open("/findings")
    place = "document.querySelector('#finding-rows tbody tr').getBoundingClientRect().top"
    before = page.evaluate(place)
    Finding.objects.create(code="two", title="The second of two", **facts)
    Finding.objects.filter(pk=first.pk).update(title="The first, told anew")
    pill = page.get_by_role("button", name="1 new", exact=True)
    pill.wait_for(timeout=15_000)
    assert page.locator("text=The first, told anew").count() == 1
    assert page.locator("text=The second of two").count() == 0
    assert abs(page.evaluate(place) - before) < 1
    pill.click()
    page.wait_for_selector("text=The second of two")
    assert page.get_by_role("button", name="1 new", exact=True).count() == 0
    assert visitor.complaints == []
    visitor.context.close()


def ticked_rows_survive_polls_and_are_cancelled(window: Any, origin: str, rows: Any) -> None:
    from apps.jobs.models import Job

    visitor = visitor_of(window, origin, width="phone")
    page = visitor.page
    visitor.open("/jobs")
    uid = rows.jobs["long-context-64k"].uid
    page.check(f"input[value={uid}]")
    Job.objects.filter(uid=uid).update(name="renamed-meanwhile")
    page.wait_for_selector("text=renamed-meanwhile", timeout=10_000)
    assert page.is_checked(f"input[value={uid}]")
    page.get_by_role("button", name="Cancel…").click()
    page.wait_for_selector("#ask-bulk >> text=Cancel 1 job")
    page.locator("#ask-bulk").get_by_role("button", name="Cancel 1 job").click()
    page.wait_for_selector("text=1 job is being cancelled.")
    assert Job.objects.get(uid=uid).stop_kind == "cancel"
    page.get_by_role("button", name="Done").click()
    assert not page.is_checked(f"input[value={uid}]")
    page.get_by_role("button", name="Menu", exact=True).click()
    page.get_by_role("link", name="Home", exact=True).click()
    page.wait_for_url(f"{origin}/")
    assert visitor.complaints == []
    visitor.context.close()


def a_limit_beyond_its_block_is_set_by_one_click(window: Any, origin: str, rows: Any) -> None:
    from apps.capacity.models import Reservation
    from apps.core import clock

    block = make_block(rows.clusters["ada"], rows.teams["nlp"])
    Reservation.objects.filter(pk=block.pk).update(end_at=clock.now() + timedelta(hours=5, seconds=30))
    visitor = visitor_of(window, origin)
    page = visitor.page
    visitor.open("/jobs/new")
    page.fill("#id_script", SCRIPT.replace("-t 30", "-t 600"))
    expect(page.locator("#id_time_limit")).to_have_value("10:00:00")
    button = page.locator("[data-fill=time_limit]")
    expect(button).to_be_visible()
    expect(page.locator("#submit-job")).to_be_disabled()
    assert axe(page) == []
    visitor.complaints.clear()
    button.click()
    expect(page.locator("#submit-job")).to_be_enabled()
    expect(page.locator("#id_time_limit")).to_have_value(re.compile(r"^4:(10|09):00$"))
    expect(button).to_have_count(0)
    assert visitor.complaints == []
    visitor.context.close()


def settings_of_the_person(window: Any, origin: str) -> None:
    visitor = visitor_of(window, origin)
    page = visitor.page
    page.locator(".me-menu summary").click()
    page.get_by_role("button", name="Dark").click()
    visitor.open("/jobs")
    assert page.get_attribute("html", "data-bs-theme") == "dark"
    page.locator(".side-fold").click()
    visitor.open("/")
    assert page.get_attribute("html", "data-nav") == "narrow"
    page.get_by_role("button", name="한국어로 보기").click()
    page.wait_for_selector("h1 >> text=홈")
    page.locator(".me-menu summary").click()
    page.get_by_role("button", name="로그아웃").click()
    page.wait_for_url(re.compile("/accounts/login/"))
    assert visitor.complaints == []
    visitor.context.close()
