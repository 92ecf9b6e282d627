"""The contract of clusters that AWS keeps, against the sandbox's PCS and EKS, in their whole lives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sandbox.aws import AwsServer
from sandbox.aws.options import ACCOUNT_ID, SECURITY_GROUP_ID, SUBNET_ID
from sandbox.world import World
from tests import cluster_site as at
from tests.cluster_site import (
    EKS,
    GROUP,
    PCS,
    PROFILE,
    ROLE,
    TYPE,
    active,
    aws,
    begin,
    block,
    eventually,
    gone,
    group,
    in_state,
    nothing_left,
    raises_not_found,
    with_template,
)
from worker.providers import cluster_values as kv
from worker.providers import errors
from worker.providers import values as v
from worker.providers.aws.eks import Eks
from worker.providers.aws.pcs import Pcs

pytestmark = pytest.mark.contract


@pytest.fixture
def server(tmp_path: Any) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, at.OPTIONS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def eks(server: AwsServer) -> Eks:
    return Eks(at.access_of(server))


@pytest.fixture
def pcs(server: AwsServer) -> Pcs:
    return Pcs(at.access_of(server))


# --- PCS


def test_pcs_whole_life(pcs: Pcs, server: AwsServer) -> None:
    first = pcs.cluster_ensure(PCS, "token-of-cluster")
    assert (first.state, first.scheduler_url, first.version) == (kv.CREATING, "", "25.05")
    assert pcs.cluster_ensure(PCS, "token-of-cluster").provider_id == first.provider_id
    assert pcs.prepare(first, PCS.settings, PCS.tags, "KEYS") != ""
    seen = active(pcs, PCS)
    assert seen.scheduler_url.startswith("http://10.0.9.")
    assert pcs.prepare(seen, PCS.settings, PCS.tags, "KEYS") == ""
    assert seen.facts["key_arn"].startswith("arn:aws:secretsmanager:")
    spec = with_template(pcs, seen, replace(GROUP, min_nodes=2))
    made = pcs.group_ensure(seen, spec, "token-of-group")
    assert pcs.group_ensure(seen, spec, "token-of-group").provider_id == made.provider_id
    with pytest.raises(errors.Conflict):
        pcs.queue_ensure(seen, spec, made.provider_id, "token-of-queue-1")
    in_state(pcs, seen, kv.ACTIVE)
    assert pcs.queue_ensure(seen, spec, made.provider_id, "token-of-queue") == ""
    queue = eventually(lambda: pcs.queue_ensure(seen, spec, made.provider_id, "token-of-queue"))
    assert queue.startswith("pcs_")
    members = eventually(lambda: m if pcs.groups(seen) and len(m := pcs.members(seen)) == 2 else None)
    assert {(m.group, m.instance_type) for m in members} == {(made.provider_id, TYPE)}
    pcs.group_resize(seen, replace(spec, nodes=8, min_nodes=3), group(pcs, seen), "token-of-resize")
    pcs.group_resize(seen, replace(spec, nodes=8, min_nodes=3), group(pcs, seen), "token-of-resize")
    assert in_state(pcs, seen, kv.ACTIVE).target_nodes == 8
    eventually(lambda: pcs.groups(seen) and len(pcs.members(seen)) == 3)
    # Queues, then groups, then the cluster.
    with pytest.raises(errors.Conflict, match="queues"):
        pcs.cluster_delete("lab")
    with pytest.raises(errors.Conflict, match="Queue train"):
        pcs.group_delete(seen, made.provider_id)
    pcs.queue_delete(seen, "train", "grp_1")
    eventually(lambda: raises_not_found(lambda: pcs.queue_delete(seen, "train", "grp_1")))
    with pytest.raises(errors.Conflict, match="groups"):
        pcs.cluster_delete("lab")
    pcs.group_delete(seen, made.provider_id)
    eventually(lambda: not pcs.groups(seen))
    with pytest.raises(errors.NotFound):
        pcs.group_delete(seen, made.provider_id)
    pcs.template_delete("grp_1")
    with pytest.raises(errors.NotFound):
        pcs.template_delete("grp_1")
    pcs.cluster_delete("lab")
    assert pcs.cluster("lab").state == kv.DELETING
    eventually(lambda: gone(pcs))
    eventually(lambda: nothing_left(server))
    assert server.census()["secrets"] == 0


def test_pcs_wants_efa_and_fits_its_size(pcs: Pcs, server: AwsServer) -> None:
    seen = active(pcs, PCS)
    spec = with_template(pcs, seen, GROUP)
    data = server.cloud.templates[spec.launch_template_id].data
    assert {i["InterfaceType"] for i in data["NetworkInterfaces"]} == {"interface", "efa"}
    assert not any("SubnetId" in i for i in data["NetworkInterfaces"])
    with pytest.raises(errors.QuotaExceeded, match="at most 32"):
        pcs.group_ensure(seen, replace(spec, nodes=33), "token-too-many")
    data["NetworkInterfaces"][1]["InterfaceType"] = "efa-only"
    with pytest.raises(errors.InvalidRequest, match="efa-only"):
        pcs.group_ensure(seen, spec, "token-efa-only")
    for change, words in (
        ({"role_arn": f"arn:aws:iam::{ACCOUNT_ID}:instance-profile/nodes"}, "AWSPCS"),
        ({"subnet_ids": ("subnet-0123456789abcdef0",)}, "does not exist"),
        ({"image_id": ""}, "amiId"),
        ({"name": "a-name-longer-than-twenty-five"}, "computeNodeGroupName"),
    ):
        with pytest.raises(errors.InvalidRequest, match=words):
            pcs.group_ensure(seen, replace(spec, **change), f"token-{words}")


def test_pcs_takes_a_block_that_begins_later(pcs: Pcs, server: AwsServer) -> None:
    seen = active(pcs, PCS)
    reservation = block(server, hours_until=1)
    spec = with_template(pcs, seen, replace(GROUP, source="capacity-block", reservation_id=reservation, min_nodes=2))
    pcs.group_ensure(seen, spec, "token-of-group")
    waiting = in_state(pcs, seen, kv.ACTIVE)
    assert (waiting.source, pcs.members(seen)) == ("capacity-block", ())
    begin(server)
    eventually(lambda: pcs.groups(seen) and len(pcs.members(seen)) == 2)
    held = {server.cloud.book.reservation_of(m.provider_id) for m in pcs.members(seen)}
    assert held == {reservation}
    without = replace(spec, source="on-demand", name="other", uid="grp_2")
    with pytest.raises(errors.InvalidRequest, match="CAPACITY_BLOCK"):
        pcs.group_ensure(seen, without, "token-of-other")


@pytest.mark.parametrize("kind", ["pcs", "eks"])
def test_groups_run_in_their_odcr_and_no_further(kind: str, pcs: Pcs, eks: Eks, server: AwsServer) -> None:
    service: Any = pcs if kind == "pcs" else eks
    seen = active(service, PCS if kind == "pcs" else EKS)
    reservation = at.odcr(server)
    role = at.PROFILE if kind == "pcs" else ROLE
    wanted = replace(GROUP, role_arn=role, source="odcr", reservation_id=reservation, nodes=4, min_nodes=4)
    spec = with_template(service, seen, wanted)
    data = server.cloud.templates[spec.launch_template_id].data
    assert "InstanceMarketOptions" not in data
    made = service.group_ensure(seen, spec, "token-of-group")
    assert made.source == "on-demand"
    short = eventually(lambda: g if (g := group(service, seen)).issues else None)
    assert "exceeds the available capacity" in short.issues[0][1]
    members = service.members(seen)
    assert {server.cloud.book.reservation_of(m.provider_id) for m in members} == {reservation}
    assert len(members) == 3


def test_pcs_tries_on_without_capacity(pcs: Pcs, server: AwsServer) -> None:
    seen = active(pcs, PCS)
    fault = server.world.fault_add("group-no-capacity", group="p5en")
    pcs.group_ensure(seen, with_template(pcs, seen, replace(GROUP, min_nodes=1)), "token-of-group")
    short = eventually(lambda: g if (g := group(pcs, seen)).issues else None)
    assert (short.state, short.issues[0][0]) == (kv.ACTIVE, "InsufficientInstanceCapacity")
    server.world.fault_clear(fault.uid)
    eventually(lambda: not group(pcs, seen).issues and len(pcs.members(seen)) == 1)


def test_pcs_fails_with_words(pcs: Pcs, server: AwsServer) -> None:
    server.world.fault_add("cluster-fails", left=1, what="pcs-cluster")
    pcs.cluster_ensure(PCS, "token-of-cluster")
    seen = eventually(lambda: c if (c := pcs.cluster("lab")).state == kv.FAILED else None)
    assert "told to fail" in seen.failure
    with pytest.raises(errors.Conflict):
        pcs.cluster_ensure(replace(PCS, tags={v.TAG_UID: "clu_2"}), "token-of-another")
    pcs.cluster_delete("lab")
    eventually(lambda: gone(pcs))
    with pytest.raises(errors.Conflict, match="was deleted"):
        pcs.cluster_ensure(PCS, "token-of-cluster")


# --- EKS


def test_eks_whole_life(eks: Eks, server: AwsServer) -> None:
    first = eks.cluster_ensure(EKS, "token-of-cluster")
    assert eks.cluster_ensure(EKS, "token-of-cluster").provider_id == first.provider_id
    assert first.state == kv.CREATING
    with pytest.raises(errors.Conflict):
        eks.cluster_ensure(replace(EKS, tags={v.TAG_UID: "clu_2"}), "token-of-another")
    seen = active(eks, EKS)
    assert seen.facts["authentication"] == "API"
    admins = [f"arn:aws:iam::{ACCOUNT_ID}:role/admins"]
    settings = {**EKS.settings, "admin_arns": admins, "addons": ["vpc-cni", "eks-node-monitoring-agent"]}
    for _time in range(2):
        assert eks.prepare(seen, settings, EKS.tags, "ACCESS") == ""
    assert "vpc-cni" in eks.prepare(seen, settings, EKS.tags, "ADDONS")
    eventually(lambda: eks.prepare(seen, settings, EKS.tags, "ADDONS") == "")
    assert server.census()["eks_access_entries"] == 1
    assert server.census()["eks_addons"] == 2
    spec = with_template(eks, seen, replace(GROUP, role_arn=ROLE))
    data = server.cloud.templates[spec.launch_template_id].data
    assert {tuple(i["Groups"]) for i in data["NetworkInterfaces"]} == {
        (seen.facts["security_group_id"], SECURITY_GROUP_ID)
    }
    assert "IamInstanceProfile" not in data
    assert not any("SubnetId" in i for i in data["NetworkInterfaces"])
    made = eks.group_ensure(seen, spec, "token-of-group")
    assert eks.group_ensure(seen, spec, "token-of-group") == made
    assert eks.group_ensure(seen, spec, "token-of-a-lost-row").name == "p5en"
    assert made.settings["repairs"] is True
    in_state(eks, seen, kv.ACTIVE)
    assert len(eventually(lambda: m if len(m := eks.members(seen)) == 4 else None)) == 4
    for _time in range(2):
        eks.group_resize(seen, replace(spec, nodes=6), group(eks, seen), "token-of-resize")
    assert in_state(eks, seen, kv.ACTIVE).target_nodes == 6
    eventually(lambda: len(eks.members(seen)) == 6)
    with pytest.raises(errors.Conflict, match="nodegroups"):
        eks.cluster_delete("lab")
    eks.group_delete(seen, "p5en")
    eventually(lambda: not eks.groups(seen))
    eks.template_delete("grp_1")
    eks.cluster_delete("lab")
    eventually(lambda: gone(eks))
    eventually(lambda: nothing_left(server))


def test_eks_refuses_what_aws_refuses(eks: Eks, server: AwsServer) -> None:
    one_zone = replace(EKS, settings={**EKS.settings, "subnet_ids": [SUBNET_ID]})
    with pytest.raises(errors.InvalidRequest, match="two different AZs"):
        eks.cluster_ensure(one_zone, "token-of-one-zone")
    seen = active(eks, EKS)
    spec = with_template(eks, seen, replace(GROUP, role_arn=ROLE))
    client, asked = aws(server, "eks"), {"clusterName": "lab", "nodeRole": ROLE, "subnets": [SUBNET_ID]}
    template = {"id": spec.launch_template_id, "version": "1"}
    scaling = {"minSize": 0, "maxSize": 1, "desiredSize": 0}
    data = server.cloud.templates[spec.launch_template_id].data

    def refused(name: str, **more: Any) -> str:
        with pytest.raises(client.exceptions.InvalidParameterException) as caught:
            client.create_nodegroup(nodegroupName=name, launchTemplate=template, scalingConfig=scaling, **asked, **more)
        return str(caught.value)

    assert "Instance types" in refused("types", instanceTypes=[TYPE])
    assert "diskSize" in refused("disk", diskSize=100)
    assert "CAPACITY_BLOCK" in refused("block", capacityType="CAPACITY_BLOCK")
    data["NetworkInterfaces"][0]["SubnetId"] = SUBNET_ID
    assert "SubnetId" in refused("subnet")
    del data["NetworkInterfaces"][0]["SubnetId"]
    data["IamInstanceProfile"] = {"Arn": PROFILE}
    assert "IamInstanceProfile" in refused("profile")


def test_eks_block_from_its_start_to_forty_minutes_before_its_end(eks: Eks, server: AwsServer) -> None:
    seen = active(eks, EKS)
    reservation = block(server, hours_until=1)
    wanted = replace(GROUP, role_arn=ROLE, source="capacity-block", reservation_id=reservation)
    spec = with_template(eks, seen, wanted)
    data = server.cloud.templates[spec.launch_template_id].data
    assert data["InstanceType"] == TYPE
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    with pytest.raises(errors.InvalidRequest, match="desiredSize must be 0"):
        eks.group_ensure(seen, spec, "token-too-early")
    eks.group_ensure(seen, replace(spec, desired_nodes=0), "token-of-group")
    waiting = in_state(eks, seen, kv.ACTIVE)
    assert (waiting.source, waiting.target_nodes) == ("capacity-block", 0)
    with pytest.raises(errors.InvalidRequest, match="desiredSize must be 0"):
        eks.group_resize(seen, spec, waiting, "token-still-too-early")
    begin(server)
    eks.group_resize(seen, spec, waiting, "token-of-start")
    in_state(eks, seen, kv.ACTIVE)
    eventually(lambda: len(eks.members(seen)) == 4)
    end = server.cloud.book.rows("reservations")[reservation]["end"]
    server.world.advance(end - time.time() - 41 * 60)
    server.census()
    assert group(eks, seen).target_nodes == 4
    server.world.advance(2 * 60)
    eventually(lambda: group(eks, seen).target_nodes == 0 and not eks.members(seen))
    assert aws(server, "ec2").describe_capacity_reservations()["CapacityReservations"][0]["State"] == "active"


def test_eks_group_without_capacity_tells_its_issue(eks: Eks, server: AwsServer) -> None:
    seen = active(eks, EKS)
    fault = server.world.fault_add("group-no-capacity", group="p5en")
    spec = with_template(eks, seen, replace(GROUP, role_arn=ROLE))
    eks.group_ensure(seen, spec, "token-of-group")
    failed = in_state(eks, seen, kv.FAILED)
    assert (failed.word, failed.issues[0][0]) == ("CREATE_FAILED", "AsgInstanceLaunchFailures")
    eks.group_delete(seen, "p5en")
    eventually(lambda: not eks.groups(seen))
    with pytest.raises(errors.InvalidRequest, match="was deleted"):
        eks.group_ensure(seen, spec, "token-of-group")
    server.world.fault_clear(fault.uid)
    eks.group_ensure(seen, spec, "token-of-the-second")
    in_state(eks, seen, kv.ACTIVE)
    fault = server.world.fault_add("group-no-capacity", group="p5en")
    eks.group_resize(seen, replace(spec, nodes=8), group(eks, seen), "token-of-resize")
    in_state(eks, seen, kv.DEGRADED)
    server.world.fault_clear(fault.uid)
    in_state(eks, seen, kv.ACTIVE)
    eventually(lambda: len(eks.members(seen)) == 8)


def test_a_role_without_permission(pcs: Pcs, server: AwsServer) -> None:
    server.world.fault_add("access-denied", service="aws", operation="CreateCluster")
    with pytest.raises(errors.AccessDenied, match="pcs:CreateCluster"):
        pcs.cluster_ensure(PCS, "token-of-cluster")
