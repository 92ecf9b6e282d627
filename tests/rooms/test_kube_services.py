"""Setting up Kubernetes: settings, namespaces, shares; what is refused, and what is written down."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from apps.audit.models import Entry
from apps.clusters import kube_services as services
from apps.clusters.kube_models import KubernetesSettings, TeamNamespace, TeamShare
from apps.clusters.kube_selectors import place_of, team_in, team_places, types_of
from apps.clusters.models import Cluster, Node
from apps.clusters.services import ClusterInUse
from apps.core.errors import Forbidden, InvalidInput, StaleVersion, TransitionConflict
from apps.intents.models import Intent
from apps.teams.models import Team
from tests.conftest import actor_of

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


@pytest.fixture
def pods(operator: Any) -> Cluster:
    return services.kubernetes_connect(
        actor=actor_of(operator), name="pods", auth="kubeconfig", kubeconfig_ref="file:kubeconfig"
    )


def test_connecting_writes_the_row_its_settings_the_audit_and_the_wish(pods: Cluster) -> None:
    assert (pods.kind, pods.takes_jobs, pods.is_managed) == ("kubernetes", True, False)
    assert Intent.objects.filter(kind="cluster.connect", key=pods.uid).exists()
    entry = Entry.objects.get(verb="cluster.create")
    assert entry.after["kubeconfig_ref"] == "file:kubeconfig"


@pytest.mark.parametrize(
    ("values", "pointer"),
    [
        ({"auth": "eks"}, "/auth"),
        ({"kubeconfig_ref": ""}, "/kubeconfig_ref"),
        ({"kubeconfig_ref": "apiVersion: v1\nkind: Config"}, "/kubeconfig_ref"),
        ({"kubeconfig_ref": "file:secret_key"}, "/kubeconfig_ref"),
        ({"mounts": [{"claim": "Fsx!", "path": "/fsx"}]}, "/mounts/0"),
        ({"mounts": [{"claim": "fsx", "path": "/fsx"}, {"claim": "b", "path": "/fsx"}]}, "/mounts/1"),
        ({"mounts": [{"claim": "fsx", "path": "/../etc"}]}, "/mounts/0"),
        ({"mounts": [{"claim": "fsx", "path": "/fsx", "sub_path": "../x"}]}, "/mounts/0"),
        ({"default_image": "a b"}, "/default_image"),
        ({"namespace_prefix": "kube-"}, "/namespace_prefix"),
        ({"scheduler": "slurm"}, "/scheduler"),
        ({"default_kind": "manifest"}, "/default_kind"),
        ({"allowances": ["root"]}, "/allowances"),
        ({"host_paths": ["etc"]}, "/host_paths"),
        ({"priority_classes": ["High!"]}, "/priority_classes"),
    ],
)
def test_settings_that_can_never_work_are_refused_at_their_field(
    operator: Any, values: dict[str, Any], pointer: str
) -> None:
    given = {"auth": "kubeconfig", "kubeconfig_ref": "file:kubeconfig", **values}
    with pytest.raises(InvalidInput) as refused:
        services.kubernetes_connect(actor=actor_of(operator), name="pods", **given)
    assert pointer in {problem.pointer for problem in refused.value.problems}
    assert not Cluster.objects.exists()


def test_members_set_up_nothing(member: Any, pods: Cluster, team: Any) -> None:
    actor = actor_of(member)
    for call in (
        lambda: services.kubernetes_connect(actor=actor, name="x", auth="in-cluster"),
        lambda: services.kubernetes_settings_put(actor=actor, cluster=pods, expected_version=1, context="b"),
        lambda: services.team_namespace_put(actor=actor, cluster=pods, team=team, namespace="x"),
        lambda: services.team_share_put(actor=actor, cluster=pods, team=team, instance_type="p5.48xlarge", gpus=8),
        lambda: services.queues_compare(actor=actor, cluster=pods),
    ):
        with pytest.raises(Forbidden):
            call()


def test_two_who_change_the_settings_at_once(operator: Any, pods: Cluster) -> None:
    actor = actor_of(operator)
    services.kubernetes_settings_put(actor=actor, cluster=pods, expected_version=1, context="a", limits_mode="watch")
    again = Cluster.objects.select_related("kubernetes").get(pk=pods.pk)
    assert (again.kubernetes.context, again.limits_mode) == ("a", "watch")
    with pytest.raises(StaleVersion):
        services.kubernetes_settings_put(actor=actor, cluster=again, expected_version=1, context="b")
    assert KubernetesSettings.objects.get().context == "a"


def test_two_teams_never_share_a_namespace(operator: Any, pods: Cluster, team: Any) -> None:
    actor = actor_of(operator)
    teams = {slug: Team.objects.create(slug=slug, name=slug) for slug in ("ml_a", "ml-a", "kube-system", "vision")}
    places = {slug: place_of(pods, one) for slug, one in teams.items()}
    assert len({place.namespace for place in places.values()}) == 4
    assert len({place.queue for place in places.values()}) == 4
    assert places["ml-a"].namespace == "ml-a"
    assert places["kube-system"].namespace == "team-kube-system"
    assert {slug: team_in(pods, place.namespace) for slug, place in places.items()} == teams
    for namespace in ("vision", "kube-public", "default", "Vision"):
        with pytest.raises(InvalidInput):
            services.team_namespace_put(actor=actor, cluster=pods, team=team, namespace=namespace)
    # A row that was there before the team of that name: the team goes elsewhere.
    TeamNamespace.objects.create(cluster=pods, team=team, namespace="vision")
    assert place_of(pods, teams["vision"]).namespace.startswith("vision-")


def test_the_namespace_stays_while_jobs_of_the_team_live_there(operator: Any, pods: Cluster, job: Any) -> None:
    actor = actor_of(operator)
    row = services.team_namespace_put(actor=actor, cluster=pods, team=job.team, namespace="old", weight=Decimal("2.5"))
    type(job).objects.filter(pk=job.pk).update(cluster=pods)
    with pytest.raises(ClusterInUse):
        services.team_namespace_put(actor=actor, cluster=pods, team=job.team, namespace="new")
    with pytest.raises(ClusterInUse):
        services.team_namespace_remove(actor=actor, row=row)


def test_shares_are_bounded_and_told(operator: Any, pods: Cluster, team: Any) -> None:
    actor = actor_of(operator)
    for values in (
        {"instance_type": "m5.large", "gpus": 1},
        {"instance_type": "p5.48xlarge", "gpus": -1},
        {"instance_type": "p5.48xlarge", "gpus": 8, "lending_gpus": 9},
    ):
        with pytest.raises(InvalidInput):
            services.team_share_put(actor=actor, cluster=pods, team=team, **values)
    services.team_share_put(actor=actor, cluster=pods, team=team, instance_type="p5.48xlarge", gpus=8)
    services.team_share_put(actor=actor, cluster=pods, team=team, instance_type="p5.48xlarge", gpus=16)
    assert TeamShare.objects.get().gpus == 16
    [place] = team_places(pods)
    assert (place.team, place.quota_gpus, [s.gpus for s in place.shares]) == (team, 64, [16])
    assert services.shares_problems([TeamShare.objects.get()], {"p5.48xlarge": 8})
    with pytest.raises(TransitionConflict):
        services.queues_compare(actor=actor, cluster=pods)


def test_a_type_whose_nodes_have_gone_stays_with_none(pods: Cluster) -> None:
    Node.objects.create(cluster=pods, name="n1", instance_type="p5.48xlarge", gpus=8, cpus=192, phase="GONE")
    [size] = types_of(pods)
    assert (size.name, size.nodes, size.gpus, size.all_gpus) == ("p5.48xlarge", 0, 8, 0)


def test_fleets_are_not_launched_for_a_cluster_that_somebody_else_keeps(operator: Any, pods: Cluster) -> None:
    from apps.clusters.fleet_services import fleet_create

    with pytest.raises(TransitionConflict, match="whoever keeps"):
        fleet_create(
            actor=actor_of(operator),
            cluster=pods,
            name="f",
            instance_type="p5.48xlarge",
            nodes=1,
            subnet_id="subnet-0a0000000000000a1",
            security_group_ids=["sg-0a0000000000000a1"],
            image_id="ami-0a0000000000000a1",
        )
