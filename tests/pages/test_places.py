"""Every page of capacity, health, checkpoints, money and admin: who may open it, queries, clean markup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.demo_rows import DemoRows
from tests.pages.places import FILES, FRAGMENTS, PLACES, address
from tests.pages.test_markup import scan

SignIn = Callable[..., Client]
MAY = {
    "everyone": {"outsider", "member", "owner", "lead", "operator", "admin"},
    "team": {"member", "owner", "lead", "operator", "admin"},
    "operators": {"operator", "admin"},
    "keepers": {"lead", "admin"},
    "admins": {"admin"},
}
PEOPLE = ("outsider", "member", "owner", "lead", "operator", "admin")


@pytest.mark.parametrize(("name", "about", "who"), PLACES, ids=[f"{p[0]}-{p[1]}" for p in PLACES])
def test_who_may_open_it(sign_in: SignIn, more: DemoRows, name: str, about: str, who: str) -> None:
    where = address(more, name, about)
    anonymous = sign_in("anonymous").get(where)
    assert anonymous.status_code == 302
    assert anonymous["Location"].startswith("/accounts/login/?next=")
    for person in PEOPLE:
        status = sign_in(person).get(where).status_code
        if person in MAY[who]:
            assert status == 200, person
        else:
            assert status in (403, 404), person


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize(("name", "about", "who"), PLACES, ids=[f"{p[0]}-{p[1]}" for p in PLACES])
def test_markup_is_clean(sign_in: SignIn, more: DemoRows, name: str, about: str, who: str, language: str) -> None:
    if name in FILES:
        return
    text = sign_in("admin", language).get(address(more, name, about)).content.decode()
    found = scan(text)
    assert found.faults == []
    assert len(found.ids) == len(set(found.ids))
    if name not in FRAGMENTS:
        assert found.headings == 1
        assert f'lang="{language}"' in text


STRICT = (
    "clusters",
    "catalog",
    "health",
    "gpus",
    "xid-codes",
    "findings",
    "checkpoints",
    "checkpoints-all",
    "costs",
    "ledger",
    "quotas",
    "connections",
    "audit",
)


@pytest.mark.parametrize("name", STRICT)
def test_an_unknown_parameter_is_refused_by_name(sign_in: SignIn, more: DemoRows, name: str) -> None:
    answer = sign_in("admin").get(f"{address(more, name, '')}?nope=1")
    assert answer.status_code == 400
    assert "nope" in answer.content.decode()


@pytest.mark.parametrize(
    ("name", "query", "words"),
    [
        ("clusters", "phase=ASLEEP", "ASLEEP"),
        ("clusters", "sort=colour", "colour"),
        ("catalog", "sort=beauty", "beauty"),
        ("catalog", "gpu=Z9", "Z9"),
        ("health", "metric=mood", "mood"),
        ("health", "cluster=nowhere", "nowhere"),
        ("gpus", "on_bus=maybe", "maybe"),
        ("gpus", "cursor=abc", "cursor"),
        ("xid-codes", "severity=awful", "awful"),
        ("findings", "phase=CLOSED", "CLOSED"),
        ("findings", "severity=awful", "awful"),
        ("checkpoints", "sort=step", "step"),
        ("checkpoints-all", "state=HALF", "HALF"),
        ("gpus", "cluster=nowhere", "nowhere"),
        ("checkpoints", "team=nope", "nope"),
        ("checkpoints-all", "team=nope", "nope"),
        ("checkpoints-all", "state=HALF", "choose from: In progress, "),
        ("ledger", "team=nope", "nope"),
        ("ledger", "unit=EUR", "EUR"),
        ("ledger", "kind=GIFT", "GIFT"),
        ("ledger", "since=yesterday", "since"),
        ("ledger-csv", "unit=EUR", "EUR"),
        ("quotas", "sort=size", "size"),
        ("connections", "phase=LOST", "LOST"),
        ("audit", "until=never", "until"),
        ("audit-csv", "until=never", "until"),
    ],
)
def test_an_unknown_value_is_refused_by_name(
    sign_in: SignIn, more: DemoRows, name: str, query: str, words: str
) -> None:
    answer = sign_in("admin").get(f"{address(more, name, '')}?{query}")
    assert answer.status_code == 400
    assert words in answer.content.decode()


#: Queries of each list page for an administrator, frame and the person's own set-up of the list included: they do not
#: grow with the rows.
QUERIES = {
    "clusters": 11,
    "gpus": 10,
    "xid-codes": 9,
    "findings": 10,
    "checkpoints": 11,
    "checkpoints-all": 10,
    "costs": 9,
    "ledger": 11,
    "quotas": 13,
    "connections": 9,
    "audit": 11,
    "health": 10,
    "catalog": 6,
}


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_query_counts_are_pinned(sign_in: SignIn, more: DemoRows, name: str) -> None:
    client = sign_in("admin")
    client.get(address(more, name, ""))
    with CaptureQueriesContext(connection) as seen:
        assert client.get(address(more, name, "")).status_code == 200
    assert len(seen) == QUERIES[name], [q["sql"][:120] for q in seen.captured_queries]


def test_a_live_part_comes_alone(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("operator")
    for name, about in (("clusters", ""), ("cluster", "cluster"), ("fleet", "fleet"), ("health", ""), ("node", "node")):
        text = client.get(address(more, name, about), headers={"HX-Request": "true"}).content.decode()
        assert "<html" not in text, name
        assert 'hx-swap="outerHTML"' in text, name


def test_the_menu_leads_only_where_one_may_go(sign_in: SignIn, more: DemoRows) -> None:
    def hrefs(who: str) -> set[str]:
        text = sign_in(who).get("/catalog").content.decode()
        side = text[text.index('id="side"') : text.index("</nav>")]
        return {
            p for p in ("/clusters", "/findings", "/costs", "/quotas", "/connections", "/audit") if f'"{p}"' in side
        }

    shared: set[Any] = {"/clusters", "/findings", "/costs", "/quotas"}
    assert hrefs("member") == shared
    assert hrefs("operator") == {*shared, "/connections"}
    assert hrefs("admin") == {*shared, "/connections", "/audit"}
