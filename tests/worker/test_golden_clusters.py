"""The exact requests with which groups come from a block or a training plan, for each service, compared with files.

``QD_REWRITE_GOLDEN=1 .venv/bin/pytest tests/worker/test_golden_clusters.py`` writes the files anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.capacity.models import Reservation
from apps.clusters.group_models import NodeGroup
from apps.connections.models import CloudAccount
from apps.core import clock
from sandbox.aws import AwsServer
from sandbox.world import World
from tests import cluster_site as site
from tests.chaos import Plan
from tests.worker import managed_site as at
from worker.providers.aws import clients

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "clusters"
#: File: kind of cluster, and the calls that are compared.
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "pcs-p5en-capacity-block": (
        "pcs",
        ("CreateCluster", "CreateLaunchTemplate", "CreateComputeNodeGroup", "CreateQueue"),
    ),
    "eks-p5en-capacity-block": ("eks", ("CreateCluster", "CreateLaunchTemplate", "CreateNodegroup")),
    "hyperpod-p5en-training-plan": ("hyperpod-slurm", ("CreateCluster",)),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, site.OPTIONS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What is sent once and never repeated, as boto3 was asked for it."""
    seen: list[tuple[str, dict[str, Any]]] = []
    real = clients._service.__wrapped__
    made: dict[tuple[Any, ...], Any] = {}

    def service(access: Any, name: str, attempts: int) -> Any:
        key = (access, name, attempts)
        if key not in made:
            made[key] = real(access, name, attempts)

            def record(params: dict[str, Any], model: Any, **_: Any) -> None:
                seen.append((model.name, json.loads(json.dumps(params, default=str))))

            if attempts == 1:
                made[key].meta.events.register("provide-client-params.*.*", record)
        return made[key]

    monkeypatch.setattr(clients, "_service", service)
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    return seen


def reservation(server: AwsServer, where: CloudAccount, kind: str) -> Reservation:
    """A block or a plan of four machines, active."""
    if kind == "training-plan":
        provider_id = site.plan(server, 4)
        start = server.services["sagemaker"].rows("plans")["plan"]["start"]
        server.world.advance(start - site.time.time() + 2)
    else:
        provider_id = site.block(server)
    return Reservation.objects.create(
        account=where,
        kind=kind,
        provider_id=provider_id,
        name="reserved",
        instance_type=at.TYPE,
        instances=4,
        phase="ACTIVE",
        start_at=clock.now() - timedelta(hours=1),
        end_at=clock.now() + timedelta(hours=23),
    )


def plain(value: Any, names: dict[str, str]) -> Any:
    """Ids that differ from run to run by their names."""
    text = json.dumps(value)
    for found, name in names.items():
        text = text.replace(found, name)
    return json.loads(text)


@pytest.mark.parametrize("name", sorted(CASES))
def test_requests_are_exactly_these(
    name: str, server: AwsServer, requests: list[tuple[str, dict[str, Any]]], work: Any, operator: Any
) -> None:
    kind, operations = CASES[name]
    where = at.account(server)
    source = "training-plan" if kind.startswith("hyperpod") else "capacity-block"
    row = reservation(server, where, source)
    *others, group = at.GROUPS[kind]
    asked = [*others, {**group, "nodes": 4, "source": source, "reservation": row}]
    cluster = at.make(operator, where, kind, groups=asked)
    at.drive(work, Plan(), lambda: at.all_settled(cluster))
    rows = list(NodeGroup.objects.filter(cluster=cluster))
    names = {
        row.provider_id: "<reservation>",
        cluster.provider_id: "<cluster id>",
        cluster.name_at_provider: "<name>",
        cluster.client_token: "<token>",
        cluster.uid: "<cluster>",
    }
    if own := cluster.provider_facts.get("security_group_id"):
        names[own] = "<cluster security group>"
    for g in rows:
        short = g.uid.replace("_", "-")
        names |= {g.uid: f"<group {g.name}>", short: f"<group {g.name}>"}
        for found, noun in ((g.launch_template_id, "template"), (g.client_token, "token")):
            if found:
                names[found] = f"<{noun} of {g.name}>"
        if g.provider_id.startswith("pcs_"):
            names[g.provider_id] = f"<id of {g.name}>"
    sent = []
    for operation, params in requests:
        if operation in operations:
            shown = plain(params, names)
            for token in ("clientToken", "clientRequestToken", "ClientToken"):
                if token in shown and not shown[token].startswith("<"):
                    shown[token] = "<token of its own>"
            # Asked again with its token while AWS makes it, it must be the same request.
            if (one := {"operation": operation, "parameters": shown}) not in sent:
                sent.append(one)
    assert [s["operation"] for s in sent] == list(operations)
    text = json.dumps(sent, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("QD_REWRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_every_file_has_its_case() -> None:
    assert {p.stem for p in GOLDEN.glob("*.json")} == set(CASES)
