"""Housekeeping brings back what lost its intent and seals the audit trail; a second round changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from apps.audit.models import Entry
from apps.clusters.models import Fleet, Node
from apps.connections.models import CloudAccount
from apps.core.models import Heartbeat
from apps.health.models import Finding
from apps.intents.models import Intent
from worker.collectors.housekeeping import keep_house
from worker.reconcilers import RECONCILERS

pytestmark = pytest.mark.django_db


def test_everything_alive_gets_its_intent_back(job: Any, cluster: Any) -> None:
    account = CloudAccount.objects.create(name="main", region="us-east-2")
    common = {"cluster": cluster, "instance_type": "p5.48xlarge", "nodes": 1, "subnet_id": "s", "image_id": "a"}
    live = Fleet.objects.create(name="live", phase="LAUNCHING", **common)
    gone = Fleet.objects.create(name="gone", phase="DELETED", **common)
    node = Node.objects.filter(cluster=cluster).first()
    fatal = Finding.objects.create(node=node, source="xid", code="79", title="XID 79", severity="reboot")
    Intent.objects.all().delete()
    keep_house()
    asked = set(Intent.objects.values_list("kind", "key"))
    for kind, key in (
        ("job.reconcile", job.uid),
        ("fleet.reconcile", live.uid),
        ("account.check", account.uid),
        ("finding.respond", fatal.uid),
        ("cluster.queue", cluster.uid),
        ("cluster.connect", cluster.uid),
    ):
        assert (kind, key) in asked
    assert ("fleet.reconcile", gone.uid) not in asked
    assert {kind for kind, _key in asked} <= set(RECONCILERS)
    tickets = set(Intent.objects.values_list("kind", "key", "ticket"))
    keep_house()
    assert set(Intent.objects.values_list("kind", "key", "ticket")) == tickets


def test_it_seals_the_trail_and_leaves_its_heartbeat(job: Any) -> None:
    assert Entry.objects.filter(sequence__isnull=True).exists()
    keep_house()
    assert not Entry.objects.filter(sequence__isnull=True).exists()
    assert Heartbeat.objects.get(name="housekeeping").error == ""
