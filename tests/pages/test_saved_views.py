"""Saved views and hidden columns: whose they are, who sees and changes them, what they do to a list page."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.audit.models import Entry
from apps.teams.models import SavedView, Team
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]


def save(client: Client, **fields: Any) -> Any:
    return client.post("/views/save", {"page": "/jobs", "name": "running", "query": "phase=RUNNING", **fields})


def test_a_view_keeps_filters_order_and_columns(sign_in: SignIn) -> None:
    client = sign_in("owner")
    answer = save(client, query="phase=RUNNING&sort=name&cursor=abc", hidden=["team", "cost"])
    view = SavedView.objects.get(name="running")
    assert answer["Location"] == f"/jobs?phase=RUNNING&sort=name&view={view.uid}"
    text = client.get(answer["Location"]).content.decode()
    assert 'class="rows cards hide-4 hide-11"' in text
    assert "long-context-64k" not in text
    assert "running" in client.get("/views/menu?page=/jobs").content.decode()
    assert "running" not in client.get("/views/menu?page=/checkpoints").content.decode()
    entry = Entry.objects.filter(verb="view.save", object_uid=view.uid).get()
    assert entry.after["query"] == "phase=RUNNING&sort=name"


def test_saving_again_under_the_name_replaces(sign_in: SignIn) -> None:
    client = sign_in("owner")
    save(client)
    save(client, query="phase=FAILED")
    assert [v.query for v in SavedView.objects.filter(name="running")] == ["phase=FAILED"]


def test_columns_are_kept_for_the_person(sign_in: SignIn) -> None:
    client = sign_in("owner")
    columns = ["phase", "team", "person"]
    answer = client.post("/views/columns", {"page": "/jobs", "query": "", "column": columns, "shown": ["phase"]})
    assert answer.status_code == 302
    assert 'class="rows cards hide-4 hide-5"' in client.get("/jobs").content.decode()
    assert "hide-4" not in sign_in("lead").get("/jobs").content.decode()
    client.post("/views/columns", {"page": "/jobs", "column": columns, "shown": columns})
    assert "hide-4" not in client.get("/jobs").content.decode()


def test_the_default_opens_the_bare_page_and_can_be_left(sign_in: SignIn) -> None:
    client = sign_in("owner")
    address = save(client, is_default="1")["Location"]
    assert client.get("/jobs")["Location"] == address
    text = client.get(address).content.decode()
    assert 'href="/jobs?view=all"' in text
    assert "baseline-1b" in client.get("/jobs?view=all").content.decode()
    save(client, name="failed", query="phase=FAILED", is_default="1")
    assert [v.name for v in SavedView.objects.filter(is_default=True)] == ["failed"]
    uid = SavedView.objects.get(name="failed").uid
    client.post(f"/views/{uid}/change", {"what": "undefault"})
    assert client.get("/jobs").status_code == 200


def test_a_lead_shares_with_the_team_and_others_do_not(sign_in: SignIn, site: DemoRows) -> None:
    team = Team.objects.get(slug="nlp")
    assert save(sign_in("owner"), team="nlp").status_code in (403, 404)
    assert save(sign_in("lead"), team="nlp", name="ours").status_code == 302
    view = SavedView.objects.get(name="ours")
    assert view.team == team
    member = sign_in("member")
    assert "ours" in member.get("/views/menu?page=/jobs").content.decode()
    assert member.get(view.address).status_code == 200
    assert member.post(f"/views/{view.uid}/change", {"what": "delete"}).status_code == 404
    outsider = sign_in("outsider")
    assert "ours" not in outsider.get("/views/menu?page=/jobs").content.decode()
    assert outsider.get(view.address).status_code == 400
    assert outsider.post(f"/views/{view.uid}/change", {"what": "delete"}).status_code == 404
    assert SavedView.objects.filter(pk=view.pk).exists()


def test_others_neither_see_nor_touch_a_personal_view(sign_in: SignIn) -> None:
    save(sign_in("owner"))
    view = SavedView.objects.get(name="running")
    for person in ("member", "lead", "outsider", "admin"):
        client = sign_in(person)
        assert "running" not in client.get("/views").content.decode()
        assert client.get(view.address).status_code == 400
        for what in ("rename", "default", "delete"):
            assert client.post(f"/views/{view.uid}/change", {"what": what, "name": "x"}).status_code == 404
    assert sign_in("anonymous").post("/views/save", {"page": "/jobs", "name": "x"}).status_code == 302
    assert SavedView.objects.count() == 1


def test_renaming_and_deleting(sign_in: SignIn) -> None:
    client = sign_in("owner")
    save(client)
    save(client, name="other")
    view = SavedView.objects.get(name="running")
    assert client.post(f"/views/{view.uid}/change", {"what": "rename", "name": "other"}).status_code == 422
    client.post(f"/views/{view.uid}/change", {"what": "rename", "name": "busy"})
    assert "busy" in client.get("/views").content.decode()
    client.post(f"/views/{view.uid}/change", {"what": "delete"})
    assert not SavedView.objects.filter(pk=view.pk).exists()
    verbs = Entry.objects.filter(object_uid=view.uid).order_by("id").values_list("verb", flat=True)
    assert list(verbs) == ["view.save", "view.rename", "view.delete"]


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "x" * 61},
        {"page": "/nowhere"},
        {"page": "https://elsewhere.example/"},
        {"page": "//elsewhere.example/jobs"},
        {"page": "/healthz"},
        {"query": "q=" + "x" * 1000},
        {"hidden": ["<b>"]},
    ],
)
def test_bad_input_is_refused(sign_in: SignIn, fields: dict[str, Any]) -> None:
    assert save(sign_in("owner"), **fields).status_code == 422
    assert SavedView.objects.count() == 0


def test_no_form_leads_out_of_the_portal(sign_in: SignIn) -> None:
    answer = sign_in("owner").post("/views/columns", {"page": "//elsewhere.example/", "column": [], "query": "x=1"})
    assert answer.status_code == 422


LISTS = ("jobs", "checkpoints", "checkpoints-all", "ledger", "gpus", "xid-codes", "findings", "audit")


@pytest.mark.parametrize("name", LISTS)
def test_a_hidden_column_is_the_one_that_was_named(sign_in: SignIn, more: DemoRows, name: str) -> None:
    client = sign_in("admin")
    path = reverse(name)
    text = client.get(path).content.decode()
    head = re.search(r"<thead>(.*?)</thead>", text, re.DOTALL)
    assert head
    heads = [html.unescape(re.sub(r"<[^>]+>", "", c)).strip() for c in re.findall(r"<th\b.*?</th>", head[1], re.DOTALL)]
    box = r'name="column" value="(\w+)">\s*<label class="tick">\s*<input[^>]*>\s*([^<]+?)\s*</label>'
    listed = re.findall(box, text, re.DOTALL)
    assert listed
    for column, label in listed:
        others = [c for c, _label in listed if c != column]
        client.post("/views/columns", {"page": path, "column": [column, *others], "shown": others})
        place = re.search(r'<table class="rows[^"]* hide-(\d+)"', client.get(path).content.decode())
        assert place
        assert heads[int(place[1]) - 1] == html.unescape(label)
