"""A sandbox that sells capacity, and purchases up to any point: what the tests of buying share."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from apps.capacity.models import OfferingSearch, Purchase, Reservation
from apps.capacity.services import extension_search, odcr_request, offering_search, purchase_approve, purchase_request
from apps.connections.models import CloudAccount
from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import ACCESS_KEY_ID, SECRET_ACCESS_KEY
from sandbox.world import World
from tests.chaos import Crashing, Plan, visit
from tests.conftest import actor_of
from worker import doors
from worker.collectors import reservations as reserved

TYPE = "p5en.48xlarge"
CALLS = {
    "capacity-block": "block_purchase",
    "ultraserver-block": "block_purchase",
    "extension": "extension_purchase",
    "training-plan": "plan_purchase",
    "odcr": "odcr_create",
}


@pytest.fixture
def server(tmp_path: Any) -> Iterator[AwsServer]:
    options = AwsOptions(boot_s=0.1, block_payment_s=0.1, block_vcpu_quota=10_000_000)
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, options)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    plan = Plan()
    real = doors.capacity_for
    changing = [*sorted(set(CALLS.values())), "odcr_cancel"]
    monkeypatch.setattr(doors, "capacity_for", lambda account: Crashing(real(account), plan, changing))
    keys = f'{{"access_key_id": "{ACCESS_KEY_ID}", "secret_access_key": "{SECRET_ACCESS_KEY}"}}'
    monkeypatch.setenv("TEST_AWS", keys)
    return plan


@pytest.fixture
def account(server: AwsServer, plan: Plan) -> CloudAccount:
    return CloudAccount.objects.create(
        name="sandbox",
        region=server.options.region,
        endpoint_url=server.url,
        credentials_ref="env:TEST_AWS",
        phase="CONNECTED",
        allows_purchases=True,
    )


def drive(row: Any, work: Any, plan: Plan, kind: str, done: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        visit(work, kind, plan)
        row.refresh_from_db()
        if done():
            return
        time.sleep(0.02)
    raise AssertionError(f"still {row.phase}: {row.message}")


def searched(account: CloudAccount, operator: Any, work: Any, plan: Plan, kind: str, **more: Any) -> OfferingSearch:
    asked = {"instance_type": TYPE, "instances": 2, "days": 1}
    if kind == "ultraserver-block":
        asked |= {"instance_type": "u-p6e-gb200x36", "instances": 1}
    found = offering_search(actor=actor_of(operator), account=account, kind=kind, **{**asked, **more})
    drive(found, work, plan, "offering.search", lambda: found.phase != "PENDING")
    assert found.phase == "DONE", found.message
    return found


def a_block(account: CloudAccount, server: AwsServer) -> Reservation:
    """A scheduled block that somebody bought elsewhere."""
    capacity = doors.capacity_for(account)
    from worker.providers import capacity_values as cv

    offer = capacity.block_offerings(cv.OfferingQuery(TYPE, 2, 24))[0]
    capacity.block_purchase(offer.offering_id, {"Name": "elsewhere"})
    time.sleep(0.15)
    reserved.read(account.uid)
    return Reservation.objects.get(kind="capacity-block")


def asked_for(
    kind: str, account: CloudAccount, server: AwsServer, operator: Any, work: Any, plan: Plan, team: Any, **more: Any
) -> Purchase:
    actor = actor_of(operator)
    key = more.pop("key", uuid.uuid4().hex)
    common = {"name": "train-64", "team": team, "reason": "pretraining", "key": key}
    if kind == "odcr":
        return odcr_request(
            actor=actor, account=account, instance_type=TYPE, instances=2, zone_name="us-east-2a", **common
        )
    if kind == "extension":
        search = extension_search(actor=actor, reservation=a_block(account, server), days=1)
        drive(search, work, plan, "offering.search", lambda: search.phase == "DONE")
    else:
        search = searched(account, operator, work, plan, kind)
    return purchase_request(actor=actor, search=search, offering_id=search.offers[0]["offering_id"], **common)


def approved(purchase: Purchase, admin: Any) -> Purchase:
    purchase_approve(actor=actor_of(admin), purchase=purchase, expected_version=purchase.version)
    return purchase


def bought(server: AwsServer, kind: str) -> int:
    """How many of this kind AWS has sold us since, by its own books."""
    if kind == "training-plan":
        return len(server.services["sagemaker"].rows("plans"))
    book = server.cloud.book
    if kind == "extension":
        return len(book.rows("extensions"))
    rows = book.rows("reservations").values()
    if kind == "odcr":
        return sum(1 for r in rows if r["type"] != "capacity-block")
    return sum(1 for r in rows if r["type"] == "capacity-block")
