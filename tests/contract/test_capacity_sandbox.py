"""The capacity contract and its bad input, against the sandbox's reservations, blocks and training plans."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import ACCESS_KEY_ID, SECRET_ACCESS_KEY
from sandbox.world import World
from worker.providers import capacity_values as cv
from worker.providers import errors
from worker.providers import values as v
from worker.providers.aws.capacity import AwsCapacity

pytestmark = pytest.mark.contract

TYPE = "p5en.48xlarge"
ZONE = "us-east-2a"
TAGS = {v.TAG_UID: "rsv_1", "Name": "train"}
ODCR = cv.OdcrSpec(TYPE, 4, ZONE, "targeted", TAGS)
QUERY = cv.OfferingQuery(TYPE, 2, 24)


@pytest.fixture(scope="module")
def whole_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    options = AwsOptions(block_payment_s=0.3, block_vcpu_quota=192 * 70)
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path_factory.mktemp("aws"), options)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(whole_server: AwsServer) -> Iterator[AwsServer]:
    """The server; its books are emptied afterwards."""
    yield whole_server
    whole_server.world.faults.clear()
    with whole_server.cloud.lock:
        for kind in list(whole_server.cloud.book.shelf):
            whole_server.cloud.book.rows(kind).clear()
        for kind in ("plans", "plan_offers"):
            whole_server.services["sagemaker"].rows(kind).clear()


@pytest.fixture
def capacity(server: AwsServer) -> AwsCapacity:
    keys = v.Credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY)
    return AwsCapacity(v.CloudAccess(server.options.region, keys, server.url))


def eventually(read: Callable[[], Any], within_s: float = 30.0) -> Any:
    ends_at = time.monotonic() + within_s
    while not (found := read()):
        assert time.monotonic() < ends_at, "it never came"
        time.sleep(0.05)
    return found


def seen(capacity: AwsCapacity, provider_id: str) -> cv.SeenReservation:
    (found,) = [r for r in capacity.reservations() if r.provider_id == provider_id]
    return found


def bought(capacity: AwsCapacity, query: cv.OfferingQuery = QUERY) -> tuple[cv.Offering, str]:
    offer = next(o for o in capacity.block_offerings(query) if o.parts == 1)
    (provider_id,) = capacity.block_purchase(offer.offering_id, TAGS)
    return offer, provider_id


# --- ODCRs


def test_one_token_makes_one_odcr(capacity: AwsCapacity) -> None:
    first = capacity.odcr_create(ODCR, "same")
    again = capacity.odcr_create(ODCR, "same")
    assert first.provider_id == again.provider_id
    assert (first.kind, first.state, first.instances, first.available) == ("odcr", "active", 4, 4)
    assert (first.match_criteria, first.platform, first.tenancy) == ("targeted", "Linux/UNIX", "default")
    assert (first.zone_name, first.name, first.tags[v.TAG_UID]) == (ZONE, "train", "rsv_1")
    assert first.zone_id.startswith("use2-az")
    assert first.end_at is None
    assert capacity.reservations() == (first,)
    with pytest.raises(errors.Conflict):
        capacity.odcr_create(replace(ODCR, instances=5), "same")
    assert len(capacity.reservations()) == 1


def test_an_odcr_that_ends_says_when(capacity: AwsCapacity) -> None:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    made = capacity.odcr_create(replace(ODCR, end_at=end), uuid.uuid4().hex)
    assert made.end_at is not None
    assert abs(made.end_at - end) < timedelta(seconds=2)


def test_an_odcr_is_given_back_and_then_not_found_as_active(capacity: AwsCapacity) -> None:
    made = capacity.odcr_create(ODCR, uuid.uuid4().hex)
    capacity.odcr_cancel(made.provider_id)
    assert seen(capacity, made.provider_id).state == "cancelled"
    with pytest.raises(errors.NotFound):
        capacity.odcr_cancel("cr-0123456789abcdef0")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"instance_type": "p9.huge"}, errors.InvalidRequest),
        ({"zone_name": "us-east-2z"}, errors.InvalidRequest),
        ({"instances": 0}, errors.InvalidRequest),
        ({"match_criteria": "sometimes"}, errors.InvalidRequest),
        ({"end_at": datetime(2020, 1, 1, tzinfo=UTC)}, errors.InvalidRequest),
        ({"instances": 65}, errors.InsufficientCapacity),
    ],
)
def test_an_odcr_that_aws_refuses_makes_nothing(
    capacity: AwsCapacity, change: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        capacity.odcr_create(replace(ODCR, **change), uuid.uuid4().hex)
    assert capacity.reservations() == ()


# --- blocks


def test_offers_are_what_aws_prints(capacity: AwsCapacity) -> None:
    offers = capacity.block_offerings(QUERY)
    assert len({o.zone_name for o in offers}) > 1, "every zone is asked"
    for offer in offers:
        assert (offer.instance_type, offer.instances, offer.hours, offer.currency) == (TYPE, 2, 24, "USD")
        assert offer.usd_upfront == (Decimal("7.895") * 8 * 2 * 24).quantize(Decimal("0.01"))
        assert (offer.end_at.hour, offer.end_at.minute, offer.end_at.tzinfo) == (11, 30, UTC)
        assert offer.start_at < offer.end_at
        assert offer.zone_id


def test_offers_stay_within_the_window(capacity: AwsCapacity) -> None:
    later = datetime.now(UTC) + timedelta(days=10)
    found = capacity.block_offerings(replace(QUERY, start_at=later, end_at=later + timedelta(days=5)))
    assert found
    assert all(later <= o.start_at and o.end_at <= later + timedelta(days=5) for o in found)


@pytest.mark.parametrize(
    "change",
    [{"hours": 25}, {"instances": 65}, {"instance_type": "p9.huge"}, {"instances": 0}, {"hours": 24 * 183}],
)
def test_what_is_not_on_sale_is_refused(capacity: AwsCapacity, change: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest):
        capacity.block_offerings(replace(QUERY, **change))


def test_a_block_from_its_purchase_to_its_end(capacity: AwsCapacity, server: AwsServer) -> None:
    offer, mine = bought(capacity)
    new = seen(capacity, mine)
    assert (new.kind, new.state, new.instances, new.available) == ("capacity-block", "payment-pending", 2, 0)
    assert (new.start_at, new.end_at, new.tags[v.TAG_UID]) == (offer.start_at, offer.end_at, "rsv_1")
    eventually(lambda: seen(capacity, mine).state == "scheduled")
    server.world.advance((offer.start_at - datetime.now(UTC)).total_seconds() + 1)
    active = seen(capacity, mine)
    assert (active.state, active.available, active.match_criteria) == ("active", 2, "targeted")
    with pytest.raises((errors.InvalidRequest, errors.Conflict, errors.Unsupported)):
        capacity.odcr_cancel(mine)
    server.world.advance(offer.hours * 3600)
    assert seen(capacity, mine).state == "expired"


def test_an_offer_bought_twice_is_paid_twice(capacity: AwsCapacity) -> None:
    offer = capacity.block_offerings(QUERY)[0]
    first, second = capacity.block_purchase(offer.offering_id, TAGS), capacity.block_purchase(offer.offering_id, TAGS)
    assert not set(first) & set(second)
    assert {r.provider_id for r in capacity.reservations()} == {*first, *second}


def test_an_offer_that_is_gone_is_refused(capacity: AwsCapacity) -> None:
    with pytest.raises((errors.InvalidRequest, errors.NotFound)):
        capacity.block_purchase("cb-0123456789abcdef0", TAGS)
    assert capacity.reservations() == ()


def test_a_purchase_is_sent_once_when_its_answer_is_lost(capacity: AwsCapacity, server: AwsServer) -> None:
    offer = next(o for o in capacity.block_offerings(QUERY) if o.parts == 1)
    server.world.fault_add("server-error", service="aws", operation="PurchaseCapacityBlock", shape="lost-reply", left=1)
    with pytest.raises(errors.Unavailable):
        capacity.block_purchase(offer.offering_id, TAGS)
    assert [r.tags[v.TAG_UID] for r in capacity.reservations()] == ["rsv_1"]


def test_an_unpaid_block_says_so(capacity: AwsCapacity, server: AwsServer) -> None:
    server.world.fault_add("payment-failed", left=1)
    _offer, mine = bought(capacity)
    eventually(lambda: seen(capacity, mine).state == "payment-failed")


def test_an_ultraserver_block_is_told_from_others(capacity: AwsCapacity) -> None:
    query = cv.OfferingQuery("", 1, 24, ultraserver="u-p6e-gb200x36")
    offer, mine = bought(capacity, query)
    assert (offer.instance_type, offer.instances, offer.ultraserver) == ("p6e-gb200.36xlarge", 9, "u-p6e-gb200x36")
    assert (seen(capacity, mine).kind, seen(capacity, mine).instances) == ("ultraserver-block", 9)


def test_an_extension_moves_the_end_once_it_is_paid(capacity: AwsCapacity) -> None:
    offer, mine = bought(capacity)
    eventually(lambda: seen(capacity, mine).state == "scheduled")
    assert capacity.extensions(mine) == ()
    (more, *_others) = capacity.extension_offerings(mine, 48)
    assert (more.start_at, more.end_at - more.start_at, more.hours) == (offer.end_at, timedelta(hours=48), 48)
    assert more.usd_upfront == (Decimal("7.895") * 8 * 2 * 48).quantize(Decimal("0.01"))
    capacity.extension_purchase(more.offering_id, mine)
    (pending,) = capacity.extensions(mine)
    assert (pending.state, pending.offering_id, pending.end_at) == ("payment-pending", more.offering_id, more.end_at)
    assert (pending.usd_upfront, pending.provider_id) == (more.usd_upfront, mine)
    assert seen(capacity, mine).end_at == offer.end_at, "not paid yet"
    eventually(lambda: capacity.extensions(mine)[0].state == "payment-succeeded")
    assert seen(capacity, mine).end_at == more.end_at


def test_an_extension_that_is_not_paid_changes_nothing(capacity: AwsCapacity, server: AwsServer) -> None:
    offer, mine = bought(capacity)
    eventually(lambda: seen(capacity, mine).state == "scheduled")
    server.world.fault_add("payment-failed", left=1)
    capacity.extension_purchase(capacity.extension_offerings(mine, 24)[0].offering_id, mine)
    eventually(lambda: capacity.extensions(mine)[0].state == "payment-failed")
    assert seen(capacity, mine).end_at == offer.end_at


def test_what_is_no_block_cannot_be_extended(capacity: AwsCapacity) -> None:
    made = capacity.odcr_create(ODCR, uuid.uuid4().hex)
    for wrong in (made.provider_id, "cr-0123456789abcdef0"):
        with pytest.raises((errors.Conflict, errors.NotFound)):
            capacity.extension_offerings(wrong, 24)


# --- training plans


def test_a_training_plan_from_offer_to_end(capacity: AwsCapacity, server: AwsServer) -> None:
    offer = next(o for o in capacity.plan_offerings(QUERY) if o.parts == 1)
    assert (offer.instance_type, offer.instances) == (TYPE, 2)
    assert offer.usd_upfront > 0
    arn = capacity.plan_purchase(offer.offering_id, "train-64", TAGS)
    (plan,) = capacity.training_plans()
    assert (plan.provider_id, plan.kind, plan.name) == (arn, "training-plan", "train-64")
    assert (plan.instance_type, plan.instances, plan.usd_upfront) == (TYPE, 2, offer.usd_upfront)
    assert plan.end_at == offer.end_at
    eventually(lambda: capacity.training_plans()[0].state == "Scheduled")
    server.world.advance((offer.start_at - datetime.now(UTC)).total_seconds() + 1)
    eventually(lambda: capacity.training_plans()[0].state == "Active")
    assert capacity.training_plans()[0].available == 2
    server.world.advance((offer.end_at - offer.start_at).total_seconds() + 1)
    eventually(lambda: capacity.training_plans()[0].state == "Expired")
    assert capacity.reservations() == (), "EC2 does not see a plan"


def test_a_name_is_one_training_plan(capacity: AwsCapacity) -> None:
    offer = capacity.plan_offerings(QUERY)[0]
    capacity.plan_purchase(offer.offering_id, "mine", TAGS)
    other = capacity.plan_offerings(QUERY)[0]
    with pytest.raises(errors.Conflict):
        capacity.plan_purchase(other.offering_id, "mine", TAGS)
    assert len(capacity.training_plans()) == 1


def test_a_plan_whose_answer_is_lost_is_sent_once(capacity: AwsCapacity, server: AwsServer) -> None:
    offer = capacity.plan_offerings(QUERY)[0]
    server.world.fault_add("server-error", service="aws", operation="CreateTrainingPlan", shape="lost-reply", left=1)
    with pytest.raises(errors.Unavailable):
        capacity.plan_purchase(offer.offering_id, "mine", TAGS)
    assert [p.name for p in capacity.training_plans()] == ["mine"]


@pytest.mark.parametrize("change", [{"instance_type": "p9.huge"}, {"instances": 0}, {"hours": 0}])
def test_a_plan_that_is_not_on_sale_is_refused(capacity: AwsCapacity, change: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest):
        capacity.plan_offerings(replace(QUERY, **change))


def test_an_offer_of_no_plan_is_refused(capacity: AwsCapacity) -> None:
    with pytest.raises((errors.NotFound, errors.InvalidRequest)):
        capacity.plan_purchase("tpo-0123456789abcdef", "mine", TAGS)
    assert capacity.training_plans() == ()


# --- every call


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("DescribeCapacityReservations", lambda c: c.reservations()),
        ("ListTrainingPlans", lambda c: c.training_plans()),
        ("DescribeCapacityBlockOfferings", lambda c: c.block_offerings(QUERY)),
        ("SearchTrainingPlanOfferings", lambda c: c.plan_offerings(QUERY)),
        ("PurchaseCapacityBlock", lambda c: c.block_purchase("cb-0123456789abcdef0", TAGS)),
        ("PurchaseCapacityBlockExtension", lambda c: c.extension_purchase("cb-0123456789abcdef0", "cr-1")),
        ("DescribeCapacityBlockExtensionHistory", lambda c: c.extensions("cr-0123456789abcdef0")),
        ("CreateTrainingPlan", lambda c: c.plan_purchase("tpo-1", "mine", TAGS)),
        ("CreateCapacityReservation", lambda c: c.odcr_create(ODCR, "t")),
        ("CancelCapacityReservation", lambda c: c.odcr_cancel("cr-0123456789abcdef0")),
    ],
)
def test_a_role_without_permission_is_told_by_call(
    capacity: AwsCapacity, server: AwsServer, operation: str, call: Callable[[AwsCapacity], Any]
) -> None:
    server.world.fault_add("access-denied", service="aws", operation=operation)
    with pytest.raises(errors.AccessDenied, match=operation):
        call(capacity)
