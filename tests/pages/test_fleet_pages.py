"""Where a fleet's machines come from, on its form and page; what AWS plans for a node; files of the network."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from apps.capacity.models import Reservation
from apps.clusters.cloud_events import planned_for
from apps.clusters.fleet_observations import preflight_done
from apps.clusters.models import Fleet, Node, PreflightRun
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.core.said import said
from apps.intents.models import Intent
from tests.demo_rows import DemoRows
from tests.pages.test_capacity import fleet_input

SignIn = Callable[..., Client]


def reservation(name: str, **columns: Any) -> Reservation:
    """Active capacity of the account in which the demo's cluster stands."""
    now = clock.now()
    columns = {"kind": "capacity-block", "phase": "ACTIVE", "end_at": now + timedelta(days=3)} | columns
    return Reservation.objects.create(
        account=CloudAccount.objects.get(name="research"),
        name=name,
        provider_id=f"cr-0{name}",
        instance_type="p5.48xlarge",
        instances=4,
        available_instances=4,
        start_at=now - timedelta(hours=1),
        **columns,
    )


@pytest.mark.parametrize("kind", ["capacity-block", "odcr"])
def test_a_fleet_is_launched_into_a_reservation(sign_in: SignIn, more: DemoRows, kind: str) -> None:
    row = reservation("into", kind=kind)
    client, where = sign_in("operator"), f"/clusters/{more.clusters['ada'].uid}/fleets/new"
    form = client.get(where).content.decode()
    assert row.uid in form
    source = "capacity-block" if kind == "capacity-block" else "odcr-targeted"
    answer = client.post(where, fleet_input(source=source, reservation=row.uid))
    assert answer.status_code == 302
    fleet = Fleet.objects.get(name="p5-more")
    assert (fleet.source, fleet.reservation) == (source, row)
    assert "cr-0into" in client.get(answer["Location"]).content.decode()


def test_a_fleet_takes_further_types_and_zones(sign_in: SignIn, more: DemoRows) -> None:
    client, where = sign_in("operator"), f"/clusters/{more.clusters['ada'].uid}/fleets/new"
    body = fleet_input(other_instance_types="p5en.48xlarge, p4d.24xlarge", other_subnet_ids="subnet-0f0f0f0f")
    answer = client.post(where, body)
    assert answer.status_code == 302
    fleet = Fleet.objects.get(name="p5-more")
    assert (fleet.source, fleet.reservation) == ("on-demand", None)
    assert fleet.other_instance_types == ["p5en.48xlarge", "p4d.24xlarge"]
    assert fleet.other_subnet_ids == ["subnet-0f0f0f0f"]


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"source": "capacity-block"}, "reservation", "reservation"),
        ({"source": "spot", "other_instance_types": "p4d.24xlarge"}, "other_instance_types", "on demand"),
        ({"other_instance_types": "p9.huge"}, "other_instance_types", "p9.huge"),
        ({"other_subnet_ids": "vpc-1"}, "other_subnet_ids", "subnet-"),
        ({"source": "lottery"}, "source", "lottery"),
        ({"source": "capacity-block", "reservation": "rsv_nobody"}, "reservation", "rsv_nobody"),
    ],
)
def test_what_does_not_go_together_is_told_at_its_field(
    sign_in: SignIn, more: DemoRows, changes: dict[str, str], field: str, words: str
) -> None:
    before = Fleet.objects.count()
    where = f"/clusters/{more.clusters['ada'].uid}/fleets/new"
    answer = sign_in("operator").post(where, fleet_input(**changes))
    assert answer.status_code == 422
    shown = answer.content.decode().split(f'id="{field}-problem"')[1].split("</p>")[0]
    assert words in shown
    assert Fleet.objects.count() == before


def test_check_now_asks_the_worker_and_shows_what_it_found(sign_in: SignIn, more: DemoRows) -> None:
    row = reservation("checked")
    client, where = sign_in("operator"), f"/clusters/{more.clusters['ada'].uid}/fleets/check"
    waiting = client.post(where, fleet_input(source="capacity-block", reservation=row.uid)).content.decode()
    run = PreflightRun.objects.latest("id")
    assert "The worker asks AWS; nothing is created." in waiting
    assert f'hx-get="/preflights/{run.uid}"' in waiting
    assert (run.reservation, run.spec["source"], run.spec["nodes"]) == (row, "capacity-block", 4)
    assert Intent.objects.filter(kind="preflight.run", key=run.uid).exists()
    assert not Fleet.objects.filter(name="p5-more").exists()
    detail = said("%(n)s free, 4 wanted", n=3)
    preflight_done(run, [{"name": "reservation", "passed": False, "detail": detail}])
    found = client.get(f"/preflights/{run.uid}").content.decode()
    assert "1 check did not pass." in found
    assert "3 free, 4 wanted" in found
    assert "hx-get" not in found, "an answer is not asked for again"
    assert "must start with subnet-" in client.post(where, fleet_input(subnet_id="net-1")).content.decode()
    assert PreflightRun.objects.filter(phase="PENDING").count() == 0
    assert sign_in("owner").post(where, fleet_input()).status_code == 403
    assert sign_in("owner").get(f"/preflights/{run.uid}").status_code == 403


def test_launch_calls_are_shown_with_what_aws_said(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("member")
    text = client.get(f"/fleets/{more.fleets['p5en-sweep'].uid}").content.decode()
    table = text.split('id="batches-title"')[1].split("</table>")[0]
    assert "RunInstances" in table
    for words in ("1 of 2", "2 of 2", "Waiting", "Refused", "InsufficientInstanceCapacity: no p5en.48xlarge"):
        assert words in table, words
    assert "CreateFleet" in client.get(f"/fleets/{more.fleets['p5-any'].uid}").content.decode()
    assert "replacement" in client.get(f"/fleets/{more.fleets['p5-main'].uid}").content.decode()
    assert "batches-title" not in client.get(f"/fleets/{more.fleets['p5en-eval'].uid}").content.decode()


def test_what_aws_plans_is_on_the_node_with_what_to_do(sign_in: SignIn, more: DemoRows) -> None:
    node = more.nodes["p5-main-8"]
    text = sign_in("member").get(f"/nodes/{node.uid}").content.decode()
    panel = text.split('id="planned-title"')[1].split("</section>")[0]
    assert "Retirement: AWS takes the machine away for good" in panel
    assert "Drain the node now" in panel
    assert "st st-bad" in panel
    assert "planned-title" not in sign_in("member").get(f"/nodes/{more.nodes['p5-main-1'].uid}").content.decode()


def test_events_come_in_the_order_of_their_time_and_unknown_ones_in_awss_words() -> None:
    soon, later = clock.now() + timedelta(hours=2), clock.now() + timedelta(days=9)
    node = Node(
        cloud_events=[
            {"code": "meteor", "description": "a meteor is near", "not_before": "", "not_after": ""},
            {"code": "instance-retirement", "description": "", "not_before": clock.iso(later), "not_after": ""},
            {"code": "system-reboot", "description": "", "not_before": clock.iso(soon), "not_after": clock.iso(later)},
        ]
    )
    found = planned_for(node)
    assert [(p.code, p.colour) for p in found] == [
        ("system-reboot", "warn"),
        ("instance-retirement", "warn"),
        ("meteor", "warn"),
    ]
    assert (found[2].title, found[2].detail) == ("meteor", "a meteor is near")
    assert "return it to service" in found[0].advice
    node.cloud_events[1]["not_before"] = clock.iso(soon)
    assert [p.colour for p in planned_for(node)] == ["bad", "warn", "warn"]


# --- files of the network


def test_the_network_is_told_to_slurm_and_kubernetes(sign_in: SignIn, more: DemoRows) -> None:
    client, ada = sign_in("member"), more.clusters["ada"].uid
    top, middle = "nn-0d1e2f3a4b5c6d7e8", "nn-0c9b8a7f6e5d4c3b2"
    leaf_a, leaf_b = "nn-0a3f5c7d9e1b2a4c6e", "nn-0b3f5c7d9e1b2a4c6e"

    def download(name: str) -> str:
        answer = client.get(f"/clusters/{ada}/topology/{name}")
        assert answer.status_code == 200
        assert answer["Content-Disposition"] == f'attachment; filename="{name}"'
        assert answer["Content-Type"].startswith("text/plain")
        return str(answer.content.decode())

    in_a, in_b = (",".join(f"p5-main-{n}" for n in numbers) for numbers in (range(1, 6), range(6, 9)))
    conf = download("topology.conf").splitlines()
    assert conf[1:] == [
        f"SwitchName={leaf_a} Nodes={in_a}",
        f"SwitchName={leaf_b} Nodes={in_b}",
        f"SwitchName={middle} Switches={leaf_a},{leaf_b}",
        f"SwitchName={top} Switches={middle}",
    ]
    tree = download("topology.yaml")
    assert tree.startswith('---\n- topology: "ada"\n  cluster_default: true\n  tree:\n    switches:\n')
    assert f'      - switch: "{leaf_b}"\n        nodes: "{in_b}"\n' in tree
    assert f'      - switch: "{middle}"\n        children: "{leaf_a},{leaf_b}"\n' in tree
    labels = download("labels.sh").splitlines()
    assert labels[0] == "#!/bin/sh"
    assert labels[8] == (
        "kubectl label --overwrite node p5-main-8 "
        f"topology.k8s.aws/network-node-layer-1={top} topology.k8s.aws/network-node-layer-2={middle} "
        f"topology.k8s.aws/network-node-layer-3={leaf_b}"
    )
    assert len(labels) == 9
    assert client.get(f"/clusters/{ada}/topology/topology.xml").status_code == 404
    fleet = client.get(f"/fleets/{more.fleets['p5-main'].uid}").content.decode()
    # 10 of the pairs under one leaf and 3 under the other, of 28.
    assert "46 % of node pairs under one leaf switch, 2 leaves" in fleet
    shown = client.get(f"/api/v1/clusters/{ada}/topology").json()
    assert shown["percent_under_one_leaf"] == 46
    assert shown["files"]["topology.conf"].splitlines() == conf
