"""Rows of clusters that AWS keeps, for the demo: a PCS, an EKS, a HyperPod and a ParallelCluster, one in the making."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from tests.demo_rows import _Seed

ROLE = "arn:aws:iam::123456789012:role/quarterdeck-nodes"
PROFILE = "arn:aws:iam::123456789012:instance-profile/AWSPCS-nodes"
CONFIG = """Region: us-east-1
Image:
  Os: ubuntu2204
HeadNode:
  InstanceType: m5.2xlarge
  Networking:
    SubnetId: subnet-0a1b2c3d
  Ssh:
    KeyName: hpc
Scheduling:
  Scheduler: slurm
  SlurmQueues:
    - Name: train
      CapacityType: ONDEMAND
      Networking:
        SubnetIds:
          - subnet-0a1b2c3d
      ComputeResources:
        - Name: p5
          InstanceType: p5.48xlarge
          MinCount: 2
          MaxCount: 8
          Efa:
            Enabled: true
"""


def demo_clusters(seed: _Seed) -> None:
    """Add them to the demo site."""
    _pcs(seed)
    _eks(seed)
    _hyperpod(seed)
    _parallelcluster(seed)
    _failed(seed)


def _account() -> Any:
    from apps.connections.models import CloudAccount

    return CloudAccount.objects.get(name="research")


def _make(seed: _Seed, kind: str, name: str, age_h: float, settings: dict[str, Any], groups: list[Any]) -> Any:
    from apps.clusters.managed_services import cluster_create

    with seed.ago(age_h * 60):
        return cluster_create(
            actor=seed.actor("operator"),
            account=_account(),
            kind=kind,
            name=name,
            settings=settings,
            groups=groups,
        )


def _ready(cluster: Any, age_h: float, **columns: Any) -> None:
    """All steps done, and what AWS says of it."""
    from apps.clusters.group_models import ClusterStep
    from apps.clusters.models import Cluster
    from apps.core import clock

    at = clock.now() - timedelta(hours=age_h)
    for step in ClusterStep.objects.filter(cluster=cluster):
        ended = at + timedelta(seconds=step.expected_s)
        ClusterStep.objects.filter(pk=step.pk).update(state="DONE", started_at=at, ended_at=ended)
        at = ended
    Cluster.objects.filter(pk=cluster.pk).update(
        phase="READY", phase_since=at, observed_at=clock.now(), observed_generation=cluster.generation, **columns
    )
    cluster.refresh_from_db()


def _group(cluster: Any, name: str, phase: str, seen: int, **columns: Any) -> Any:
    from apps.clusters.group_models import NodeGroup
    from apps.core import clock

    group = NodeGroup.objects.get(cluster=cluster, name=name)
    NodeGroup.objects.filter(pk=group.pk).update(
        phase=phase,
        phase_since=clock.now() - timedelta(hours=5),
        observed_at=clock.now(),
        observed_nodes=seen,
        target_nodes=columns.pop("target_nodes", group.nodes),
        observed_generation=group.generation,
        **columns,
    )
    group.refresh_from_db()
    return group


def _nodes(group: Any, names: list[str], first: int, gpus: int = 8, phase: str = "READY", **columns: Any) -> list[Any]:
    from apps.clusters.models import Node
    from apps.core import clock

    return [
        Node.objects.create(
            cluster=group.cluster,
            group=group,
            name=name,
            provider_id=f"i-0{first + i:016x}",
            instance_type=group.instance_type,
            gpu_type="h100" if gpus else "",
            gpus=gpus,
            phase=phase,
            phase_since=clock.now() - timedelta(hours=3 + i),
            observed_at=clock.now(),
            private_ip=f"10.0.{first % 200}.{10 + i}",
            zone_id="use1-az4",
            **columns,
        )
        for i, name in enumerate(names)
    ]


def _pcs(seed: _Seed) -> None:
    from apps.core.said import said

    settings = {
        "version": "25.05",
        "size": "MEDIUM",
        "subnet_ids": ["subnet-0a1b2c3d"],
        "security_group_ids": ["sg-0a1b2c3d"],
        "idle_s": 600,
    }

    def group(name: str, kind: str, nodes: int, **more: Any) -> dict[str, Any]:
        return {
            "name": name,
            "instance_type": kind,
            "nodes": nodes,
            "subnet_ids": ["subnet-0a1b2c3d"],
            "security_group_ids": ["sg-0a1b2c3d"],
            "image_id": "ami-0a1b2c3d4e5f60718",
            "role_arn": PROFILE,
            "queue": name,
            "team": seed.rows.teams["nlp"],
            **more,
        }

    cluster = _make(
        seed,
        "pcs",
        "shannon",
        52,
        settings,
        [group("train", "p5.48xlarge", 16, min_nodes=2), group("eval", "g6e.48xlarge", 8)],
    )
    _ready(
        cluster,
        52,
        provider_id="pcs_0a1b2c3d4e",
        name_at_provider="shannon",
        observed_version="25.05",
        observed_api_url="http://10.0.12.44:6820",
        provider_facts={
            "size": "MEDIUM",
            "endpoints": {
                "SLURMCTLD": "10.0.12.44:6817",
                "SLURMDBD": "10.0.12.44:6819",
                "SLURMRESTD": "10.0.12.44:6820",
            },
            "key_arn": "arn:aws:secretsmanager:us-east-1:123456789012:secret:pcs!slurm-secret-pcs_0a1b2c3d4e-Ab12Cd",
            "jwt_key_arn": "arn:aws:secretsmanager:us-east-1:123456789012:secret:pcs!jwt-pcs_0a1b2c3d4e-Ef34Gh",
            "subnet_ids": ["subnet-0a1b2c3d"],
            "security_group_ids": ["sg-0a1b2c3d"],
        },
    )
    train = _group(cluster, "train", "ACTIVE", 4, provider_id="pcs_1a2b3c4d5e", launch_template_id="lt-0a1b2c3d4e")
    _nodes(train, [f"train-{i}" for i in range(1, 5)], 300, gpus_used=8)
    evaluation = _group(
        cluster,
        "eval",
        "DEGRADED",
        1,
        provider_id="pcs_2a2b3c4d5e",
        message=said("no machines now (%(why)s); tried again", why="InsufficientInstanceCapacity"),
        health=[
            {
                "code": "InsufficientInstanceCapacity",
                "message": "We currently do not have sufficient g6e.48xlarge capacity in the Availability Zone you"
                " requested (us-east-1c).",
                "advice": said("EC2 has too few machines now; it is tried again. Other zones or a reservation help."),
            }
        ],
    )
    _nodes(evaluation, ["eval-1"], 340)
    seed.rows.clusters["shannon"] = cluster


def _eks(seed: _Seed) -> None:
    from apps.clusters.group_models import ClusterStep, NodeGroup
    from apps.clusters.models import Cluster
    from apps.core import clock
    from apps.core.said import said

    settings = {
        "version": "1.34",
        "role_arn": "arn:aws:iam::123456789012:role/eks-control-plane",
        "subnet_ids": ["subnet-0a1b2c3d", "subnet-0a1b2c3e"],
        "security_group_ids": [],
        "admin_arns": ["arn:aws:iam::123456789012:role/platform"],
        "addons": ["vpc-cni", "kube-proxy", "coredns", "eks-pod-identity-agent", "eks-node-monitoring-agent"],
    }
    group = {
        "name": "serve",
        "instance_type": "p5.4xlarge",
        "nodes": 6,
        "subnet_ids": ["subnet-0a1b2c3d"],
        "security_group_ids": ["sg-0a1b2c3d"],
        "role_arn": ROLE,
        "settings": {"repairs": True},
    }
    cluster = _make(seed, "eks", "hamilton", 0.2, settings, [group])
    now = clock.now()
    for name, state, begun, ended, message in (
        ("CONTROL", "DONE", 11.5, 2.3, ""),
        ("ACCESS", "DONE", 2.3, 2.2, ""),
        ("ADDONS", "RUNNING", 2.2, None, said("waiting for %(what)s", what="coredns, eks-node-monitoring-agent")),
    ):
        ClusterStep.objects.filter(cluster=cluster, name=name).update(
            state=state,
            started_at=now - timedelta(minutes=begun),
            ended_at=now - timedelta(minutes=ended) if ended is not None else None,
            message=message,
        )
    Cluster.objects.filter(pk=cluster.pk).update(
        phase="CREATING",
        phase_since=now - timedelta(minutes=11.5),
        observed_at=now,
        provider_id="arn:aws:eks:us-east-1:123456789012:cluster/hamilton",
        name_at_provider="hamilton",
        observed_version="1.34",
        provider_facts={
            "endpoint": "https://0A1B2C3D4E5F.gr7.us-east-1.eks.amazonaws.com",
            "role_arn": settings["role_arn"],
            "security_group_id": "sg-0c1d2e3f",
            "subnet_ids": settings["subnet_ids"],
            "authentication": "API",
        },
    )
    NodeGroup.objects.filter(cluster=cluster).update(message=said("waiting until the cluster is made"))
    cluster.refresh_from_db()
    seed.rows.clusters["hamilton"] = cluster


def _hyperpod(seed: _Seed) -> None:
    from apps.clusters.group_models import ClusterEvent, NodeAction
    from apps.clusters.group_services import nodes_ask
    from apps.core import clock
    from apps.core.said import said

    settings = {
        "subnet_ids": ["subnet-0a1b2c3d"],
        "security_group_ids": ["sg-0a1b2c3d"],
        "recovers": True,
        "eks_cluster_arn": "arn:aws:eks:us-east-1:123456789012:cluster/pods",
    }
    scripts = {"lifecycle_s3": "s3://sagemaker-research/lifecycle/", "on_create": "on_create.sh", "deep_checks": True}
    group = {
        "name": "pretrain",
        "instance_type": "p5.48xlarge",
        "nodes": 8,
        "role_arn": ROLE,
        "settings": scripts,
        "team": seed.rows.teams["nlp"],
    }
    cluster = _make(seed, "hyperpod-eks", "lovelace", 30, settings, [group])
    _ready(
        cluster,
        30,
        provider_id="arn:aws:sagemaker:us-east-1:123456789012:cluster/a1b2c3d4e5f6",
        name_at_provider="lovelace-01jdk3v5q8",
        provider_facts={
            "orchestrator": "EKS",
            "eks_cluster_arn": settings["eks_cluster_arn"],
            "is_continuous": True,
            "recovery": "Automatic",
            "subnet_ids": settings["subnet_ids"],
            "security_group_ids": settings["security_group_ids"],
        },
    )
    pretrain = _group(
        cluster,
        "pretrain",
        "DEGRADED",
        7,
        target_nodes=8,
        health=[
            {
                "code": "LifecycleScriptFailed",
                "message": "Lifecycle script failed on i-0000000000000197: exit code 1",
                "advice": said("Look it up in AWS's console; the group goes on with what it has."),
            }
        ],
    )
    names = [f"hyperpod-i-0000000000000{400 + i:03x}" for i in range(7)]
    nodes = _nodes(pretrain, names[:6], 400, gpus_used=8)
    nodes += _nodes(pretrain, names[6:], 406, phase="DOWN", observed_reason="GPU 3: XID 79, fell off the bus")
    operator = seed.actor("operator")
    with seed.ago(190):
        nodes_ask(actor=operator, cluster=cluster, nodes=nodes[:2], verb="reboot", reason="ECC pending, drained")
    for node, phase, message in (
        (nodes[0], "TAKEN", ""),
        (nodes[1], "REFUSED", "InvalidInstanceStatus: the node is being replaced already"),
    ):
        NodeAction.objects.filter(node=node).update(
            phase=phase, message=message, ended_at=clock.now() - timedelta(minutes=189)
        )
    with seed.ago(1):
        nodes_ask(actor=operator, cluster=cluster, nodes=[nodes[6]], verb="replace", reason="XID 79 twice this week")
    for i, (minutes, level, text, reason, node) in enumerate(
        (
            (31, "Error", "Lifecycle configuration failed", "LifecycleScriptFailed: exit code 1", "i-0000000000000197"),
            (44, "Warn", "Node lost orchestration-ready status", "", nodes[6].provider_id),
            (188, "Info", "Node reboot finished", "", nodes[0].provider_id),
            (1770, "Info", "Instance group pretrain reached 8 nodes", "", ""),
        )
    ):
        ClusterEvent.objects.create(
            cluster=cluster,
            provider_id=f"evt-{i}",
            at=clock.now() - timedelta(minutes=minutes),
            level=level,
            text=text,
            reason=reason,
            group_name="pretrain",
            node_id=node,
        )
    seed.rows.clusters["lovelace"] = cluster


def _parallelcluster(seed: _Seed) -> None:
    from apps.clusters.group_models import NodeGroup
    from apps.clusters.managed_services import cluster_adopt
    from apps.clusters.models import Cluster
    from apps.core import clock

    with seed.ago(60 * 20):
        cluster = cluster_adopt(
            actor=seed.actor("operator"),
            account=_account(),
            kind="parallelcluster",
            name="hpc-west",
            name_at_provider="hpc-prod",
            api_url="http://hpc-head.internal:6820",
            user_name="portal",
            token_ref="file:slurm-hpc",
            working_root="/shared/quarterdeck",
        )
    _ready(
        cluster,
        20,
        # Its own user is not an operator of Slurm yet.
        operator_missing_at=clock.now(),
        provider_id="arn:aws:cloudformation:us-east-1:123456789012:stack/hpc-prod/0a1b2c3d",
        observed_version="3.13.2",
        provider_facts={
            "scheduler": "slurm",
            "head_node": {
                "provider_id": "i-00000000000000500",
                "instance_type": "m5.2xlarge",
                "private_ip": "10.0.40.12",
                "state": "running",
            },
            "config": CONFIG,
            "config_problem": "",
        },
    )
    Cluster.objects.filter(pk=cluster.pk).update(observed_partitions=[{"name": "train", "max_time_min": 2880}])
    group = NodeGroup.objects.create(
        cluster=cluster,
        name="train/p5",
        instance_type="p5.48xlarge",
        nodes=8,
        min_nodes=2,
        queue="train",
        is_adopted=True,
        usd_per_hour=Decimal("55.04"),
        phase="ACTIVE",
        observed_nodes=2,
        target_nodes=8,
        observed_at=clock.now(),
        subnet_ids=["subnet-0a1b2c3d"],
    )
    _nodes(group, ["train-st-p5-1", "train-st-p5-2"], 510)
    cluster.refresh_from_db()
    seed.rows.clusters["hpc-west"] = cluster


def _failed(seed: _Seed) -> None:
    from apps.clusters.group_models import ClusterStep
    from apps.clusters.models import Cluster
    from apps.core import clock

    settings = {"subnet_ids": ["subnet-0a1b2c3d"], "security_group_ids": ["sg-0a1b2c3d"], "recovers": True}
    scripts = {"lifecycle_s3": "s3://sagemaker-research/lifecycle/", "on_create": "on_create.sh"}

    def group(name: str, kind: str, nodes: int, node_type: str) -> dict[str, Any]:
        return {
            "name": name,
            "instance_type": kind,
            "nodes": nodes,
            "role_arn": ROLE,
            "settings": {**scripts, "node_type": node_type},
        }

    cluster = _make(
        seed,
        "hyperpod-slurm",
        "noether",
        1.2,
        settings,
        [group("controller", "m5.xlarge", 1, "Controller"), group("train", "p5.48xlarge", 4, "Compute")],
    )
    now = clock.now()
    why = "aws LifecycleScriptFailed: the script of group controller ended with exit code 1"
    ClusterStep.objects.filter(cluster=cluster, name="CONTROL").update(
        state="FAILED", started_at=now - timedelta(minutes=70), ended_at=now - timedelta(minutes=48), message=why
    )
    Cluster.objects.filter(pk=cluster.pk).update(
        phase="FAILED",
        phase_since=now - timedelta(minutes=48),
        observed_at=now,
        observed_generation=1,
        name_at_provider="noether-01jdk9w2x4",
        message=why,
    )
    cluster.refresh_from_db()
    seed.rows.clusters["noether"] = cluster
