"""A block in which a cluster's nodes run, and the clock beside its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import time_machine

END = datetime(2026, 12, 3, 11, 30, tzinfo=UTC)


def at(minutes_before: float) -> Any:
    """The clock stands so long before the end of the block."""
    return time_machine.travel(END - timedelta(minutes=minutes_before), tick=False)


def make_block(cluster: Any, team: Any) -> Any:
    """A block of two p5 machines for one day, in which the cluster's nodes run."""
    from apps.capacity.models import Reservation
    from apps.clusters.models import Fleet, Node
    from apps.connections.models import CloudAccount

    account = CloudAccount.objects.create(name="blocks", region="us-east-2", phase="CONNECTED")
    row = Reservation.objects.create(
        account=account,
        kind="capacity-block",
        name="train-64",
        team=team,
        provider_id="cr-1",
        instance_type="p5.48xlarge",
        instances=2,
        start_at=END - timedelta(days=1),
        end_at=END,
        usd_upfront=Decimal("2292.48"),
        usd_per_hour=Decimal("47.76"),
        phase="ACTIVE",
        available_instances=0,
    )
    fleet = Fleet.objects.create(
        cluster=cluster,
        name="f",
        instance_type="p5.48xlarge",
        nodes=2,
        subnet_id="s",
        image_id="a",
        phase="READY",
        source="capacity-block",
        reservation=row,
        launched_at=END - timedelta(hours=20),
    )
    Node.objects.filter(cluster=cluster).update(fleet=fleet)
    return row
