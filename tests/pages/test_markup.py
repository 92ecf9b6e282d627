"""What holds for every page: no inline style or script, one heading, labelled controls, both languages."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from django.test import Client
from django.urls import reverse

from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]
OF_JOB = ["job", "job-logs", "job-checkpoints", "job-timeline", "job-config", "job-cost"]


class Scan(HTMLParser):
    """Collects what the strict CSP would drop and what a reader would miss."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.ids: list[str] = []
        self.headings = 0
        self.script_open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for name in given:
            if name == "style" or name.startswith("on"):
                self.faults.append(f"<{tag} {name}>")
        if tag == "style" or (tag == "script" and not given.get("src")):
            self.faults.append(f"inline <{tag}>")
        href = given.get("href") or given.get("src") or ""
        if href.startswith(("javascript:", "http://", "https://", "//")):
            self.faults.append(f"<{tag}> leads to {href}")
        if given.get("id"):
            self.ids.append(str(given["id"]))
        self.headings += tag == "h1"


def scan(text: str) -> Scan:
    found = Scan()
    found.feed(text)
    return found


def addresses(site: DemoRows) -> list[str]:
    running, ended = site.jobs["llama-70b-pretrain"], site.jobs["sft-instruct-v3"]
    return [
        "/",
        "/jobs",
        "/jobs?phase=RUNNING&q=zzz",
        "/jobs?nope=1",
        "/jobs/new",
        f"/jobs/new?from={running.uid}",
        "/tokens",
        "/accounts/password/change/",
        "/accounts/logout/",
        *(reverse(name, args=[job.uid]) for name in OF_JOB for job in (running, ended)),
    ]


@pytest.mark.parametrize("language", ["en", "ko"])
def test_no_page_carries_what_the_policy_forbids(sign_in: SignIn, site: DemoRows, language: str) -> None:
    client = sign_in("owner", language)
    for address in addresses(site):
        answer = client.get(address)
        assert answer.status_code in (200, 400), address
        found = scan(answer.content.decode())
        assert found.faults == [], address
        assert found.headings == 1, address
        assert sorted(set(found.ids)) == sorted(found.ids), f"{address}: an id is used twice"
        assert f'<html lang="{language}"' in answer.content.decode()


def test_fragments_carry_nothing_inline_either(sign_in: SignIn, site: DemoRows) -> None:
    client = sign_in("owner")
    for address in ("/", "/search?q=a", *(reverse(n, args=[site.jobs["moe-8x7b-ablation"].uid]) for n in OF_JOB)):
        text = client.get(address, headers={"HX-Request": "true"}).content.decode()
        assert scan(text).faults == [], address


def test_the_policy_itself_is_strict(sign_in: SignIn) -> None:
    policy = sign_in("owner").get("/")["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "unsafe" not in policy


def test_korean_pages_show_no_english_words_of_ours(sign_in: SignIn, site: DemoRows) -> None:
    """A sample of words that would show a string nobody marked."""
    client = sign_in("owner", "ko")
    for address in addresses(site)[:3]:
        text = re.sub(r"<(script|style|head)\b.*?</\1>", "", client.get(address).content.decode(), flags=re.DOTALL)
        words = re.sub(r"<[^>]+>", " ", text)
        for word in ("Running", "Waiting", "Submitted", "Cancel", "Filter", "Sign out", "Progress"):
            assert not re.search(rf"\b{word}\b", words), f"{address}: {word}"


def test_figures_carry_their_units(site: DemoRows) -> None:
    from django.template import Context, Template

    from apps.jobs.states import JOB_COLOURS

    def drawn(source: str, **context: object) -> str:
        return Template(source).render(Context(context))

    assert drawn("{{ 8040|duration }}") == "2 h 14 min"
    assert drawn("{{ n|usd }}", n=1234.5) == "$1,234.50"
    assert drawn("{{ n|gpu_hours }}", n=128) == "128 GPU-h"
    assert drawn("{{ n|bytes }}", n=1024**3) == "1.0 GiB"
    assert drawn("{{ 3|percent_of:4 }}") == "75"
    assert drawn("{{ 3|percent_of:0 }}") == "0"
    assert "st-bad" in drawn("{% status 'FAILED' c %}", c=JOB_COLOURS)
    assert ">Failed<" in drawn("{% status 'FAILED' c %}", c=JOB_COLOURS)
    assert "&lt;b&gt;" in drawn("{% copyable t %}", t="<b>")
    assert 'value="3"' in drawn("{% bar 3 4 'x' %}")
    assert 'value="4"' in drawn("{% bar 9 4 'x' %}")
    assert drawn("{% ago t %}", t=None) == "–"
    assert drawn("{% icon 'no-such-icon' %}").startswith("<svg")
    assert drawn("{% icon '../../package' %}") == drawn("{% icon 'no-such-icon' %}")
    assert 'points="0.0,26.0 120.0,2.0"' in drawn("{% sparkline v 'x' %}", v=[0, 5])
