"""Buying against the sandbox: once under crashes, redelivery, lost replies and double clicks; never unapproved."""

# ruff: noqa: F811
from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.audit.models import Entry, Event
from apps.capacity.models import OfferingSearch, Purchase, Reservation
from apps.capacity.selectors import purchase_sentence, reservation_sentence
from apps.capacity.services import (
    OfferGone,
    OwnRequest,
    PurchasesOff,
    offering_search,
    purchase_reject,
    purchase_request,
    purchase_resolve,
    purchase_withdraw,
    reservation_assign,
    reservation_cancel,
)
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.errors import Forbidden, InvalidInput, StaleVersion, TransitionConflict
from apps.intents.models import Intent
from sandbox.aws import AwsServer
from tests.chaos import WHEN, Plan, point, visit
from tests.conftest import actor_of
from tests.worker.purchase_site import (  # noqa: F401
    CALLS,
    TYPE,
    a_block,
    account,
    approved,
    asked_for,
    bought,
    drive,
    plan,
    searched,
    server,
)
from worker import doors
from worker.collectors import reservations as reserved
from worker.providers import values as v

pytestmark = [pytest.mark.django_db, pytest.mark.chaos]

POINTS = [(kind, when) for kind in CALLS for when in WHEN]


@pytest.mark.parametrize(("kind", "when"), POINTS)
def test_a_worker_that_dies_at_any_point_buys_at_most_once(
    kind: str, when: str, account: Any, server: Any, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    purchase = approved(asked_for(kind, account, server, operator, work, plan, team), admin)
    before = bought(server, kind)
    plan.call, plan.when, calls = CALLS[kind], when, len(plan.seen)
    lost = when == "before the call" and kind != "odcr"
    ends = "UNKNOWN" if lost else "BOUGHT"
    drive(purchase, work, plan, "purchase.buy", lambda: plan.done and purchase.phase == ends)
    for _redelivered in range(3):
        Intent.objects.update(due_at=clock.now())
        visit(work, "purchase.buy", plan)
    purchase.refresh_from_db()
    count = bought(server, kind) - before
    if lost:
        # Nobody can know that the call was not made; it is not made again, a person decides.
        assert (count, purchase.phase) == (0, "UNKNOWN")
        purchase_resolve(
            actor=actor_of(admin),
            purchase=purchase,
            expected_version=purchase.version,
            provider_id="",
            reason="nothing in the console",
        )
        assert purchase.phase == "FAILED"
        outcome = "unknown, then resolved by a person: not bought"
    else:
        assert (count, purchase.phase) == (1, "BOUGHT")
        assert purchase.reservation is not None
        outcome = "bought once"
    # Only an ODCR is asked for again, with its token, and only where no call of ours had made one.
    assert len(plan.seen) - calls == (2 if kind == "odcr" and when == "before the call" else 1)
    point(f"purchase of {kind}", CALLS[kind], when, outcome)


@pytest.mark.parametrize("kind", list(CALLS))
def test_a_reply_that_is_lost_after_success_is_bought_once(
    kind: str, account: Any, server: Any, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    purchase = approved(asked_for(kind, account, server, operator, work, plan, team), admin)
    before = bought(server, kind)
    operation = {
        "block_purchase": "PurchaseCapacityBlock",
        "extension_purchase": "PurchaseCapacityBlockExtension",
        "plan_purchase": "CreateTrainingPlan",
        "odcr_create": "CreateCapacityReservation",
    }[CALLS[kind]]
    server.world.fault_add("server-error", left=1, service="aws", operation=operation, shape="lost-reply")
    drive(purchase, work, plan, "purchase.buy", lambda: purchase.phase == "BOUGHT")
    assert bought(server, kind) - before == 1
    point(f"purchase of {kind}", operation, "lost reply", "bought once")


@pytest.mark.parametrize("kind", list(CALLS))
def test_redelivery_and_double_click_buy_once(
    kind: str, account: Any, server: Any, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    if kind == "extension":
        purchase = asked_for(kind, account, server, operator, work, plan, team, key="k1")
        again = purchase
    else:
        purchase = asked_for(kind, account, server, operator, work, plan, team, key="k1")
        again = asked_for(kind, account, server, operator, work, plan, team, key="k1")
    assert purchase.pk == again.pk
    before = bought(server, kind)
    approved(purchase, admin)
    with pytest.raises((TransitionConflict, StaleVersion)):
        approved(Purchase.objects.get(pk=purchase.pk), admin)
    from worker.reconcilers import purchases

    for _message in range(4):
        purchases.buy(purchase.uid)
    assert bought(server, kind) - before == 1
    point(f"purchase of {kind}", CALLS[kind], "redelivered, clicked twice", "bought once")


def test_a_stale_worker_that_read_it_as_approved_does_not_buy_again(
    account: Any, server: Any, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    from apps.capacity import observations

    purchase = approved(asked_for("capacity-block", account, server, operator, work, plan, team), admin)
    stale = Purchase.objects.get(pk=purchase.pk)
    drive(purchase, work, plan, "purchase.buy", lambda: purchase.phase == "BOUGHT")
    assert stale.phase == "APPROVED"
    assert observations.purchase_attempt(stale) is False
    assert bought(server, "capacity-block") == 1


def test_nothing_is_bought_without_another_persons_approval(
    account: Any, server: Any, operator: Any, admin: Any, member: Any, team: Any, work: Any, plan: Plan
) -> None:
    purchase = asked_for("capacity-block", account, server, operator, work, plan, team)
    visit(work, "purchase.buy", plan)
    with pytest.raises(OwnRequest):
        approved(purchase, operator)
    with pytest.raises(Forbidden):
        approved(purchase, member)
    with pytest.raises(IntegrityError), transaction.atomic():
        Purchase.objects.filter(pk=purchase.pk).update(phase="APPROVED")
    own = {"decided_by": purchase.requested_by, "decided_at": clock.now()}
    for columns in ({"attempted_at": clock.now()}, {"attempted_at": clock.now(), **own}, {"phase": "APPROVED", **own}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Purchase.objects.filter(pk=purchase.pk).update(**columns)
    assert bought(server, "capacity-block") == 0
    purchase.refresh_from_db()
    approved(purchase, admin)
    drive(purchase, work, plan, "purchase.buy", lambda: purchase.phase == "BOUGHT")
    row = purchase.reservation
    assert row is not None
    assert (row.name, row.team, row.is_adopted, row.usd_upfront) == ("train-64", team, False, purchase.usd_upfront)
    assert row.usd_per_hour == purchase.usd_per_hour
    assert float(row.usd_per_hour or 0) == pytest.approx(7.895 * 8)
    verbs = list(Entry.objects.filter(object_uid=purchase.uid).values_list("verb", flat=True))
    assert set(verbs) == {"purchase.request", "purchase.approve"}
    assert "Bought for" in purchase_sentence(purchase)
    assert Event.objects.filter(object_uid=purchase.uid, kind="PurchaseBought").exists()


def test_a_refusal_of_aws_is_final_and_told(
    account: Any, server: Any, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    purchase = approved(asked_for("capacity-block", account, server, operator, work, plan, team), admin)
    server.world.fault_add("access-denied", left=1, service="aws", operation="PurchaseCapacityBlock")
    drive(purchase, work, plan, "purchase.buy", lambda: purchase.phase == "FAILED")
    assert "not authorized" in purchase.message
    visit(work, "purchase.buy", plan)
    assert bought(server, "capacity-block") == 0


def older_extension(server: AwsServer, purchase: Purchase, state: str) -> None:
    """An extension of the same offering that was bought an hour before ours and is settled."""
    assert purchase.extends is not None
    bought_at = (clock.now() - timedelta(hours=1)).timestamp()
    server.cloud.book.rows("extensions")["ext-0ld"] = {
        "reservation_id": purchase.extends.provider_id,
        "offering_id": purchase.offering_id,
        "hours": 24,
        "from": bought_at,
        "to": bought_at + 24 * 3600,
        "fee": "1.00",
        "bought_at": bought_at,
        "pay_at": bought_at,
        "status": state,
    }


@pytest.mark.parametrize("state", ["payment-failed", "payment-succeeded"])
@pytest.mark.parametrize("when", ["before the call", "after the call", ""])
def test_an_older_extension_of_the_same_offering_decides_nothing(
    state: str, when: str, account: Any, server: Any, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    purchase = approved(asked_for("extension", account, server, operator, work, plan, team), admin)
    older_extension(server, purchase, state)
    object.__setattr__(server.options, "block_payment_s", 3600.0)
    plan.call, plan.when = ("extension_purchase", when) if when else (plan.call, plan.when)
    waits = "UNKNOWN" if when == "before the call" else "PAYING"
    drive(purchase, work, plan, "purchase.buy", lambda: purchase.phase == waits)
    ours = server.cloud.book.rows("extensions")
    held = {key: row for key, row in ours.items() if key != "ext-0ld"}
    for key in held:
        # AWS may be slow to list it.
        del ours[key]
    for _round in range(3):
        Intent.objects.update(due_at=clock.now())
        visit(work, "purchase.buy", plan)
    purchase.refresh_from_db()
    assert (purchase.phase, purchase.candidates) == (waits, [])
    ours.update(held)
    for _round in range(3):
        Intent.objects.update(due_at=clock.now())
        visit(work, "purchase.buy", plan)
    purchase.refresh_from_db()
    assert purchase.phase == waits
    if not held:
        return
    # Ours ends the other way than the older one did.
    if state == "payment-succeeded":
        server.world.fault_add("payment-failed", left=1)
    for row in held.values():
        row["pay_at"] = 0
    Intent.objects.update(due_at=clock.now())
    ends = "FAILED" if state == "payment-succeeded" else "BOUGHT"
    drive(purchase, work, plan, "purchase.buy", lambda: purchase.phase == ends)


def test_a_doubt_shows_its_evidence_and_a_person_settles_it(
    account: Any, server: Any, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    purchase = approved(asked_for("capacity-block", account, server, operator, work, plan, team), admin)
    plan.call, plan.when = "block_purchase", "before the call"
    drive(purchase, work, plan, "purchase.buy", lambda: purchase.phase == "UNKNOWN")
    # Meanwhile somebody buys the same by hand, in AWS's console.
    from worker.providers import capacity_values as cv

    capacity = doors.capacity_for(account)
    offer = capacity.block_offerings(cv.OfferingQuery(TYPE, 2, 24))
    mine = next(o for o in offer if o.zone_name == purchase.zone_name)
    (by_hand,) = capacity.block_purchase(mine.offering_id, {"Name": "by hand"})
    drive(purchase, work, plan, "purchase.buy", lambda: bool(purchase.candidates))
    assert [(c["provider_id"], c["fits"]) for c in purchase.candidates] == [(by_hand, True)]
    assert "never tried again" in purchase_sentence(purchase)
    with pytest.raises(InvalidInput):
        purchase_resolve(
            actor=actor_of(admin), purchase=purchase, expected_version=purchase.version, provider_id="", reason=" "
        )
    reserved.read(account.uid)
    purchase_resolve(
        actor=actor_of(admin),
        purchase=purchase,
        expected_version=purchase.version,
        provider_id=by_hand,
        reason="the console shows it",
    )
    row = Reservation.objects.get(provider_id=by_hand)
    assert (purchase.phase, row.name, row.usd_upfront) == ("BOUGHT", "train-64", purchase.usd_upfront)


def test_what_is_decided_otherwise_is_not_bought(
    account: Any, server: Any, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    first = asked_for("capacity-block", account, server, operator, work, plan, team)
    with pytest.raises(InvalidInput):
        purchase_reject(actor=actor_of(admin), purchase=first, expected_version=first.version, reason="")
    purchase_reject(actor=actor_of(admin), purchase=first, expected_version=first.version, reason="too dear")
    second = approved(asked_for("capacity-block", account, server, operator, work, plan, team), admin)
    purchase_withdraw(actor=actor_of(operator), purchase=second, expected_version=second.version)
    third = approved(asked_for("capacity-block", account, server, operator, work, plan, team), admin)
    Purchase.objects.filter(pk=third.pk).update(good_until=clock.now() - timedelta(seconds=1))
    fourth = asked_for("capacity-block", account, server, operator, work, plan, team)
    Purchase.objects.filter(pk=fourth.pk).update(good_until=clock.now() - timedelta(seconds=1))
    fourth.refresh_from_db()
    with pytest.raises(OfferGone):
        approved(fourth, admin)
    Intent.objects.update(due_at=clock.now())
    for row in (first, second, third, fourth):
        visit(work, "purchase.buy", plan, most=10)
        row.refresh_from_db()
    assert [r.phase for r in (first, second, third, fourth)] == ["REJECTED", "WITHDRAWN", "EXPIRED", "EXPIRED"]
    assert bought(server, "capacity-block") == 0


def test_an_account_that_allows_no_purchases_sells_nothing(
    account: Any, server: Any, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    search = searched(account, operator, work, plan, "capacity-block")
    purchase = asked_for("capacity-block", account, server, operator, work, plan, team)
    CloudAccount.objects.update(allows_purchases=False)
    search.refresh_from_db()
    with pytest.raises(PurchasesOff):
        purchase_request(
            actor=actor_of(operator),
            search=OfferingSearch.objects.get(pk=search.pk),
            offering_id=search.offers[0]["offering_id"],
            name="x",
            team=team,
            reason="r",
            key="z",
        )
    with pytest.raises(PurchasesOff):
        approved(Purchase.objects.get(pk=purchase.pk), admin)
    CloudAccount.objects.update(allows_purchases=True)
    approved(Purchase.objects.select_related("account").get(pk=purchase.pk), admin)
    CloudAccount.objects.update(allows_purchases=False)
    visit(work, "purchase.buy", plan)
    assert bought(server, "capacity-block") == 0
    assert Purchase.objects.get(pk=purchase.pk).phase == "APPROVED"


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"instance_type": "p9.48xlarge"}, "/instance_type"),
        ({"instances": 65}, "/instances"),
        ({"days": 15}, "/days"),
        ({"days": 0}, "/days"),
        ({"start_at": clock.now() + timedelta(weeks=9)}, "/start_date"),
        ({"end_at": clock.now() + timedelta(hours=2)}, "/end_date"),
    ],
)
def test_bad_input_of_a_search_names_its_field(changes: Any, pointer: str, account: Any, operator: Any) -> None:
    asked = {"instance_type": TYPE, "instances": 2, "days": 1, **changes}
    with pytest.raises(InvalidInput) as caught:
        offering_search(actor=actor_of(operator), account=account, kind="capacity-block", **asked)
    assert [p.pointer for p in caught.value.problems] == [pointer]


def test_the_collector_adopts_writes_only_what_changed_and_sees_the_end(
    account: Any, server: Any, operator: Any, team: Any, work: Any, plan: Plan
) -> None:
    row = a_block(account, server)
    assert (row.is_adopted, row.phase, row.usd_upfront) == (True, "SCHEDULED", None)
    from worker.collectors import WRITTEN

    written = WRITTEN.labels("reservations")._value.get()
    reserved.read(account.uid)
    assert WRITTEN.labels("reservations")._value.get() == written
    reservation_assign(actor=actor_of(operator), reservation=row, team=team, expected_version=row.version)
    with pytest.raises(TransitionConflict):
        reservation_cancel(actor=actor_of(operator), reservation=row, expected_version=row.version)
    assert "Scheduled" in reservation_sentence(row)
    server.world.advance((row.start_at - clock.now()).total_seconds() + 5)
    reserved.read(account.uid)
    row.refresh_from_db()
    assert (row.phase, row.available_instances, row.team) == ("ACTIVE", 2, team)
    assert "Active" in reservation_sentence(row)
    server.world.advance(25 * 3600)
    reserved.read(account.uid)
    row.refresh_from_db()
    assert row.phase == "EXPIRED"
    CloudAccount.objects.update(is_paused=True)
    server.cloud.book.rows("reservations").clear()
    reserved.read(account.uid)
    CloudAccount.objects.update(is_paused=False)


def test_an_odcr_is_given_back(
    account: Any, server: Any, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    purchase = approved(asked_for("odcr", account, server, operator, work, plan, team), admin)
    drive(purchase, work, plan, "purchase.buy", lambda: purchase.phase == "BOUGHT")
    row = purchase.reservation
    assert row is not None
    plan.call, plan.when = "odcr_cancel", "after the call"
    reservation_cancel(actor=actor_of(operator), reservation=row, expected_version=row.version)

    def gone() -> bool:
        visit(work, "account.reservations", plan)
        row.refresh_from_db()
        return row.phase == "CANCELLED"

    drive(row, work, plan, "reservation.cancel", gone)
    assert server.census()["capacity_reservations"] == 0
    assert v.TAG_UID in next(iter(server.cloud.book.rows("reservations").values()))["tags"]


def odcr_after_a_lost_reply(
    account: CloudAccount, server: AwsServer, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> Purchase:
    """An ODCR whose one call nobody saw the end of: it is BUYING, and the worker is gone."""
    purchase = approved(asked_for("odcr", account, server, operator, work, plan, team), admin)
    plan.call, plan.when = "odcr_create", "before the call"
    visit(work, "purchase.buy", plan)
    purchase.refresh_from_db()
    assert purchase.phase == "BUYING"
    return purchase


def test_an_odcr_is_not_asked_for_again_in_an_account_that_was_paused_meanwhile(
    account: CloudAccount, server: AwsServer, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    purchase = odcr_after_a_lost_reply(account, server, operator, admin, team, work, plan)
    CloudAccount.objects.update(is_paused=True)
    calls = len(plan.seen)
    drive(purchase, work, plan, "purchase.buy", lambda: purchase.phase == "UNKNOWN")
    assert len(plan.seen) == calls
    assert bought(server, "odcr") == 0


def test_a_repeat_that_is_refused_does_not_say_that_the_first_call_made_nothing(
    account: CloudAccount, server: AwsServer, operator: Any, admin: Any, team: Any, work: Any, plan: Plan
) -> None:
    purchase = odcr_after_a_lost_reply(account, server, operator, admin, team, work, plan)
    server.world.fault_add("throttling", left=1, service="aws", operation="CreateCapacityReservation")
    drive(purchase, work, plan, "purchase.buy", lambda: purchase.phase == "UNKNOWN")
    assert plan.seen == ["odcr_create"] * 2
    assert bought(server, "odcr") == 0
