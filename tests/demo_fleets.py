"""Fleets of the demo by where their machines come from: batches, several choices, Spot, a block; what AWS plans."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from apps.core.said import said
from tests.demo_rows import _Seed

NOBODY = "the machine's host is degraded"


def demo_fleets(seed: _Seed) -> None:
    """Add them to the demo site."""
    from apps.clusters.fleet_observations import cloud_events_observe
    from apps.clusters.models import Fleet, FleetBatch, Node
    from apps.core import clock

    now = clock.now()

    def batch(fleet: Any, ordinal: int, nodes: int, phase: str, ago_min: float, **columns: Any) -> None:
        FleetBatch.objects.create(
            fleet=fleet,
            ordinal=ordinal,
            nodes=nodes,
            phase=phase,
            attempt=columns.pop("attempt", 1),
            client_token="" if phase == "WAITING" else f"{fleet.uid}-{ordinal}",
            asked_at=None if phase == "WAITING" else now - timedelta(minutes=ago_min),
            **columns,
        )

    seed.fleet("hopper", "p5en-sweep", 192, "WAITING_CAPACITY", 21, kind="p5en.48xlarge")
    sweep = seed.rows.fleets["p5en-sweep"]
    sweep.message = said("call %(k)s of %(n)s was refused; the machines of the others are terminated", k=2, n=2)
    sweep.zones_named = ["us-east-1a", "us-east-1c"]
    sweep.save()
    batch(sweep, 0, 100, "WAITING", 0, attempt=3)
    none_left = "InsufficientInstanceCapacity: no p5en.48xlarge in us-east-1b; try us-east-1a, us-east-1c"
    batch(sweep, 1, 92, "REFUSED", 4, attempt=3, message=none_left)

    seed.fleet("hopper", "p5-any", 4, "BOOTING", 2)
    choices = {"other_instance_types": ["p5en.48xlarge"], "other_subnet_ids": ["subnet-0e5f6a7b"]}
    Fleet.objects.filter(name="p5-any").update(**choices)
    batch(seed.rows.fleets["p5-any"], 0, 4, "LAUNCHED", 2)

    seed.fleet("hopper", "g6-spot", 2, "READY", 60 * 9, kind="g6.48xlarge")
    Fleet.objects.filter(name="g6-spot").update(source="spot")

    main = Fleet.objects.get(name="p5-main")
    batch(main, 0, 8, "LAUNCHED", 60 * 28)
    batch(main, 1, 1, "LAUNCHED", 60 * 5, is_replacement=True)
    wrong = said("%(n)s of its machines are not in the reservation: you pay for them and for the reservation", n=1)
    condition = {"kind": "WrongReservation", "text": wrong, "since": clock.iso(now - timedelta(hours=5))}
    Fleet.objects.filter(pk=main.pk).update(conditions=[condition])

    for index, each in enumerate(Node.objects.filter(fleet=main).order_by("name")):
        leaf = f"nn-0{'a' if index < 5 else 'b'}3f5c7d9e1b2a4c6e"
        Node.objects.filter(pk=each.pk).update(network_nodes=["nn-0d1e2f3a4b5c6d7e8", "nn-0c9b8a7f6e5d4c3b2", leaf])
    node = Node.objects.get(name="p5-main-8")
    account = main.cluster.account
    if account is not None:
        planned = {"code": "instance-retirement", "description": NOBODY, "not_after": ""}
        planned["not_before"] = clock.iso(now + timedelta(hours=31))
        cloud_events_observe(account.pk, {node.provider_id: [planned]})
