"""Clusters beside the fake AWS: made with EKS, entered by its tokens, with the machines of their groups as nodes."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws import options as o
from sandbox.control.faults import inject
from sandbox.control.stack import Stack
from sandbox.kubernetes.estate import Estate
from sandbox.world import World
from tests.kubernetes_site import until
from worker.providers import values as v
from worker.providers.aws.eks_tokens import eks_token

QUICK = AwsOptions(boot_s=0.1, join_s=0.1, shutdown_s=0.8, cluster_create_s=0.6, cluster_delete_s=0.4)
ROLE = f"arn:aws:iam::{o.ACCOUNT_ID}:role/nodes"
KEYS = v.Credentials(o.ACCESS_KEY_ID, o.SECRET_ACCESS_KEY)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def aws(tmp_path: Path, world: World) -> Iterator[AwsServer]:
    made = AwsServer(world, "127.0.0.1", 0, tmp_path, QUICK)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def estate(tmp_path: Path, world: World, aws: AwsServer) -> Iterator[Estate]:
    made = Estate(world, aws, tmp_path)
    made.start()
    yield made
    made.stop()


def token(name: str, keys: v.Credentials = KEYS) -> str:
    return eks_token(v.CloudAccess(region="us-east-2", credentials=keys), name)


def api(aws: AwsServer, service: str) -> Any:
    return boto3.client(
        service,
        region_name="us-east-2",
        endpoint_url=aws.url,
        aws_access_key_id=o.ACCESS_KEY_ID,
        aws_secret_access_key=o.SECRET_ACCESS_KEY,
    )


def make(aws: AwsServer, name: str = "training") -> dict[str, Any]:
    eks = api(aws, "eks")
    network = {"subnetIds": [o.SUBNET_ID, o.SECOND_SUBNET_ID]}
    eks.create_cluster(
        name=name,
        roleArn=ROLE,
        resourcesVpcConfig=network,
        accessConfig={"authenticationMode": "API"},
    )
    told: dict[str, Any] = until(
        "the cluster is active",
        lambda: (one := eks.describe_cluster(name=name)["cluster"])["status"] == "ACTIVE" and one,
    )
    return told


def enter(told: dict[str, Any], bearer: str, tmp_path: Path) -> client.CoreV1Api:
    settings = client.Configuration()
    ca = tmp_path / "ca.pem"
    ca.write_bytes(base64.b64decode(told["certificateAuthority"]["data"]))
    settings.host, settings.ssl_ca_cert = told["endpoint"], str(ca)
    settings.api_key = {"authorization": f"Bearer {bearer}"}
    return client.CoreV1Api(client.ApiClient(settings))


def refused(core: client.CoreV1Api) -> int:
    with pytest.raises(ApiException) as told:
        core.list_node()
    return int(told.value.status)


def test_an_eks_cluster_answers_with_nodes_and_ends_with_its_processes(
    estate: Estate, aws: AwsServer, world: World, tmp_path: Path
) -> None:
    told = make(aws)
    assert told["endpoint"].startswith("https://127.0.0.1:")
    core = enter(told, token("training"), tmp_path)
    eks = api(aws, "eks")
    eks.create_nodegroup(
        clusterName="training",
        nodegroupName="gpus",
        subnets=[o.SUBNET_ID],
        nodeRole=ROLE,
        instanceTypes=["p5.48xlarge"],
        scalingConfig={"minSize": 0, "desiredSize": 2, "maxSize": 4},
    )
    nodes = until("both nodes are there", lambda: len(found := core.list_node().items) == 2 and found)
    node = nodes[0]
    assert node.metadata.name.startswith("ip-10-0-0-")
    assert node.metadata.name.endswith(".us-east-2.compute.internal")
    labels, given = node.metadata.labels, node.status.allocatable
    assert labels["node.kubernetes.io/instance-type"] == "p5.48xlarge"
    assert labels["eks.amazonaws.com/nodegroup"] == "gpus"
    assert labels["topology.kubernetes.io/zone"] == "us-east-2a"
    assert labels["topology.k8s.aws/network-node-layer-3"].startswith("nn-")
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert (given["nvidia.com/gpu"], given["vpc.amazonaws.com/efa"], given["hugepages-2Mi"]) == ("8", "32", "5120Mi")
    assert (node.status.capacity["cpu"], given["cpu"]) == ("192", "191450m")
    assert node.spec.provider_id == f"aws:///us-east-2a/{labels['quarterdeck.dev/instance-id']}"
    # One is terminated by hand: it falls silent, then it is gone.
    aws.terminate_by_hand([labels["quarterdeck.dev/instance-id"]])
    until("one left", lambda: len(core.list_node().items) == 1)
    eks.delete_nodegroup(clusterName="training", nodegroupName="gpus")
    until("the group is gone", lambda: not eks.list_nodegroups(clusterName="training")["nodegroups"])
    eks.delete_cluster(name="training")
    until("the cluster is gone", lambda: "training" not in estate.clusters)
    until("its state is gone", lambda: not (tmp_path / "kubernetes" / "training").exists())
    assert {node.cluster for node in world.nodes.values()} == {"kube"}


def test_only_who_has_an_entry_comes_in_with_a_token_for_this_cluster(
    estate: Estate, aws: AwsServer, tmp_path: Path
) -> None:
    told = make(aws)
    assert enter(told, token("training"), tmp_path).list_node().items == []
    assert refused(enter(told, token("another"), tmp_path)) == 401
    assert refused(enter(told, token("training", v.Credentials(o.ACCESS_KEY_ID, "wrong")), tmp_path)) == 401
    assert refused(enter(told, token("training", v.Credentials("AKIANOBODY", "x")), tmp_path)) == 401
    assert refused(enter(told, "nonsense", tmp_path)) == 401
    role = f"arn:aws:iam::{o.ACCOUNT_ID}:role/portal"
    given = api(aws, "sts").assume_role(RoleArn=role, RoleSessionName="portal")["Credentials"]
    keys = v.Credentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])
    assert refused(enter(told, token("training", keys), tmp_path)) == 401
    eks = api(aws, "eks")
    eks.create_access_entry(clusterName="training", principalArn=role)
    # It comes in, but nothing is allowed to it until a policy or a role says so.
    assert refused(enter(told, token("training", keys), tmp_path)) == 403
    policy = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
    eks.associate_access_policy(
        clusterName="training", principalArn=role, policyArn=policy, accessScope={"type": "cluster"}
    )
    assert enter(told, token("training", keys), tmp_path).list_node().items == []
    stale = v.Credentials(given["AccessKeyId"], given["SecretAccessKey"], "another session")
    assert refused(enter(told, token("training", stale), tmp_path)) == 401


def test_a_hyperpod_clusters_nodes_join_with_their_health(estate: Estate, aws: AwsServer, tmp_path: Path) -> None:
    told = make(aws)
    core = enter(told, token("training"), tmp_path)
    group = {
        "InstanceGroupName": "workers",
        "InstanceType": "ml.p5.48xlarge",
        "InstanceCount": 1,
        "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-lab/scripts/", "OnCreate": "on_create.sh"},
        "ExecutionRole": ROLE,
    }
    api(aws, "sagemaker").create_cluster(
        ClusterName="pod", InstanceGroups=[group], Orchestrator={"Eks": {"ClusterArn": told["arn"]}}
    )
    node = until("its node joined", lambda: core.list_node().items)[0]
    labels = node.metadata.labels
    assert labels["sagemaker.amazonaws.com/instance-group-name"] == "workers"
    assert labels["sagemaker.amazonaws.com/node-health-status"] == "Schedulable"
    stack = Stack(estate.world, aws, None, None, estate)
    inject(stack, {"kind": "xid", "node": node.metadata.name, "code": 79})
    node = core.read_node(node.metadata.name)
    assert node.metadata.labels["sagemaker.amazonaws.com/node-health-status"] == "UnschedulablePendingReplacement"
    assert node.metadata.labels["sagemaker.amazonaws.com/fault-reasons"] == "Xid79"
    assert node.status.allocatable["nvidia.com/gpu"] == "7"
    assert [one.key for one in node.spec.taints] == ["sagemaker.amazonaws.com/node-health-status"]


def test_clusters_keep_port_and_state_over_a_restart(
    estate: Estate, aws: AwsServer, tmp_path: Path, world: World
) -> None:
    told = make(aws)
    core = enter(told, token("training"), tmp_path)
    core.create_namespace({"metadata": {"name": "vision"}})
    until("its claim is bound", lambda: claim_of(core) == "Bound")
    standing = estate.kubeconfig()
    estate.stop()
    again = Estate(world, aws, tmp_path)
    started = time.monotonic()
    again.start()
    try:
        assert time.monotonic() - started < 5
        assert again.kubeconfig() == standing
        assert core.read_namespace("vision").status.phase == "Active"
        assert standing is not None
        own = client.CoreV1Api(config.new_client_from_config_dict(standing))
        assert sorted(node.metadata.name for node in own.list_node().items) == ["kube-1", "kube-2"]
        kinds = client.ApisApi(own.api_client).get_api_versions().groups
        assert {"kueue.x-k8s.io", "jobset.x-k8s.io", "trainer.kubeflow.org", "kubeflow.org"} <= {g.name for g in kinds}
    finally:
        again.stop()


def claim_of(core: client.CoreV1Api) -> str:
    found = core.list_namespaced_persistent_volume_claim("vision").items
    return found[0].status.phase if found else ""


def test_kueue_can_be_left_out(tmp_path: Path, world: World) -> None:
    made = Estate(world, None, tmp_path, kueue=False)
    made.start()
    try:
        config_of = made.kubeconfig()
        assert config_of is not None
        groups = client.ApisApi(config.new_client_from_config_dict(config_of)).get_api_versions().groups
        assert "kueue.x-k8s.io" not in {group.name for group in groups}
    finally:
        made.stop()
