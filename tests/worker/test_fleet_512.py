"""512 machines reach ready with few reads of AWS: a count of calls, not a time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.models import Node
from sandbox.aws import AwsOptions, AwsServer
from sandbox.world import World
from tests.chaos import Plan
from tests.worker import fleet_site as at
from worker.providers.aws import clients

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]
MOST_READS = 60


def test_512_nodes_are_ready_with_fewer_than_60_reads(
    work: Any, operator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    real = clients._build.__wrapped__

    def build(access: Any) -> Any:
        found = real(access)
        for client in (found.ec2, found.launch, found.sts, found.quotas):
            client.meta.events.register("before-send", lambda request, **_: calls.update([_operation(request)]))
        return found

    monkeypatch.setattr(clients, "_build", build)
    monkeypatch.setenv("TEST_AWS", at.KEYS)
    options = AwsOptions(boot_s=3.0, join_s=0.1, shutdown_s=0.1, pools={"p5en.48xlarge": 512}, p_vcpu_quota=512 * 192)
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, options)
    server.start()
    try:
        fleet = at.make(operator, at.site(server), instance_type="p5en.48xlarge", nodes=512)
        at.drive(fleet, work, Plan(), "READY", "FAILED", seconds=150, pause_s=1.0)
        assert fleet.phase == "READY", fleet.message
    finally:
        server.stop()
    assert Node.objects.filter(fleet=fleet, phase="READY").count() == 512
    assert all(len(n.network_nodes) == 3 for n in Node.objects.filter(fleet=fleet))
    changing = {k: n for k, n in calls.items() if k.startswith(("Create", "Run"))}
    reads = {k: n for k, n in calls.items() if k not in changing}
    print(f"512 nodes: {sum(reads.values())} reads ({dict(reads)}), {dict(changing)} changing calls")
    assert calls["RunInstances"] == 7  # six batches and the dry run
    assert sum(reads.values()) < MOST_READS


def _operation(request: Any) -> str:
    body = request.body.decode() if isinstance(request.body, bytes) else str(request.body)
    target = request.headers.get("X-Amz-Target", b"")
    target = target.decode() if isinstance(target, bytes) else target
    return target.rpartition(".")[2] if target else body.partition("Action=")[2].partition("&")[0]
