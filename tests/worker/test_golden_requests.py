"""The exact requests with which a fleet is launched from each source, compared with files.

``QD_REWRITE_GOLDEN=1 .venv/bin/pytest tests/worker/test_golden_requests.py`` writes the files anew.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.models import Cluster, Fleet
from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import ARM_IMAGE_ID
from sandbox.world import World
from tests.chaos import Plan
from tests.worker import fleet_site as at
from worker import doors
from worker.providers.aws import clients

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
RECORDED = ("CreateLaunchTemplate", "RunInstances", "CreateFleet")


def on_demand(server: AwsServer, cluster: Cluster) -> dict[str, Any]:
    return {"instance_type": "p5en.48xlarge", "nodes": 64}


def into_block(server: AwsServer, cluster: Cluster) -> dict[str, Any]:
    row = at.block(server, cluster, "p5en.48xlarge", 64)
    return {"instance_type": "p5en.48xlarge", "nodes": 64, "source": "capacity-block", "reservation": row}


def into_odcr(server: AwsServer, cluster: Cluster) -> dict[str, Any]:
    row = at.odcr(server, cluster, "p5en.48xlarge", 64)
    return {"instance_type": "p5en.48xlarge", "nodes": 64, "source": "odcr-targeted", "reservation": row}


def into_odcr_with_group(server: AwsServer, cluster: Cluster) -> dict[str, Any]:
    group = at.client(server).create_placement_group(GroupName="their-group", Strategy="cluster")["PlacementGroup"]
    row = at.odcr(server, cluster, "p5en.48xlarge", 64, PlacementGroupArn=group["GroupArn"])
    return {"instance_type": "p5en.48xlarge", "nodes": 64, "source": "odcr-targeted", "reservation": row}


def b300(server: AwsServer, cluster: Cluster) -> dict[str, Any]:
    return {"instance_type": "p6-b300.48xlarge", "nodes": 2}


def gb200_ultraserver(server: AwsServer, cluster: Cluster) -> dict[str, Any]:
    row = at.block(server, cluster, "p6e-gb200.36xlarge", 18, "u-p6e-gb200x72")
    return {
        "instance_type": "p6e-gb200.36xlarge",
        "nodes": 18,
        "source": "ultraserver-block",
        "reservation": row,
        "image_id": ARM_IMAGE_ID,
    }


def several_choices(server: AwsServer, cluster: Cluster) -> dict[str, Any]:
    return {"instance_type": "p5en.48xlarge", "nodes": 4, "other_instance_types": ["p5.48xlarge"]}


#: Name of the file: region, zone, and what is asked for.
CASES: dict[str, tuple[str, str, Callable[[AwsServer, Cluster], dict[str, Any]]]] = {
    "p5en-64-on-demand": ("us-east-2", "us-east-2a", on_demand),
    "p5en-64-capacity-block": ("us-east-2", "us-east-2a", into_block),
    "p5en-64-odcr": ("us-east-2", "us-east-2a", into_odcr),
    "p5en-64-odcr-in-placement-group": ("us-east-2", "us-east-2a", into_odcr_with_group),
    "p5en-or-p5-4-create-fleet": ("us-east-2", "us-east-2a", several_choices),
    "p6-b300-2-on-demand": ("us-west-2", "us-west-2a", b300),
    "p6e-gb200-18-ultraserver-block": ("us-east-1", "us-east-1-dfw-2a", gb200_ultraserver),
}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What is sent, as boto3 was asked for it."""
    seen: list[tuple[str, dict[str, Any]]] = []
    real = clients._build.__wrapped__

    def build(access: Any) -> Any:
        found = real(access)

        def record(params: dict[str, Any], model: Any, **_: Any) -> None:
            if model.name in RECORDED and not params.get("DryRun"):
                seen.append((model.name, json.loads(json.dumps(params, default=str))))

        found.launch.meta.events.register("provide-client-params.ec2.*", record)
        return found

    monkeypatch.setattr(clients, "_build", build)
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    return seen


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AwsServer]:
    region, zone, _asked = CASES[request.param]
    options = AwsOptions(region=region, zone=zone, boot_s=0.2, join_s=0.1, shutdown_s=0.1, pool=64)
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, options)
    server.start()
    yield server
    server.stop()


def plain(value: Any, names: dict[str, str]) -> Any:
    """Ids that differ from run to run by their names, and the user data as text."""
    if isinstance(value, dict):
        found = {k: plain(v, names) for k, v in value.items()}
        if "UserData" in found:
            found["UserData"] = plain(base64.b64decode(value["UserData"]).decode().splitlines(), names)
        return found
    if isinstance(value, list):
        return [plain(v, names) for v in value]
    if isinstance(value, str):
        for text, name in names.items():
            value = value.replace(text, name)
    return value


@pytest.mark.parametrize(("name", "server"), [(name, name) for name in CASES], indirect=["server"])
def test_requests_are_exactly_these(
    name: str, server: AwsServer, requests: list[tuple[str, dict[str, Any]]], work: Any, operator: Any
) -> None:
    cluster = at.site(server)
    asked = CASES[name][2](server, cluster)
    fleet = at.make(operator, cluster, **asked)
    uid = "flt_golden"
    Fleet.objects.filter(pk=fleet.pk).update(uid=uid)
    from apps.intents.models import Intent

    Intent.objects.filter(kind=at.KIND).update(key=uid)
    fleet.refresh_from_db()
    at.drive(fleet, work, Plan(), "BOOTING", "FAILED", seconds=60)
    assert fleet.phase == "BOOTING", fleet.message
    names = {cluster.uid: "<cluster>", fleet.launch_template_id: "<launch template>"}
    names |= {t["id"]: f"<launch template {i + 1}>" for i, t in enumerate(fleet.templates) if i}
    if fleet.reservation is not None:
        names[fleet.reservation.provider_id] = "<reservation>"
    sent = [{"operation": operation, "parameters": plain(params, names)} for operation, params in requests]
    text = json.dumps(sent, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("QD_REWRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
    machines = doors.compute_for(cluster.account).instances({"quarterdeck:uid": uid})
    wanted = fleet.reservation.provider_id if fleet.reservation else ""
    assert {m.reservation_id for m in machines} == {wanted}


def test_every_file_has_its_case() -> None:
    assert {p.stem for p in GOLDEN.glob("*.json")} == set(CASES)
