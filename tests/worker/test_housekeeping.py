"""Housekeeping brings back what lost its intent and seals the audit trail; a second round changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from apps.audit.models import Entry
from apps.clusters.group_models import NodeAction, NodeGroup
from apps.clusters.models import Cluster, Fleet, Node
from apps.connections.models import CloudAccount
from apps.core import clock
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


def test_what_aws_keeps_gets_its_intents_back(db: None) -> None:
    account = CloudAccount.objects.create(name="main", region="us-east-2")
    clusters = {
        name: Cluster.objects.create(name=name, kind=kind, account=account, phase=phase, **more)
        for name, kind, phase, more in (
            ("ready", "hyperpod-slurm", "READY", {"observed_generation": 1}),
            ("made", "pcs", "PENDING", {}),
            ("retried", "eks", "FAILED", {"generation": 2, "observed_generation": 1}),
            ("left", "eks", "FAILED", {"observed_generation": 1, "delete_requested_at": clock.now()}),
            ("failed", "eks", "FAILED", {"observed_generation": 1}),
            ("deleted", "eks", "DELETED", {}),
        )
    }
    common = {"cluster": clusters["ready"], "instance_type": "p5.48xlarge"}
    groups = {
        name: NodeGroup.objects.create(name=name, phase=phase, observed_generation=seen, **common)
        for name, phase, seen in (
            ("making", "CREATING", 1),
            ("degraded", "DEGRADED", 1),
            ("resized", "ACTIVE", 0),
            ("settled", "ACTIVE", 1),
            ("gone", "DELETED", 0),
        )
    }
    for number, phase in enumerate(("ASKED", "SENDING", "TAKEN")):
        node = Node.objects.create(cluster=clusters["ready"], name=f"n{number}", provider_id=f"i-{number}")
        NodeAction.objects.create(
            node=node, provider_id=node.provider_id, verb="reboot", phase=phase, reason="r", asked_by="o"
        )
    stranger = Node.objects.create(cluster=clusters["made"], name="done", provider_id="i-9")
    NodeAction.objects.create(
        node=stranger, provider_id="i-9", verb="reboot", phase="REFUSED", reason="r", asked_by="o"
    )
    Intent.objects.all().delete()
    keep_house()
    asked = {kind: set() for kind in ("cluster.connect", "cluster.reconcile", "group.reconcile", "node.act")}
    for kind, key in Intent.objects.filter(kind__in=asked).values_list("kind", "key"):
        asked[kind].add(key)
    assert asked == {
        "cluster.connect": set(),
        "cluster.reconcile": {clusters[name].uid for name in ("ready", "made", "retried", "left")},
        "group.reconcile": {groups[name].uid for name in ("making", "degraded", "resized")},
        "node.act": {clusters["ready"].uid},
    }
    assert set(asked) <= set(RECONCILERS)


def test_it_seals_the_trail_and_leaves_its_heartbeat(job: Any) -> None:
    assert Entry.objects.filter(sequence__isnull=True).exists()
    keep_house()
    assert not Entry.objects.filter(sequence__isnull=True).exists()
    assert Heartbeat.objects.get(name="housekeeping").error == ""
