"""Rows of reserved capacity for the demo: an ending block, coming ones, an ODCR, a plan, purchases in all states."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from tests.demo_rows import _Seed


def demo_capacity(seed: _Seed) -> None:
    """Add them to the demo site."""
    from apps.audit.services import event
    from apps.capacity.models import OfferingSearch, Purchase, Reservation
    from apps.clusters.models import Fleet
    from apps.connections.models import CloudAccount
    from apps.core import clock
    from apps.teams.models import Team

    now = clock.now()
    account = CloudAccount.objects.get(name="research")
    nlp = Team.objects.get(slug="nlp")

    def make(name: str, kind: str, phase: str, start_h: float, end_h: float | None, **columns: Any) -> Any:
        row = Reservation.objects.create(
            account=account,
            name=name,
            kind=kind,
            phase=phase,
            provider_id=f"cr-0{abs(hash(name)) % 10**15:016x}",
            zone_name=f"{account.region}a",
            zone_id="use2-az1",
            start_at=now + timedelta(hours=start_h),
            end_at=None if end_h is None else now + timedelta(hours=end_h),
            observed_state=phase.lower(),
            observed_at=now,
            **columns,
        )
        event("reservation", row.uid, "ReservationBought", row.provider_id)
        return row

    ending = make(
        "pretrain-w48",
        "capacity-block",
        "ACTIVE",
        -150,
        18,
        team=nlp,
        instance_type="p5.48xlarge",
        instances=10,
        available_instances=2,
        usd_upfront=Decimal("80236.80"),
        usd_per_hour=Decimal("47.76"),
        price_source="UpfrontFee",
        warned_at=now - timedelta(hours=6),
    )
    event("reservation", ending.uid, "BlockEndsSoon", f"{ending.name} ends soon")
    Fleet.objects.filter(name="p5-main").update(reservation=ending, source="capacity-block")
    make(
        "found-in-account",
        "capacity-block",
        "ACTIVE",
        -30,
        42,
        instance_type="p5.48xlarge",
        instances=2,
        available_instances=2,
        is_adopted=True,
    )
    make(
        "pretrain-w50",
        "capacity-block",
        "SCHEDULED",
        160,
        328,
        team=nlp,
        instance_type="p5en.48xlarge",
        instances=64,
        usd_upfront=Decimal("679096.32"),
        usd_per_hour=Decimal("63.16"),
        price_source="UpfrontFee",
    )
    make(
        "nvl72",
        "ultraserver-block",
        "PAYMENT_PENDING",
        400,
        568,
        instance_type="p6e-gb200.36xlarge",
        instances=18,
        usd_upfront=Decimal("127999.87"),
        usd_per_hour=Decimal("42.328"),
        price_source="UpfrontFee",
    )
    make(
        "serving",
        "odcr",
        "ACTIVE",
        -900,
        None,
        instance_type="p5.48xlarge",
        instances=2,
        available_instances=2,
        match_criteria="open",
        usd_per_hour=Decimal("55.04"),
        is_adopted=True,
    )
    make(
        "hyperpod-plan",
        "training-plan",
        "SCHEDULED",
        60,
        228,
        instance_type="p5.48xlarge",
        instances=8,
        usd_upfront=Decimal("64189.44"),
        usd_per_hour=Decimal("47.76"),
    )
    offers = [
        {
            "offering_id": f"cb-0{n}a1b2c3d4e5f6a7b",
            "instance_type": "p5en.48xlarge",
            "instances": 8,
            "zone_name": f"{account.region}{zone}",
            "zone_id": f"use2-az{n}",
            "start_at": clock.iso(now + timedelta(days=n)),
            "end_at": clock.iso(now + timedelta(days=n + 7)),
            "hours": 168,
            "usd_upfront": usd,
            "usd_per_gpu_hour": per,
            "currency": "USD",
            "ultraserver": "",
            "parts": 1,
        }
        for n, zone, usd, per in (
            (2, "a", "84887.04", "7.8950"),
            (3, "b", "84887.04", "7.8950"),
            (5, "c", "77103.36", "7.1711"),
        )
    ]
    search = OfferingSearch.objects.create(
        account=account,
        kind="capacity-block",
        criteria={"instance_type": "p5en.48xlarge", "instances": 8, "hours": 168, "zones": []},
        asked_by="user:0",
        asked_by_name="operator",
        phase="DONE",
        offers=offers,
        answered_at=now,
    )

    def buy(name: str, phase: str, **columns: Any) -> Any:
        decided = {"decided_by": "user:-2", "decided_by_name": "admin", "decided_at": now}
        columns = (decided if phase != "REQUESTED" else {}) | columns
        row = Purchase.objects.create(
            account=account,
            kind="capacity-block",
            team=nlp,
            search=search,
            name=name,
            offering_id=offers[0]["offering_id"],
            offer=offers[0],
            instance_type="p5en.48xlarge",
            instances=8,
            zone_name=offers[0]["zone_name"],
            start_at=now + timedelta(days=2),
            end_at=now + timedelta(days=9),
            usd_upfront=Decimal("84887.04"),
            usd_per_hour=Decimal("63.16"),
            price_source="UpfrontFee",
            reason="second epoch of the 70B run",
            key=name,
            requested_by="user:-1",
            requested_by_name="operator",
            good_until=now + timedelta(minutes=50),
            phase=phase,
            **columns,
        )
        event("purchase", row.uid, "PurchaseRequested", "operator")
        return row

    buy("epoch-2", "REQUESTED")
    buy("epoch-1", "BOUGHT", attempted_at=now - timedelta(days=6), reservation=ending)
    buy(
        "ablations",
        "UNKNOWN",
        attempted_at=now - timedelta(minutes=20),
        message="no clear answer (PurchaseCapacityBlock: the call may have taken effect);",
        candidates=[
            {
                "provider_id": "cr-0feedc0de0feedc0d",
                "instance_type": "p5en.48xlarge",
                "instances": 8,
                "zone_name": offers[0]["zone_name"],
                "state": "payment-pending",
                "fits": True,
            }
        ],
    )
