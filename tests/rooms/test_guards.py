"""What must not be possible: reading the portal's secrets, losing sight of jobs, widening a token, ghosts of nodes."""

from __future__ import annotations

from typing import Any

import pytest

from apps.clusters.models import Node
from apps.clusters.observations import SeenNode, cluster_nodes_observe
from apps.clusters.services import ClusterInUse, cluster_create, cluster_delete
from apps.core.errors import Forbidden, InvalidInput
from apps.jobs.services import job_preview
from apps.jobs.template_rules import fill_template
from apps.teams.models import ServiceAccount
from apps.teams.permissions import actor_for_token
from apps.teams.services import token_create
from tests.conftest import _user, actor_of
from worker import doors
from worker.providers.errors import AccessDenied

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "reference", ["file:token_peppers", "file:secret_key", "file:database_url", "env:QD_SECRET_KEY"]
)
def test_no_cluster_may_name_the_portals_own_secrets(operator: Any, reference: str) -> None:
    with pytest.raises(InvalidInput, match="own secrets"):
        cluster_create(
            actor=actor_of(operator),
            name="thief",
            api_url="http://127.0.0.1:9",
            user_name="x",
            token_ref=reference,
            working_root="/x",
        )
    with pytest.raises(AccessDenied):
        doors.secret(reference)


def test_a_cluster_with_live_jobs_is_not_deleted(job: Any, operator: Any) -> None:
    with pytest.raises(ClusterInUse, match="1 job"):
        cluster_delete(actor=actor_of(operator), cluster=job.cluster, expected_version=job.cluster.version)


def test_a_token_hands_on_no_more_than_it_has(team: Any) -> None:
    lead = _user("lead")
    lead.memberships.create(team=team, role="lead")
    robot = ServiceAccount.objects.create(team=team, name="robot")
    narrow, _bearer = token_create(actor=actor_of(lead), label="n", scopes=["jobs.view"], days=1)
    with pytest.raises(Forbidden, match="may not make tokens"):
        token_create(actor=actor_for_token(narrow), label="child", scopes=["jobs.view"], days=300)
    maker, _bearer = token_create(actor=actor_of(lead), label="m", scopes=["tokens.manage", "jobs.view"], days=1)
    with pytest.raises(Forbidden, match="jobs.submit"):
        token_create(actor=actor_for_token(maker), label="x", scopes=["jobs.submit"], days=1, service_account=robot)


def test_a_terminated_machine_that_slurm_still_lists_does_not_come_back(cluster: Any) -> None:
    from apps.clusters.models import Fleet

    fleet = Fleet.objects.create(
        cluster=cluster, name="f", instance_type="p5.48xlarge", nodes=1, subnet_id="s", image_id="a", phase="DELETED"
    )
    Node.objects.create(cluster=cluster, fleet=fleet, name="ip-10-0-0-9", phase="GONE")
    seen = SeenNode("ip-10-0-0-9", "IDLE", (), "h100", 8, 0, 192, 1, "", ("gpu",))
    cluster_nodes_observe(cluster, [seen])
    assert not Node.objects.filter(name="ip-10-0-0-9").exclude(phase="GONE").exists()


def test_a_hold_on_a_mixed_cluster_covers_the_dearest_node(team: Any, owner: Any, cluster: Any) -> None:
    from decimal import Decimal

    from apps.jobs.services import JobSpec

    Node.objects.create(
        cluster=cluster,
        name="a-1",
        instance_type="p4d.24xlarge",
        gpu_type="a100",
        gpus=8,
        phase="READY",
        partitions=["gpu"],
    )
    spec = JobSpec(name="any", script="true", nodes=1, gpus_per_node=8, time_limit_min=60)
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
    assert preview.usd_per_gpu_hour == Decimal("6.88")


def test_a_value_that_looks_like_a_parameter_stays_text() -> None:
    import shlex

    parameters = [{"name": "a", "type": "text"}, {"name": "b", "type": "text"}]
    filled, problems = fill_template("run {{ a }} {{ b }}", parameters, {"a": "{{ b }}", "b": "; touch /tmp/x;"})
    assert problems == []
    assert shlex.split(filled) == ["run", "{{ b }}", "; touch /tmp/x;"]


def test_a_drain_that_the_scheduler_forgot_is_asked_for_again(cluster: Any, operator: Any) -> None:
    from apps.clusters.services import node_drain
    from apps.intents.models import Intent

    node = Node.objects.get(cluster=cluster, name="p5-1")
    node_drain(actor=actor_of(operator), node=node, reason="XID 79")
    drained = SeenNode("p5-1", "IDLE", ("DRAIN",), "h100", 8, 0, 192, 2_000_000, "XID 79", ("gpu",))
    others = [SeenNode(f"p5-{i}", "IDLE", (), "h100", 8, 0, 192, 2_000_000, "", ("gpu",)) for i in (2, 3, 4)]
    cluster_nodes_observe(cluster, [drained, *others])
    Intent.objects.all().delete()
    cluster_nodes_observe(cluster, [SeenNode("p5-1", "IDLE", (), "h100", 8, 0, 192, 2_000_000, "", ("gpu",)), *others])
    assert Intent.objects.filter(kind="node.drain", key=node.uid).exists()
