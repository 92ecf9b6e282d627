"""Purchases by the API: asked once however often the key comes, decided only by another person."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from apps.capacity.models import OfferingSearch, Purchase, Reservation
from apps.capacity.services import purchase_resolve
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.errors import InvalidInput
from tests.conftest import actor_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def search(db: None) -> OfferingSearch:
    account = CloudAccount.objects.create(name="main", region="us-east-2", phase="CONNECTED", allows_purchases=True)
    offer = {
        "offering_id": "cb-1",
        "instance_type": "p5en.48xlarge",
        "instances": 8,
        "zone_name": "us-east-2a",
        "zone_id": "use2-az1",
        "start_at": "2026-12-10T11:30:00Z",
        "end_at": "2026-12-17T11:30:00Z",
        "hours": 168,
        "usd_upfront": "84887.04",
        "usd_per_gpu_hour": "7.8950",
    }
    return OfferingSearch.objects.create(
        account=account,
        kind="capacity-block",
        criteria={},
        asked_by="user:0",
        phase="DONE",
        offers=[offer],
        answered_at=clock.now(),
    )


def test_asked_once_and_approved_by_another(as_user: Any, operator: Any, admin: Any, team: Any, search: Any) -> None:
    body = {"search": search.uid, "offering_id": "cb-1", "name": "epoch-2", "team": "nlp", "reason": "the run"}
    first = as_user(operator).send("POST", "purchases", body, Idempotency_Key="k1")
    again = as_user(operator).send("POST", "purchases", body, Idempotency_Key="k1")
    assert (first.status_code, again.status_code) == (202, 202), first.content
    assert first.json()["uid"] == again.json()["uid"]
    assert Purchase.objects.count() == 1
    where = f"purchases/{first.json()['uid']}"
    own = as_user(operator).send("POST", f"{where}/approve", {}, If_Match='"1"')
    assert (own.status_code, own.json()["code"]) == (403, "OwnRequest")
    stale = as_user(admin).send("POST", f"{where}/approve", {}, If_Match='"7"')
    assert stale.status_code == 412
    done = as_user(admin).send("POST", f"{where}/approve", {"reason": "agreed"}, If_Match='"1"')
    assert (done.status_code, done.json()["phase"], done.json()["decided_by_name"]) == (200, "APPROVED", "admin")
    twice = as_user(admin).send("POST", f"{where}/approve", {}, If_Match='"2"')
    assert twice.status_code == 409


def test_bad_input_of_a_purchase_names_its_field(as_user: Any, operator: Any, team: Any, search: Any) -> None:
    body = {"search": search.uid, "offering_id": "cb-1", "name": "No Good", "team": "nlp", "reason": "r"}
    answer = as_user(operator).send("POST", "purchases", body, Idempotency_Key="k")
    assert answer.status_code == 422
    assert "/name" in answer.content.decode()
    gone = as_user(operator).send("POST", "purchases", {**body, "offering_id": "cb-2"}, Idempotency_Key="k2")
    assert (gone.status_code, gone.json()["code"]) == (409, "OfferGone")


def a_purchase(account: CloudAccount, team: Any, **columns: Any) -> Purchase:
    return Purchase.objects.create(
        account=account,
        team=team,
        instance_type="p5.48xlarge",
        instances=2,
        requested_by="user:1",
        decided_by="user:2",
        decided_at=clock.now(),
        attempted_at=clock.now(),
        **columns,
    )


def a_block(account: CloudAccount) -> Reservation:
    now = clock.now()
    return Reservation.objects.create(
        account=account,
        kind="capacity-block",
        name="blk",
        provider_id="cr-1",
        instance_type="p5.48xlarge",
        instances=2,
        start_at=now,
        end_at=now + timedelta(days=1),
        usd_upfront=Decimal("100"),
        usd_per_hour=Decimal("2"),
        phase="ACTIVE",
    )


def test_a_reservations_page_names_no_purchase_of_another_team(
    client: Client, team: Any, member: Any, outsider: Any
) -> None:
    account = CloudAccount.objects.create(name="main", region="us-east-2", phase="CONNECTED")
    row = a_block(account)
    a_purchase(account, team, kind="capacity-block", name="secret-plan", key="k", phase="BOUGHT", reservation=row)
    seen = {}
    for person in (member, outsider):
        client.force_login(person)
        seen[person.username] = "secret-plan" in client.get(f"/capacity/reservations/{row.uid}").content.decode()
    assert seen == {member.username: True, outsider.username: False}


def test_a_doubtful_extension_is_settled_as_bought_for_its_own_block(team: Any, admin: Any) -> None:
    account = CloudAccount.objects.create(name="main", region="us-east-2", phase="CONNECTED")
    row = a_block(account)
    a_purchase(account, team, kind="capacity-block", name="blk", key="k1", phase="BOUGHT", reservation=row)
    more = a_purchase(
        account,
        team,
        kind="extension",
        name="more",
        key="k2",
        phase="UNKNOWN",
        extends=row,
        usd_upfront=Decimal("140"),
        end_at=row.end_at + timedelta(days=4) if row.end_at else None,
    )
    said = {"actor": actor_of(admin), "purchase": more, "expected_version": more.version, "reason": "the console"}
    with pytest.raises(InvalidInput, match="cr-1"):
        purchase_resolve(**said, provider_id="cr-other")
    purchase_resolve(**said, provider_id="cr-1")
    row.refresh_from_db()
    # $240 over five days of two instances.
    assert (more.phase, row.usd_upfront, row.usd_per_hour) == ("BOUGHT", Decimal("240"), Decimal("1"))
