"""Clusters that AWS keeps, asked for by an operator in a fake account, and a worker that drives them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from apps.clusters.group_models import NodeGroup
from apps.clusters.group_services import group_add, group_delete, group_resize
from apps.clusters.managed_services import cluster_create, cluster_delete
from apps.clusters.models import Cluster
from apps.connections.models import CloudAccount
from apps.core import clock
from apps.intents.models import Intent
from sandbox.aws import AwsServer
from sandbox.aws.options import (
    ACCESS_KEY_ID,
    ACCOUNT_ID,
    IMAGE_ID,
    SECOND_SUBNET_ID,
    SECRET_ACCESS_KEY,
    SECURITY_GROUP_ID,
    SUBNET_ID,
)
from sandbox.aws.parallelcluster import API_PATH
from tests.chaos import Plan, visit
from tests.cluster_site import PROFILE, ROLE, TYPE
from tests.conftest import actor_of

KINDS = ("cluster.reconcile", "group.reconcile", "node.act")
KEYS = f'{{"access_key_id": "{ACCESS_KEY_ID}", "secret_access_key": "{SECRET_ACCESS_KEY}"}}'
EKS_ARN = f"arn:aws:eks:us-east-2:{ACCOUNT_ID}:cluster/lab"
LIFECYCLE = {"lifecycle_s3": "s3://sagemaker-lab/scripts/", "on_create": "on_create.sh", "deep_checks": False}
PLACE = {"subnet_ids": [SUBNET_ID], "security_group_ids": [SECURITY_GROUP_ID]}

SETTINGS: dict[str, dict[str, Any]] = {
    "pcs": {**PLACE, "version": "25.05", "size": "SMALL", "idle_s": 600},
    "eks": {
        "version": "1.34",
        "role_arn": ROLE,
        "subnet_ids": [SUBNET_ID, SECOND_SUBNET_ID],
        "security_group_ids": [SECURITY_GROUP_ID],
        "admin_arns": [f"arn:aws:iam::{ACCOUNT_ID}:role/admins"],
        "addons": ["vpc-cni", "eks-pod-identity-agent"],
    },
    "hyperpod-slurm": {**PLACE, "recovers": True},
    "hyperpod-eks": {**PLACE, "recovers": True, "eks_cluster_arn": EKS_ARN},
}
GROUPS: dict[str, list[dict[str, Any]]] = {
    "pcs": [
        {
            **PLACE,
            "name": "p5en",
            "instance_type": TYPE,
            "nodes": 4,
            "min_nodes": 2,
            "image_id": IMAGE_ID,
            "role_arn": PROFILE,
            "queue": "train",
        }
    ],
    "eks": [
        {**PLACE, "name": "p5en", "instance_type": TYPE, "nodes": 2, "role_arn": ROLE, "settings": {"repairs": True}}
    ],
    "hyperpod-slurm": [
        {
            "name": "head",
            "instance_type": "m5.2xlarge",
            "nodes": 1,
            "role_arn": ROLE,
            "settings": {**LIFECYCLE, "node_type": "Controller"},
        },
        {
            "name": "p5en",
            "instance_type": TYPE,
            "nodes": 2,
            "role_arn": ROLE,
            "queue": "train",
            "settings": {**LIFECYCLE, "node_type": "Compute"},
        },
    ],
    "hyperpod-eks": [
        {"name": "p5en", "instance_type": TYPE, "nodes": 2, "role_arn": ROLE, "settings": LIFECYCLE},
    ],
}


PCLUSTER = f"""
Region: us-east-2
Image: {{Os: ubuntu2204}}
HeadNode:
  InstanceType: m7i.4xlarge
  Networking: {{SubnetId: {SUBNET_ID}}}
Scheduling:
  Scheduler: slurm
  SlurmQueues:
    - Name: train
      Networking: {{SubnetIds: [{SUBNET_ID}]}}
      ComputeResources:
        - {{Name: p5en, InstanceType: p5en.48xlarge, MinCount: 2, MaxCount: 8}}
"""


def account(server: AwsServer) -> CloudAccount:
    """The fake account, connected."""
    return CloudAccount.objects.create(
        name="sandbox",
        region=server.options.region,
        endpoint_url=server.url,
        credentials_ref="env:TEST_AWS",
        phase="CONNECTED",
        observed_account_id=ACCOUNT_ID,
    )


def make(operator: Any, where: CloudAccount, kind: str, *, groups: Any = None, **reach: str) -> Cluster:
    """A cluster of a kind with its usual groups."""
    settings = SETTINGS.get(kind) or {"config": PCLUSTER, "pcluster_api_url": where.endpoint_url + API_PATH}
    return cluster_create(
        actor=actor_of(operator),
        account=where,
        kind=kind,
        name="lab",
        settings=settings,
        groups=GROUPS.get(kind, []) if groups is None else groups,
        **reach,
    )


def drive(work: Any, plan: Plan, done: Callable[[], bool], seconds: float = 60.0, kinds: Any = KINDS) -> None:
    """Visits, due at once, until it is done."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for kind in kinds:
            visit(work, kind, plan, most=6)
        if done():
            return
        time.sleep(0.02)
    told = [(c.kind, c.phase, str(c.message)) for c in Cluster.objects.all()]
    told += [(g.name, g.phase, str(g.message)) for g in NodeGroup.objects.all()]
    errors = list(Intent.objects.exclude(last_error="").values_list("kind", "last_error"))
    raise AssertionError(f"it never came: {told} {errors}")


def phase_of(row: Any) -> str:
    """The phase as stored."""
    row.refresh_from_db()
    return str(row.phase)


def to_phase(work: Any, plan: Plan, row: Any, phase: str) -> None:
    """Drive until a cluster or group is in this phase."""
    drive(work, plan, lambda: phase_of(row) == phase)


def all_settled(cluster: Cluster) -> bool:
    """Ready, with every group active."""
    cluster.refresh_from_db()
    groups = NodeGroup.objects.filter(cluster=cluster).exclude(phase="DELETED")
    return cluster.phase == "READY" and all(g.phase == "ACTIVE" for g in groups)


def group_of(cluster: Cluster, name: str = "p5en") -> NodeGroup:
    """A live group by its name."""
    rows = NodeGroup.objects.select_related("cluster", "cluster__account").exclude(phase="DELETED")
    return rows.get(cluster=cluster, name=name)


def resize(operator: Any, cluster: Cluster, nodes: int, name: str = "p5en") -> None:
    """Ask for another number of nodes."""
    row = group_of(cluster, name)
    group_resize(actor=actor_of(operator), group=row, nodes=nodes, expected_version=row.version)


def add(operator: Any, cluster: Cluster, **changes: Any) -> NodeGroup:
    """Another group like the last of its kind."""
    asked = {**GROUPS[cluster.kind][-1], "name": "more", "queue": "more" if cluster.kind == "pcs" else "", **changes}
    return group_add(actor=actor_of(operator), cluster=Cluster.objects.get(pk=cluster.pk), **asked)


def drop(operator: Any, group: NodeGroup) -> None:
    """Ask for a group's deletion."""
    row = NodeGroup.objects.select_related("cluster", "cluster__account").get(pk=group.pk)
    group_delete(actor=actor_of(operator), group=row, expected_version=row.version)


def remove(operator: Any, cluster: Cluster) -> None:
    """Ask for the cluster's deletion."""
    cluster.refresh_from_db()
    cluster_delete(actor=actor_of(operator), cluster=cluster, expected_version=cluster.version)


def ready_at_once() -> None:
    """All intents are due now."""
    Intent.objects.update(due_at=clock.now())


def counts(server: AwsServer) -> dict[str, int]:
    """What exists and is not zero, but for reservations that are paid anyway."""
    return {k: n for k, n in server.census().items() if n and k not in ("capacity_reservations",)}
