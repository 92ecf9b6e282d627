"""A drain where the portal has no way to the scheduler: said once on the node, with what a person can type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from apps.audit.models import Event
from apps.clusters.models import Cluster, Node
from apps.clusters.services import node_drain
from apps.intents.models import Intent
from tests.conftest import actor_of

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("kind", "words"), [("eks", "kubectl cordon n1"), ("pcs", "scontrol update nodename=n1 state=drain")]
)
def test_it_says_what_to_type_and_does_not_go_on_asking(
    operator: Any, work: Callable[..., int], kind: str, words: str
) -> None:
    cluster = Cluster.objects.create(name="kept", kind=kind, phase="READY")
    node = Node.objects.create(cluster=cluster, name="n1", provider_id="i-1", phase="READY")
    node_drain(actor=actor_of(operator), node=node, reason="XID 79")
    assert work("node.drain") == 1
    assert not Intent.objects.filter(kind="node.drain").exists()
    node.refresh_from_db()
    assert words in str(node.observed_reason)
    assert node.drain_requested_at is not None, "jobs of the portal avoid it"
    assert words in Event.objects.get(kind="DrainUnsupported", object_uid=node.uid).text
