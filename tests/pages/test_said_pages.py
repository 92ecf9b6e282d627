"""Korean readers meet no English sentence of the worker's: not on pages, not in the API."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from apps.checkpoints.models import Checkpoint
from apps.health.advice import SHIPPED
from apps.health.models import Finding
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]
ROOT = Path(__file__).resolve().parents[2]
#: Where sentences are written that are stored.
WRITERS = (
    "apps/checkpoints/rules.py",
    "apps/checkpoints/services.py",
    "apps/clusters/observations.py",
    "apps/health/rules.py",
    "apps/health/services.py",
    "apps/jobs/observations.py",
    "worker/providers/aws/preflight.py",
    "worker/reconcilers/findings.py",
    "worker/reconcilers/fleets.py",
    "worker/reconcilers/jobs.py",
)


def templates() -> Iterator[str]:
    """Every template that the writers mark."""
    for name in WRITERS:
        for call in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "_":
                yield ast.literal_eval(call.args[0])
    yield from SHIPPED


def fragments() -> set[str]:
    """The literal stretches of those templates that no Korean text holds by chance: several English words."""
    found: set[str] = set()
    for template in templates():
        for part in re.split(r"%\(\w+\)s", template):
            if len(re.findall(r"[a-z]{2,}", part)) >= 3:
                found.add(part.strip(" .;,:"))
    return found


def test_there_are_sentences_to_look_for() -> None:
    assert len(fragments()) > 60
    assert "waiting for the machines to join the scheduler" in fragments()


def seen(client: Client, address: str) -> str:
    """What a reader of the page reads."""
    answer = client.get(address)
    assert answer.status_code == 200, address
    text = re.sub(r"<(script|style)\b.*?</\1>", "", answer.content.decode(), flags=re.DOTALL)
    return html.unescape(re.sub(r"\s+", " ", text))


def addresses(site: DemoRows) -> list[str]:
    found = [
        reverse(name) for name in ("clusters", "findings", "xid-codes", "checkpoints", "checkpoints-all", "health")
    ]
    found += [reverse("fleet", args=[fleet.uid]) for fleet in site.fleets.values()]
    found += [reverse("finding", args=[row.uid]) for row in Finding.objects.all()]
    found += [reverse("node", args=[row.uid]) for row in site.nodes.values()]
    found += [reverse("checkpoint", args=[row.uid]) for row in Checkpoint.objects.order_by("-id")[:12]]
    for name in ("job", "job-checkpoints", "job-timeline"):
        found += [reverse(name, args=[job.uid]) for job in site.jobs.values()]
    return ["/", *found]


@pytest.mark.usefixtures("db")
def test_korean_pages_hold_no_english_sentence_of_the_worker(sign_in: SignIn, more: DemoRows) -> None:
    client, wanted = sign_in("admin", "ko"), fragments()
    held: dict[str, list[str]] = {}
    for address in addresses(more):
        text = seen(client, address)
        if found := [part for part in wanted if part in text]:
            held[address] = sorted(found)
    assert held == {}


def test_the_same_pages_hold_them_in_english(sign_in: SignIn, more: DemoRows) -> None:
    """So that the test above looks where the sentences are."""
    fleet = reverse("fleet", args=[more.fleets["p5en-eval"].uid])
    assert "ask AWS for at least 1,920" in seen(sign_in("operator"), fleet)
    korean = seen(sign_in("operator", "ko"), fleet)
    assert "AWS에 최소 1,920개" in korean
    assert "확인 7개 중 6개 통과" in korean or "vcpu-quota" in korean
    finding = Finding.objects.get(code="GpuMissing", phase="OPEN")
    assert "버스에서 GPU가 보이지 않음" in seen(sign_in("operator", "ko"), reverse("finding", args=[finding.uid]))


def test_the_api_speaks_the_requests_language(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("operator")
    address = f"/api/v1/fleets/{more.fleets['p5en-eval'].uid}"
    steps = client.get(address, headers={"Accept-Language": "ko-KR,ko;q=0.9,en;q=0.8"}).json()["steps"]
    checks = next(step["checks"] for step in steps if step["checks"])
    assert checks[-1]["detail"] == "AWS가 시작을 받아들일 것입니다(dry run)."
    client.cookies["django_language"] = "ko"
    steps = client.get(address).json()["steps"]
    assert next(step["checks"] for step in steps if step["checks"])[-1]["detail"] == (
        "AWS would accept the launch (dry run)."
    )


def test_the_shipped_advice_is_all_marked() -> None:
    import csv

    with (ROOT / "apps/health/data/xid_catalogue.csv").open(newline="") as file:
        assert {row["suggested_action"] for row in csv.DictReader(file)} == SHIPPED
