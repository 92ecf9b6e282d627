"""Rows of a Kubernetes cluster for the demo: nodes, teams' places and shares, Kueue's queues with one that drifted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.demo_rows import _Seed

GPU = "nvidia.com/gpu"
FLAVOR = "p5.48xlarge"


def demo_kube_teams(seed: _Seed) -> None:
    """Add it to the demo site."""
    cluster = _cluster(seed)
    _nodes(cluster)
    _teams(seed, cluster)
    _kueue(cluster)
    seed.rows.clusters["babbage"] = cluster


def _cluster(seed: _Seed) -> Any:
    from apps.clusters.kube_services import kubernetes_connect
    from apps.clusters.models import Cluster
    from apps.core import clock

    with seed.ago(60 * 24 * 9):
        cluster = kubernetes_connect(
            actor=seed.actor("operator"),
            name="babbage",
            auth="kubeconfig",
            kubeconfig_ref="file:babbage-kubeconfig",
            scheduler="kueue",
            default_image="registry.example/research/train:2026.11",
            mounts=[
                {"claim": "fsx", "path": "/fsx"},
                {"claim": "datasets", "path": "/data", "sub_path": "public", "read_only": True},
            ],
            namespace_prefix="ml-",
            topology_level="topology.k8s.aws/network-node-layer-2",
            priority_classes=["high", "normal", "low"],
            exporter_url="http://{node}:9400/metrics",
        )
    now = clock.now()
    Cluster.objects.filter(pk=cluster.pk).update(
        phase="READY",
        phase_since=now - timedelta(days=9),
        limits_mode="watch",
        observed_version="v1.34.2",
        observed_api_version="v1",
        observed_partitions=[
            {"name": "nlp", "max_time_min": None, "nodes": 4},
            {"name": "vision", "max_time_min": None, "nodes": 4},
        ],
        queue_read_at=now,
        nodes_read_at=now,
        queue_reading={"period_s": 5.0, "read_s": 0.01, "bytes": 0, "calls": 0},
        nodes_reading={"period_s": 10.0, "read_s": 0.01, "bytes": 0, "calls": 0},
    )
    cluster.refresh_from_db()
    return cluster


def _nodes(cluster: Any) -> None:
    from apps.clusters.models import Node
    from apps.core import clock

    now = clock.now()
    for i in range(4):
        node = Node.objects.create(
            cluster=cluster,
            name=f"ip-10-2-0-{11 + i}.ec2.internal",
            provider_id=f"i-0{0x2F00 + i:016x}",
            instance_type=FLAVOR,
            gpu_type="h100",
            gpus=8,
            gpus_used=(8, 8, 4, 0)[i],
            cpus=192,
            memory_mib=2_000_000,
            phase="DRAINING" if i == 1 else "READY",
            phase_since=now - timedelta(hours=30 + i),
            observed_at=now,
            observed_state="Ready" if i != 1 else "Ready,SchedulingDisabled",
            partitions=["p5"],
            private_ip=f"10.2.0.{11 + i}",
            zone_id="use1-az4",
            labels={
                "node.kubernetes.io/instance-type": FLAVOR,
                "topology.k8s.aws/network-node-layer-2": "nn-2a",
                "eks.amazonaws.com/nodegroup": "p5",
            },
        )
        if i == 1:
            Node.objects.filter(pk=node.pk).update(
                drain_requested_at=now - timedelta(minutes=6),
                drain_reason="NVLink errors climb, moved before it fails",
                evict_requested_at=now - timedelta(minutes=6),
                evict_grace_s=300,
            )


def _teams(seed: _Seed, cluster: Any) -> None:
    from apps.clusters.kube_services import team_namespace_put, team_share_put

    actor, teams = seed.actor("operator"), seed.rows.teams
    team_namespace_put(actor=actor, cluster=cluster, team=teams["nlp"], namespace="ml-nlp")
    team_namespace_put(
        actor=actor, cluster=cluster, team=teams["vision"], namespace="vision-prod", queue="vision-prod-queue"
    )
    team_share_put(actor=actor, cluster=cluster, team=teams["nlp"], instance_type=FLAVOR, gpus=16, borrowing_gpus=16)
    team_share_put(actor=actor, cluster=cluster, team=teams["vision"], instance_type=FLAVOR, gpus=24, lending_gpus=8)


def _kueue(cluster: Any) -> None:
    from apps.clusters.kube_models import KubernetesSettings
    from apps.core import clock
    from apps.core.said import said

    now = clock.now()

    def flavor(nominal: int, used: int, borrowed: int, borrowing: int | None, lending: int | None) -> dict[str, Any]:
        amounts = {"nominal": nominal, "used": used, "borrowed": borrowed, "borrowing": borrowing, "lending": lending}
        return {"flavor": FLAVOR, "resource": GPU, **amounts}

    queues = [
        {
            "name": "nlp",
            "cohort": "quarterdeck",
            "team": "nlp",
            "is_ours": True,
            "is_active": True,
            "pending": 2,
            "admitted": 3,
            "weight": "1",
            "flavors": [flavor(12, 12, 4, 16, None)],
        },
        {
            "name": "hyperpod-ns-vision-clusterqueue",
            "cohort": "hyperpod-ns",
            "team": "",
            "is_ours": False,
            "is_active": True,
            "pending": 0,
            "admitted": 1,
            "weight": "50",
            "flavors": [flavor(16, 4, 0, 8, 8)],
        },
    ]
    text = "%(kind)s %(name)s: %(field)s is %(found)s; wanted is %(wanted)s."
    facts = {
        "kind": "ClusterQueue",
        "name": "nlp",
        "field": f"spec.resourceGroups[{GPU}].flavors[{FLAVOR}].resources[{GPU}].nominalQuota",
        "found": "12",
        "wanted": "16",
    }
    drift = [{"kind": "changed", "object": "ClusterQueue nlp", "path": facts["field"], "text": said(text, **facts)}]
    KubernetesSettings.objects.filter(cluster=cluster).update(
        observed={
            "version": "v1.34.2",
            "kueue": "v1beta2",
            "kinds": ["batch/v1 Job", "jobset.x-k8s.io/v1alpha2 JobSet"],
        },
        observed_queues=queues,
        queues_read_at=now - timedelta(seconds=20),
        queues_digest="written",
        queues_written_at=now - timedelta(days=1),
        drift=drift,
        drift_since=now - timedelta(minutes=11),
    )
