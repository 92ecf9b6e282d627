"""The compute contract, and everything that can go wrong, against the sandbox's AWS."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import ACCESS_KEY_ID, SECRET_ACCESS_KEY
from sandbox.world import World
from tests.contract.compute_contract import TYPE, ComputeContract, Fleet, until_gone, wait_for
from worker.providers import errors
from worker.providers import values as v
from worker.providers.aws import Ec2Compute, interface_layout

pytestmark = pytest.mark.contract

OPTIONS = AwsOptions(boot_s=0.3, join_s=0.2, shutdown_s=0.3, pools={TYPE: 8}, p_vcpu_quota=20 * 192)


def access_of(server: AwsServer, **changes: object) -> v.CloudAccess:
    keys = v.Credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY)
    access = v.CloudAccess(server.options.region, keys, server.url)
    return replace(access, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path_factory.mktemp("aws"), OPTIONS)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ec2(server: AwsServer):
    return boto3.client(
        "ec2",
        region_name=server.options.region,
        endpoint_url=server.url,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
    )


@pytest.fixture
def world(server: AwsServer) -> Iterator[World]:
    yield server.world
    server.world.faults.clear()


@pytest.fixture
def compute(server: AwsServer) -> Ec2Compute:
    return Ec2Compute(access_of(server))


@pytest.fixture
def fleet(server: AwsServer, compute: Ec2Compute, world: World) -> Iterator[Fleet]:
    ids = server.ids()
    fleet = Fleet(ids["subnet_id"], ids["security_group_id"], ids["image_id"])
    yield fleet
    world.faults.clear()
    if any(owned.uid == fleet.uid for owned in compute.owned()):
        fleet.tear_down(compute)


class TestContract(ComputeContract):
    pass


def failed(checks: tuple[v.Check, ...]) -> dict[str, str]:
    return {check.name: check.detail for check in checks if not check.passed}


class TestPreflightFailures:
    def test_type_not_offered_in_the_zone(self, compute: Ec2Compute, fleet: Fleet) -> None:
        plan = replace(fleet.plan(), instance_type="p6-b300.48xlarge", interfaces=interface_layout("p6-b300.48xlarge"))
        found = failed(compute.preflight(plan))
        assert "not offered in use2-az1" in found["instance-type-offered"]
        assert "not supported in your requested Availability Zone" in found["permission-to-launch"]

    def test_unknown_type_fails_where_it_matters_and_raises_nothing(self, compute: Ec2Compute, fleet: Fleet) -> None:
        found = failed(compute.preflight(replace(fleet.plan(), instance_type="p9.huge")))
        assert {"instance-type-offered", "interfaces", "permission-to-launch"} <= set(found)

    def test_layout_does_not_fit(self, compute: Ec2Compute, fleet: Fleet) -> None:
        plan = replace(fleet.plan(), interfaces=(*interface_layout(TYPE), v.InterfaceSpec(40, 0, "efa-only")))
        found = failed(compute.preflight(plan))
        assert "no network card 40" in found["interfaces"]

    def test_vcpus_differ(self, compute: Ec2Compute, fleet: Fleet) -> None:
        found = failed(compute.preflight(replace(fleet.plan(), vcpus_per_node=96)))
        assert "AWS says 192" in found["interfaces"]

    def test_subnet_too_small(self, compute: Ec2Compute, fleet: Fleet, ec2) -> None:
        made = ec2.create_subnet(
            VpcId="vpc-0a0000000000000a1", CidrBlock="10.0.200.0/28", AvailabilityZone="us-east-2a"
        )
        subnet_id = made["Subnet"]["SubnetId"]
        plan = replace(fleet.plan(nodes=12), subnet_id=subnet_id)
        found = failed(compute.preflight(plan))
        assert set(found) == {"subnet-addresses"}
        assert "11 free addresses, 12 nodes × 1 need 12" in found["subnet-addresses"]
        ec2.delete_subnet(SubnetId=subnet_id)

    def test_unknown_subnet(self, compute: Ec2Compute, fleet: Fleet) -> None:
        found = failed(compute.preflight(replace(fleet.plan(), subnet_id="subnet-0bad0000000000000")))
        assert {"subnet", "instance-type-offered", "subnet-addresses", "permission-to-launch"} == set(found)

    def test_security_group_without_itself(self, compute: Ec2Compute, fleet: Fleet, ec2) -> None:
        made = ec2.create_security_group(
            GroupName=fleet.name, Description="only the default egress", VpcId="vpc-0a0000000000000a1"
        )
        found = failed(compute.preflight(replace(fleet.plan(), security_group_ids=(made["GroupId"],))))
        assert set(found) == {"security-groups"}
        assert "inbound" in found["security-groups"]
        assert "outbound" in found["security-groups"]
        ec2.delete_security_group(GroupId=made["GroupId"])

    def test_quota_too_small(self, compute: Ec2Compute, fleet: Fleet) -> None:
        found = failed(compute.preflight(fleet.plan(nodes=21)))
        assert "3,840 vCPUs, 0 in use, 21 nodes need 4,032" in found["vcpu-quota"]

    def test_quota_counts_what_runs(self, compute: Ec2Compute, fleet: Fleet) -> None:
        compute.launch(fleet.request(fleet.prepare(compute), count=2))
        found = failed(compute.preflight(fleet.plan(nodes=19)))
        assert "384 in use" in found["vcpu-quota"]

    def test_quota_that_cannot_be_read_is_no_obstacle(self, compute: Ec2Compute, fleet: Fleet) -> None:
        other = replace(fleet.plan(), instance_type=TYPE)
        from worker.providers.aws import preflight_capacity

        original = dict(preflight_capacity._ON_DEMAND)
        preflight_capacity._ON_DEMAND["p"] = ("Running On-Demand P instances", "L-00000000", ("p*",))
        try:
            (check,) = [c for c in compute.preflight(other) if c.name == "vcpu-quota"]
        finally:
            preflight_capacity._ON_DEMAND.update(original)
        assert check.passed
        assert "not readable" in check.detail

    def test_wrong_key(self, server: AwsServer, fleet: Fleet) -> None:
        stranger = Ec2Compute(access_of(server, credentials=v.Credentials("AKIAUNKNOWNUNKNOWN00", "x")))
        checks = stranger.preflight(fleet.plan())
        assert [c.name for c in checks if c.passed] == ["vcpu-quota"]
        assert "not readable" in next(c.detail for c in checks if c.passed)
        with pytest.raises(errors.AccessDenied):
            stranger.identity()
        with pytest.raises(errors.AccessDenied):
            stranger.owned()

    def test_wrong_secret(self, server: AwsServer) -> None:
        with pytest.raises(errors.AccessDenied):
            Ec2Compute(access_of(server, credentials=v.Credentials(ACCESS_KEY_ID, "wrong"))).owned()

    def test_assumed_role(self, server: AwsServer) -> None:
        role = "arn:aws:iam::123456789012:role/quarterdeck"
        who = Ec2Compute(access_of(server, role_arn=role, external_id="ext-1")).identity()
        assert "assumed-role/quarterdeck" in who.arn
        assert Ec2Compute(access_of(server, role_arn=role)).owned() == ()


class TestCapacity:
    def test_all_or_nothing(self, compute: Ec2Compute, fleet: Fleet) -> None:
        template = fleet.prepare(compute)
        started_at = time.monotonic()
        with pytest.raises(errors.InsufficientCapacity) as refused:
            compute.launch(fleet.request(template, count=9))
        assert time.monotonic() - started_at < 2
        assert refused.value.retryable
        assert "p5.48xlarge" in refused.value.message
        assert compute.instances({v.TAG_UID: fleet.uid}) == ()
        assert compute.interfaces({v.TAG_UID: fleet.uid}) == ()
        assert len(compute.launch(fleet.request(template, count=8))) == 8

    def test_one_attempt_only(self, compute: Ec2Compute, fleet: Fleet, world: World) -> None:
        template = fleet.prepare(compute)
        world.fault_add("no-capacity", left=2, instance_type=TYPE)
        request = fleet.request(template)
        for _ in range(2):
            with pytest.raises(errors.InsufficientCapacity):
                compute.launch(request)
        assert len(compute.launch(request)) == 4

    def test_other_types_are_not_hit(self, compute: Ec2Compute, fleet: Fleet, world: World) -> None:
        template = fleet.prepare(compute)
        world.fault_add("no-capacity", instance_type="p4d.24xlarge")
        assert len(compute.launch(fleet.request(template))) == 4

    def test_quota_is_told_apart(self, tmp_path: Path, world: World) -> None:
        small = AwsServer(World(), "127.0.0.1", 0, tmp_path, replace(OPTIONS, p_vcpu_quota=192))
        small.start()
        try:
            compute, ids = Ec2Compute(access_of(small)), small.ids()
            fleet = Fleet(ids["subnet_id"], ids["security_group_id"], ids["image_id"])
            with pytest.raises(errors.QuotaExceeded) as refused:
                compute.launch(fleet.request(fleet.prepare(compute)))
            assert refused.value.code == "VcpuLimitExceeded"
            assert not refused.value.retryable
        finally:
            small.stop()

    def test_addresses_are_told_apart(self, compute: Ec2Compute, fleet: Fleet, ec2) -> None:
        made = ec2.create_subnet(
            VpcId="vpc-0a0000000000000a1", CidrBlock="10.0.201.0/28", AvailabilityZone="us-east-2a"
        )
        subnet_id = made["Subnet"]["SubnetId"]
        compute.placement_group_ensure(fleet.name, fleet.tags)
        spec = replace(fleet.template(), subnet_id=subnet_id, interfaces=interface_layout(TYPE, "pcs"))
        template = compute.launch_template_ensure(spec, "pcs")
        with pytest.raises(errors.QuotaExceeded) as refused:
            compute.launch(fleet.request(template, count=1))
        assert refused.value.code == "InsufficientFreeAddressesInSubnet"


class TestTrouble:
    def test_lost_reply_then_the_same_token(self, compute: Ec2Compute, fleet: Fleet, world: World) -> None:
        template = fleet.prepare(compute)
        world.fault_add("server-error", left=1, service="aws", operation="RunInstances", shape="lost-reply")
        request = fleet.request(template)
        with pytest.raises(errors.Unavailable) as doubt:
            compute.launch(request)
        assert "may have taken effect" in doubt.value.message
        assert len(fleet.live(compute)) == 4
        again = compute.launch(request)
        assert {i.provider_id for i in again} == {i.provider_id for i in fleet.live(compute)}
        assert len(fleet.live(compute)) == 4

    def test_lost_reply_of_a_placement_group(self, compute: Ec2Compute, fleet: Fleet, world: World) -> None:
        world.fault_add("server-error", left=1, service="aws", operation="CreatePlacementGroup", shape="lost-reply")
        with pytest.raises(errors.Unavailable):
            compute.placement_group_ensure(fleet.name, fleet.tags)
        assert compute.placement_group_ensure(fleet.name, fleet.tags).name == fleet.name

    @pytest.mark.parametrize("shape", ["error", "html", "html-ok", "cut"])
    def test_broken_answers_are_doubt(self, compute: Ec2Compute, fleet: Fleet, world: World, shape: str) -> None:
        template = fleet.prepare(compute)
        world.fault_add("server-error", left=1, service="aws", operation="RunInstances", shape=shape)
        with pytest.raises(errors.Unavailable):
            compute.launch(fleet.request(template))
        assert fleet.live(compute) == []

    @pytest.mark.parametrize("shape", ["error", "html", "html-ok", "cut"])
    def test_broken_reads_never_look_empty(self, compute: Ec2Compute, fleet: Fleet, world: World, shape: str) -> None:
        world.fault_add("server-error", service="aws", shape=shape)
        with pytest.raises(errors.Unavailable):
            compute.instances(fleet.tags)

    def test_readers_ride_out_one_error(self, compute: Ec2Compute, fleet: Fleet, world: World) -> None:
        world.fault_add("server-error", left=1, service="aws", operation="DescribeInstances")
        assert compute.instances(fleet.tags) == ()

    def test_throttled_launch_is_not_repeated(self, compute: Ec2Compute, fleet: Fleet, world: World) -> None:
        template = fleet.prepare(compute)
        fault = world.fault_add("throttling", left=5, service="aws", operation="RunInstances")
        with pytest.raises(errors.Throttled):
            compute.launch(fleet.request(template))
        assert fault.left == 4

    def test_throttled_reads_end_in_time(self, compute: Ec2Compute, fleet: Fleet, world: World) -> None:
        world.fault_add("throttling", service="aws")
        started_at = time.monotonic()
        with pytest.raises((errors.Throttled, errors.Unavailable)):
            compute.instances(fleet.tags)
        assert time.monotonic() - started_at < 20

    def test_slow_but_good(self, compute: Ec2Compute, fleet: Fleet, world: World) -> None:
        world.fault_add("slow-api", left=1, service="aws", delay=1.5)
        started_at = time.monotonic()
        assert compute.instances(fleet.tags) == ()
        assert time.monotonic() - started_at >= 1.5

    def test_too_slow_ends_within_the_limit(self, compute: Ec2Compute, fleet: Fleet, world: World) -> None:
        world.fault_add("slow-api", service="aws", delay=12)
        started_at = time.monotonic()
        with pytest.raises(errors.Unavailable):
            compute.instances(fleet.tags)
        assert time.monotonic() - started_at < 20

    def test_connection_refused(self, server: AwsServer) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(errors.Unavailable) as refused:
                Ec2Compute(access_of(server, endpoint_url=nobody)).owned()
        assert "was not received" in refused.value.message

    def test_not_an_address(self, server: AwsServer) -> None:
        with pytest.raises(errors.InvalidRequest):
            Ec2Compute(access_of(server, endpoint_url="not a url")).identity()

    def test_unimplemented_call_is_an_aws_error(self, ec2) -> None:
        with pytest.raises(ec2.exceptions.ClientError) as refused:
            ec2.describe_spot_price_history()
        assert refused.value.response["Error"]["Code"] == "InvalidAction"
        with pytest.raises(ec2.exceptions.ClientError) as stop:
            ec2.stop_instances(InstanceIds=["i-0123456789abcdef0"])
        assert stop.value.response["Error"]["Code"] == "InvalidAction"


class TestManyAtOnce:
    def test_one_token_from_eight_threads_launches_once(self, server: AwsServer, fleet: Fleet) -> None:
        compute = Ec2Compute(access_of(server))
        request = fleet.request(fleet.prepare(compute), count=2)
        made: list[frozenset[str]] = []

        def launch() -> None:
            made.append(frozenset(i.provider_id for i in compute.launch(request)))

        threads = [threading.Thread(target=launch) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 8
        assert len(set(made)) == 1
        assert len(fleet.live(compute)) == 2

    def test_pages(self, tmp_path: Path) -> None:
        big = AwsServer(World(), "127.0.0.1", 0, tmp_path, replace(OPTIONS, pools={}, p_vcpu_quota=64 * 192))
        big.start()
        try:
            compute, ids = Ec2Compute(access_of(big)), big.ids()
            fleet = Fleet(ids["subnet_id"], ids["security_group_id"], ids["image_id"])
            compute.launch(fleet.request(fleet.prepare(compute), count=64))
            assert len({i.provider_id for i in compute.instances(fleet.tags)}) == 64
            interfaces = compute.interfaces({v.TAG_UID: fleet.uid})
            assert len({i.provider_id for i in interfaces}) == 64 * 33
            fleet.tear_down(compute)
            assert compute.owned() == ()
        finally:
            big.stop()


def test_helpers_can_fail() -> None:
    with pytest.raises(AssertionError, match="never"):
        wait_for(lambda: False, "never", within_s=0.1)
    with pytest.raises(pytest.fail.Exception):
        until_gone(lambda: None, within_s=0.1)
