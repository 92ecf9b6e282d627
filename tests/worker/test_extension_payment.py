"""An extension counts as bought when AWS has charged it, and not before; a price that a person tells."""

# ruff: noqa: F811
from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from apps.audit.models import Entry, Event
from apps.capacity.models import Purchase, Reservation
from apps.capacity.price_services import reservation_price
from apps.capacity.selectors import purchase_sentence, unused_usd_per_hour
from apps.core.errors import Forbidden, InvalidInput, StaleVersion, TransitionConflict
from apps.costs.models import Posting
from sandbox.aws import AwsServer
from tests.blocks import END, at, make_block
from tests.chaos import Plan, visit
from tests.conftest import actor_of
from tests.worker.purchase_site import account, approved, asked_for, drive, plan, server  # noqa: F401
from worker.collectors import reservations as reserved
from worker.reconcilers import reservations

pytestmark = [pytest.mark.django_db]


@pytest.fixture
def paying(account: Any, server: AwsServer, operator: Any, admin: Any, team: Any, work: Any, plan: Plan) -> Purchase:
    """An extension that AWS has sold and not charged."""
    purchase = asked_for("extension", account, server, operator, work, plan, team)
    Reservation.objects.update(usd_upfront=Decimal("3000.00"), usd_per_hour=Decimal("62.5"))
    object.__setattr__(server.options, "block_payment_s", 3600.0)
    drive(approved(purchase, admin), work, plan, "purchase.buy", lambda: purchase.phase == "PAYING")
    return purchase


def settle(server: AwsServer, *, paid: bool) -> None:
    if not paid:
        server.world.fault_add("payment-failed", left=1)
    for row in server.cloud.book.rows("extensions").values():
        row["pay_at"] = 0


def test_an_extension_is_bought_once_it_is_paid_and_its_price_counts_from_then(
    paying: Purchase, account: Any, server: AwsServer, work: Any, plan: Plan
) -> None:
    block = Reservation.objects.get()
    end = block.end_at
    for _round in range(3):
        visit(work, "purchase.buy", plan)
    reserved.read(account.uid)
    block.refresh_from_db()
    paying.refresh_from_db()
    assert (paying.phase, paying.ended_at) == ("PAYING", None)
    assert (block.end_at, block.usd_upfront) == (end, Decimal("3000.00"))
    assert "AWS has not charged" in purchase_sentence(paying)
    settle(server, paid=True)
    drive(paying, work, plan, "purchase.buy", lambda: paying.phase == "BOUGHT")
    reserved.read(account.uid)
    block.refresh_from_db()
    assert paying.usd_upfront is not None
    assert block.usd_upfront == Decimal("3000.00") + paying.usd_upfront
    assert block.end_at is not None
    assert end is not None
    assert block.end_at - end == timedelta(days=1)
    assert len(server.cloud.book.rows("extensions")) == 1


def test_a_jump_of_the_sandbox_clock_does_not_make_ours_an_older_one(
    paying: Purchase, server: AwsServer, work: Any, plan: Plan
) -> None:
    server.world.advance(2 * 3600)
    drive(paying, work, plan, "purchase.buy", lambda: paying.phase == "BOUGHT")


def test_an_extension_that_cannot_be_charged_is_not_bought(
    paying: Purchase, server: AwsServer, work: Any, plan: Plan
) -> None:
    settle(server, paid=False)
    drive(paying, work, plan, "purchase.buy", lambda: paying.phase == "FAILED")
    assert "could not charge it" in paying.message
    assert Reservation.objects.get().usd_upfront == Decimal("3000.00")
    assert len(server.cloud.book.rows("extensions")) == 1


def test_machines_are_given_back_while_the_extension_is_not_paid(block: Reservation, scheduler: Any) -> None:
    Purchase.objects.create(
        account=block.account,
        kind="extension",
        extends=block,
        name="more",
        instance_type="p5.48xlarge",
        instances=2,
        key="k",
        requested_by="user:1",
        decided_by="user:2",
        decided_at=END - timedelta(hours=1),
        attempted_at=END - timedelta(minutes=50),
        end_at=END + timedelta(days=1),
        phase="PAYING",
    )
    with at(39):
        reservations.watch(block.uid)
    assert "its extension is not paid yet" in str(Event.objects.get(object_uid=block.uid, kind="BlockGivenBack").text)


# --- a block that was bought elsewhere


@pytest.fixture
def adopted(cluster: Any, team: Any) -> Reservation:
    """Two machines for a day, its price unknown."""
    row: Reservation = make_block(cluster, team)
    Reservation.objects.update(is_adopted=True, usd_upfront=None, usd_per_hour=None)
    row.refresh_from_db()
    return row


def price(row: Reservation, actor: Any, **changes: Any) -> None:
    asked = {"usd_upfront": Decimal("2292.48"), "reason": "invoice 7", "expected_version": row.version}
    reservation_price(actor=actor_of(actor), reservation=row, **{**asked, **changes})


def test_a_price_that_a_person_tells_is_spread_over_the_hours(
    adopted: Reservation, operator: Any, scheduler: Any
) -> None:
    with at(60):
        reservations.watch(adopted.uid)
        assert unused_usd_per_hour(adopted) is None
        assert not Posting.objects.filter(subject_uid=adopted.uid).exists()
        price(adopted, operator)
        adopted.refresh_from_db()
        assert (adopted.usd_upfront, adopted.usd_per_hour) == (Decimal("2292.48"), Decimal("47.76"))
        reservations.watch(adopted.uid)
    amounts = [p.amount for p in Posting.objects.filter(subject_uid=adopted.uid)]
    # 23 hours are over, the last of them ten minutes too lately to be settled.
    assert amounts == [Decimal("95.52")] * 22
    entry = Entry.objects.get(verb="reservation.price")
    assert entry.after == {"usd_upfront": "2292.48", "reason": "invoice 7"}
    assert Event.objects.get(kind="ReservationPriced").text == "invoice 7"
    price(adopted, operator, usd_upfront=Decimal("2400.00"), reason="the credit note")
    assert Reservation.objects.get().usd_per_hour == Decimal("50")


def test_who_may_tell_a_price_and_what_is_refused(adopted: Reservation, operator: Any, owner: Any) -> None:
    with pytest.raises(Forbidden):
        price(adopted, owner)
    for changes, pointer in (
        ({"usd_upfront": Decimal("0")}, "/usd_upfront"),
        ({"usd_upfront": Decimal("-5")}, "/usd_upfront"),
        ({"usd_upfront": Decimal("1.005")}, "/usd_upfront"),
        ({"usd_upfront": Decimal("99999999999")}, "/usd_upfront"),
        ({"reason": "  "}, "/reason"),
    ):
        with pytest.raises(InvalidInput) as refusal:
            price(adopted, operator, **changes)
        assert [p.pointer for p in refusal.value.problems] == [pointer]
    with pytest.raises(StaleVersion):
        price(adopted, operator, expected_version=adopted.version + 5)
    assert Reservation.objects.get().usd_upfront is None
    for known in ({"is_adopted": False, "usd_upfront": 5}, {"kind": "odcr"}):
        Reservation.objects.update(**known)
        with pytest.raises(TransitionConflict):
            price(Reservation.objects.get(), operator)
        Reservation.objects.update(is_adopted=True, usd_upfront=None)
