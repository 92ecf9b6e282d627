"""The pages of reserved capacity: a price that a person enters, and what a paused account looks like."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from django.test import Client

from apps.capacity.models import Reservation
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.storage.models import FileSystem
from tests.demo_rows import DemoRows
from tests.pages.places import address

SignIn = Callable[..., Client]


@pytest.fixture
def adopted(more: DemoRows, db: None) -> Reservation:
    """A block for a day of which AWS tells no price."""
    now = clock.now()
    return Reservation.objects.create(
        account=CloudAccount.objects.get(name="research"),
        kind="capacity-block",
        name="found-block",
        provider_id="cr-0found",
        instance_type="p5.48xlarge",
        instances=2,
        available_instances=2,
        is_adopted=True,
        start_at=now - timedelta(hours=4),
        end_at=now + timedelta(hours=20),
        phase="ACTIVE",
    )


def test_an_unknown_price_is_said_and_an_operator_enters_it(
    sign_in: SignIn, more: DemoRows, adopted: Reservation
) -> None:
    calendar = sign_in("operator").get("/calendar?q=found-block").content.decode()
    assert "The price of 1 is unknown: an operator enters what was paid on its page." in calendar
    assert calendar.count(">unknown<") == 2
    where = f"/capacity/reservations/{adopted.uid}"
    assert "ask-price" not in sign_in("member").get(where).content.decode()
    assert sign_in("member").post(f"{where}/price", {"usd_upfront": "5", "reason": "x"}).status_code == 403
    client = sign_in("operator")
    assert "ask-price" in client.get(where).content.decode()
    for bad, words in (
        ({"usd_upfront": "0"}, "more than 0"),
        ({"usd_upfront": "many"}, "number"),
        ({"reason": ""}, ""),
    ):
        body = {"usd_upfront": "2292.48", "reason": "invoice 7", "version": adopted.version, **bad}
        answer = client.post(f"{where}/price", body)
        assert answer.status_code == 422, bad
        assert words in answer.content.decode()
        assert "data-open" in answer.content.decode()
    body = {"usd_upfront": "2292.48", "reason": "invoice 7", "version": adopted.version}
    assert client.post(f"{where}/price", body).status_code == 302
    text = client.get(where).content.decode()
    assert "$2,292.48" in text
    assert "entered by a person" in text
    assert "Price entered by operator: $2,292.48 (invoice 7)" in text
    assert "$5.9700" in text
    assert "is unknown" not in client.get("/calendar?q=found-block").content.decode()


def test_the_api_takes_a_price_or_an_owner_but_not_both(sign_in: SignIn, more: DemoRows, adopted: Reservation) -> None:
    client, where = sign_in("operator"), f"/api/v1/reservations/{adopted.uid}"

    def patch(body: dict[str, object]) -> tuple[int, dict[str, object]]:
        etag = client.get(where)["ETag"]
        answer = client.patch(where, json.dumps(body), content_type="application/json", headers={"If-Match": etag})
        return answer.status_code, answer.json()

    for body in ({}, {"team": "nlp", "usd_upfront": "5"}):
        assert patch(body)[0] == 422
    status, refused = patch({"usd_upfront": "2292.48"})
    assert (status, [e["pointer"] for e in refused["errors"]]) == (422, ["/reason"])  # type: ignore[attr-defined]
    status, shown = patch({"usd_upfront": "2292.48", "reason": "invoice 7"})
    assert (status, shown["usd_upfront"], shown["usd_per_hour"]) == (200, "2292.48", "47.760000")
    assert patch({"team": "nlp"})[1]["team"] == "nlp"
    assert Reservation.objects.get(pk=adopted.pk).usd_upfront == Decimal("2292.48")


def test_pages_say_since_when_nothing_is_read(sign_in: SignIn, more: DemoRows, db: None) -> None:
    client = sign_in("operator")
    files = FileSystem.objects.get(name="train-scratch").account
    paused = [address(more, n, n.replace("-", "_")) for n in ("reservation", "fleet", "file-system")]
    paused += [address(more, "cluster", "cluster"), "/calendar", "/orphans"]
    CloudAccount.objects.update(is_paused=False)
    words = "is paused: nothing is read or changed there"
    for place in paused:
        assert words not in client.get(place).content.decode(), place
    CloudAccount.objects.update(is_paused=True, paused_at=clock.now() - timedelta(hours=3))
    for place in paused:
        assert words in client.get(place).content.decode(), place
    assert "Paused for 3 h" in client.get(f"/connections/{files.uid}").content.decode()
