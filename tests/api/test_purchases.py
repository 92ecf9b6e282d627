"""Purchases by the API: asked once however often the key comes, decided only by another person."""

from __future__ import annotations

from typing import Any

import pytest

from apps.capacity.models import OfferingSearch, Purchase
from apps.connections.models import CloudAccount
from apps.core import clock

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
