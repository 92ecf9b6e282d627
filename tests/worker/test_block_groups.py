"""Node groups in a block: their jobs and nodes stand under the same clock as those of fleets."""

from __future__ import annotations

from typing import Any

import pytest

from apps.audit.models import Event
from apps.capacity.models import Reservation
from apps.clusters.group_models import NodeGroup
from apps.clusters.models import Cluster, Fleet, Node
from apps.intents.models import Intent
from apps.jobs.block_ends import minutes_left_on, room_for
from tests.blocks import at
from worker.reconcilers import nodes, reservations

pytestmark = pytest.mark.django_db


@pytest.fixture
def group(block: Reservation, cluster: Cluster) -> NodeGroup:
    """The block's nodes, in a group of AWS's instead of a fleet."""
    Cluster.objects.filter(pk=cluster.pk).update(kind="pcs")
    found = NodeGroup.objects.create(
        cluster=cluster,
        name="p5",
        instance_type="p5.48xlarge",
        nodes=4,
        min_nodes=2,
        source="capacity-block",
        reservation=block,
        phase="ACTIVE",
        observed_generation=1,
    )
    Node.objects.filter(fleet__reservation=block).update(fleet=None, group=found)
    Fleet.objects.all().delete()
    return found


def test_the_clock_of_a_block_drains_and_empties_its_groups(group: NodeGroup, job: Any, scheduler: Any) -> None:
    block = group.reservation
    assert block is not None
    with at(46):
        reservations.watch(block.uid)
    assert not Node.objects.filter(drain_requested_at__isnull=False).exists()
    with at(44):
        reservations.watch(block.uid)
    drained = Node.objects.filter(group=group)
    assert drained.exists()
    assert not drained.filter(drain_requested_at__isnull=True).exists()
    drained.update(gpus_used=8)
    with at(40):
        reservations.watch(block.uid)
    group.refresh_from_db()
    assert group.nodes == 4
    for _redelivered in range(2):
        with at(38):
            reservations.watch(block.uid)
    group.refresh_from_db()
    assert (group.nodes, group.min_nodes, group.generation) == (0, 0, 2)
    assert Intent.objects.filter(kind="group.reconcile", key=group.uid).exists()
    assert Event.objects.filter(object_uid=group.uid, kind="GroupResized").count() == 1


def test_jobs_know_when_the_block_of_a_group_ends(group: NodeGroup, job: Any) -> None:
    node = Node.objects.filter(group=group).first()
    assert node is not None
    with at(300):
        assert (minutes_left_on(node) or 0) > 200
        assert room_for(job).is_bound


def test_a_drain_where_no_scheduler_is_connected_says_so(group: NodeGroup) -> None:
    Cluster.objects.filter(pk=group.cluster_id).update(kind="eks", token_ref="")
    node = Node.objects.filter(group=group).first()
    assert node is not None
    with at(44):
        reservations.watch(group.reservation.uid)  # type: ignore[union-attr]
    nodes.drain(node.uid)
    node.refresh_from_db()
    assert "kubectl cordon" in node.observed_reason
    assert Event.objects.filter(object_uid=node.uid, kind="DrainUnsupported").exists()
