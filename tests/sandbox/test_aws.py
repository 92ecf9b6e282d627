"""The sandbox's AWS as boto3 sees it: what the contract suite cannot say because the port hides it."""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.filters import matches, page
from sandbox.aws.joining import NodeLine, node_line
from sandbox.aws.options import ACCESS_KEY_ID, IMAGE_ID, SECRET_ACCESS_KEY, SECURITY_GROUP_ID, SUBNET_ID
from sandbox.world import World
from worker.providers.aws import interface_layout
from worker.providers.aws.live_check import main as live_check

TYPE = "p5.48xlarge"
FAST = AwsOptions(boot_s=0.2, join_s=0.2, shutdown_s=0.2, terminated_visible_s=0.5)
ONCE = Config(retries={"total_max_attempts": 1})


def client_of(server: AwsServer, name: str = "ec2") -> Any:
    return boto3.client(
        name,
        region_name=server.options.region,
        endpoint_url=server.url,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=ONCE,
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, FAST)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def ec2(server: AwsServer) -> Any:
    return client_of(server)


def interfaces(kind: str = TYPE, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "NetworkCardIndex": i.card,
            "DeviceIndex": i.device,
            "InterfaceType": i.kind,
            "SubnetId": SUBNET_ID,
            "Groups": [SECURITY_GROUP_ID],
            **more,
        }
        for i in interface_layout(kind)
    ]


def run(ec2: Any, count: int = 1, **more: Any) -> list[dict[str, Any]]:
    asked = {"ImageId": IMAGE_ID, "InstanceType": TYPE, "MinCount": count, "MaxCount": count}
    asked["NetworkInterfaces"] = interfaces()
    answer: list[dict[str, Any]] = ec2.run_instances(**{**asked, **more})["Instances"]
    return answer


def code_of(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    return str(refused.value.response["Error"]["Code"])


def until(read: Any, within_s: float = 5.0) -> None:
    ends_at = time.monotonic() + within_s
    while not read():
        assert time.monotonic() < ends_at
        time.sleep(0.03)


def states(ec2: Any) -> list[str]:
    listed = ec2.describe_instances()["Reservations"]
    return [i["State"]["Name"] for r in listed for i in r["Instances"]]


class TestInstances:
    def test_states_follow_the_clock(self, ec2: Any) -> None:
        (made,) = run(ec2)
        assert made["State"]["Name"] == "pending"
        assert ec2.describe_instance_status()["InstanceStatuses"] == []
        until(lambda: states(ec2) == ["running"])
        (status,) = ec2.describe_instance_status()["InstanceStatuses"]
        assert status["InstanceStatus"]["Status"] == "ok"
        ended = ec2.terminate_instances(InstanceIds=[made["InstanceId"]])["TerminatingInstances"][0]
        assert (ended["PreviousState"]["Name"], ended["CurrentState"]["Name"]) == ("running", "shutting-down")
        until(lambda: states(ec2) == ["terminated"])
        (gone,) = ec2.describe_instances()["Reservations"][0]["Instances"]
        assert gone["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
        assert gone["PrivateDnsName"] == ""
        assert ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
        until(lambda: states(ec2) == [])
        assert code_of(ec2.describe_instances, InstanceIds=[made["InstanceId"]]) == "InvalidInstanceID.NotFound"

    def test_interfaces_are_shown_as_asked(self, ec2: Any) -> None:
        (made,) = run(ec2)
        shown = made["NetworkInterfaces"]
        got = {(i["Attachment"]["NetworkCardIndex"], i["Attachment"]["DeviceIndex"], i["InterfaceType"]) for i in shown}
        assert got == {(i.card, i.device, i.kind) for i in interface_layout(TYPE)}
        assert len([i for i in shown if i.get("PrivateIpAddress")]) == 1
        assert made["PrivateDnsName"] == "ip-10-0-0-4.us-east-2.compute.internal"

    def test_addresses_are_counted_and_freed(self, ec2: Any) -> None:
        def free() -> int:
            return int(ec2.describe_subnets(SubnetIds=[SUBNET_ID])["Subnets"][0]["AvailableIpAddressCount"])

        before = free()
        made = run(ec2, 3)
        assert free() == before - 3
        ec2.terminate_instances(InstanceIds=[i["InstanceId"] for i in made])
        until(lambda: free() == before)
        (again,) = run(ec2)
        assert again["PrivateIpAddress"] not in {i["PrivateIpAddress"] for i in made}

    def test_max_above_what_is_left_gives_what_is_left(self, tmp_path: Path) -> None:
        server = AwsServer(World(), "127.0.0.1", 0, tmp_path / "pool", replace(FAST, pools={TYPE: 3}))
        server.start()
        try:
            ec2 = client_of(server)
            assert len(run(ec2, MinCount=1, MaxCount=5)) == 3
            with pytest.raises(ClientError) as refused:
                run(ec2)
            assert refused.value.response["Error"]["Code"] == "InsufficientInstanceCapacity"
            assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
            assert "choosing us-east-2b, us-east-2c" in refused.value.response["Error"]["Message"]
        finally:
            server.stop()

    def test_capacity_is_back_after_termination(self, tmp_path: Path) -> None:
        server = AwsServer(World(), "127.0.0.1", 0, tmp_path / "pool", replace(FAST, pools={TYPE: 1}))
        server.start()
        try:
            ec2 = client_of(server)
            (made,) = run(ec2)
            ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
            assert code_of(run, ec2=ec2) == "InsufficientInstanceCapacity"
            until(lambda: states(ec2) == ["terminated"])
            assert len(run(ec2)) == 1
        finally:
            server.stop()

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"InstanceType": "p9.huge"}, "InvalidParameterValue"),
            ({"ImageId": "ami-0bad0000000000000"}, "InvalidAMIID.NotFound"),
            ({"NetworkInterfaces": interfaces(SubnetId="subnet-0bad")}, "InvalidSubnetID.NotFound"),
            ({"NetworkInterfaces": interfaces(Groups=["sg-0bad"])}, "InvalidGroup.NotFound"),
            ({"Placement": {"GroupName": "nowhere"}}, "InvalidPlacementGroup.Unknown"),
            ({"LaunchTemplate": {"LaunchTemplateName": "none"}}, "InvalidLaunchTemplateName.NotFoundException"),
            ({"MinCount": 4, "MaxCount": 2}, "InvalidParameterValue"),
            ({"InstanceType": "p5.4xlarge"}, "AttachmentLimitExceeded"),
            ({"InstanceType": "p6-b300.48xlarge", "NetworkInterfaces": interfaces("p6-b300.48xlarge")}, "Unsupported"),
            ({"InstanceType": "p5en.48xlarge"}, "InvalidParameterValue"),
            ({"NetworkInterfaces": interfaces(PrivateIpAddress="10.0.0.9")}, "InvalidParameterCombination"),
            ({"NetworkInterfaces": interfaces()[1:]}, "InvalidParameterValue"),
            ({"NetworkInterfaces": [*interfaces(), interfaces()[-1]]}, "InvalidParameterValue"),
            ({"SubnetId": SUBNET_ID}, "InvalidParameterCombination"),
        ],
    )
    def test_wrong_requests(self, ec2: Any, server: AwsServer, change: dict[str, Any], code: str) -> None:
        assert code_of(run, ec2=ec2, **change) == code
        assert server.cloud.census()["network_interfaces"] == 0

    def test_dry_run_makes_nothing(self, ec2: Any, server: AwsServer) -> None:
        assert code_of(run, ec2=ec2, DryRun=True) == "DryRunOperation"
        assert code_of(run, ec2=ec2, DryRun=True, ImageId="ami-0bad0000000000000") == "InvalidAMIID.NotFound"
        assert server.cloud.census()["instances"] == 0

    def test_filters_and_pages(self, ec2: Any) -> None:
        tags = [{"ResourceType": "instance", "Tags": [{"Key": "fleet", "Value": "a"}]}]
        run(ec2, 6, TagSpecifications=tags)
        run(ec2, 1, InstanceType="p4d.24xlarge", NetworkInterfaces=interfaces("p4d.24xlarge"))

        def count(**filters: list[str]) -> int:
            asked = [{"Name": name.replace("__", ":").replace("_", "-"), "Values": v} for name, v in filters.items()]
            pages = ec2.get_paginator("describe_instances").paginate(Filters=asked, PaginationConfig={"PageSize": 5})
            return sum(len(r["Instances"]) for one in pages for r in one["Reservations"])

        assert count() == 7
        assert count(instance_type=["p5*"]) == 6
        assert count(tag_key=["fleet"]) == 6
        assert count(tag__fleet=["b", "a"], instance_state_name=["pending", "running"]) == 6
        assert count(tag__fleet=["b"]) == 0
        assert (
            code_of(ec2.describe_instances, Filters=[{"Name": "colour", "Values": ["red"]}]) == "InvalidParameterValue"
        )
        assert code_of(ec2.describe_instances, MaxResults=5, NextToken="x!") == "InvalidParameterValue"
        assert code_of(ec2.describe_instances, MaxResults=5, InstanceIds=["i-1"]) == "InvalidParameterCombination"

    def test_tags_can_be_changed(self, ec2: Any) -> None:
        (made,) = run(ec2)
        ec2.create_tags(Resources=[made["InstanceId"], SUBNET_ID], Tags=[{"Key": "mark", "Value": "1"}])
        listed = ec2.describe_tags(Filters=[{"Name": "key", "Values": ["mark"]}])["Tags"]
        assert {tag["ResourceId"] for tag in listed} == {made["InstanceId"], SUBNET_ID}
        ec2.delete_tags(Resources=[made["InstanceId"], SUBNET_ID], Tags=[{"Key": "mark"}])
        assert ec2.describe_tags(Filters=[{"Name": "key", "Values": ["mark"]}])["Tags"] == []
        assert (
            code_of(ec2.create_tags, Resources=["i-0123456789abcdef0"], Tags=[{"Key": "a", "Value": "b"}])
            == "InvalidID"
        )

    def test_volumes_carry_tags_and_go_with_their_instance(self, ec2: Any) -> None:
        tags = [{"ResourceType": "volume", "Tags": [{"Key": "fleet", "Value": "a"}]}]
        disk = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 500, "Encrypted": True}}]
        (made,) = run(ec2, TagSpecifications=tags, BlockDeviceMappings=disk)
        (volume,) = ec2.describe_volumes(Filters=[{"Name": "tag:fleet", "Values": ["a"]}])["Volumes"]
        assert (volume["Size"], volume["Encrypted"]) == (500, True)
        ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
        until(lambda: ec2.describe_volumes()["Volumes"] == [])

    def test_an_interface_that_outlives_its_instance(self, ec2: Any) -> None:
        (made,) = run(ec2, NetworkInterfaces=[*interfaces()[:1], *interfaces(DeleteOnTermination=False)[1:2]])
        ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
        until(lambda: [i["Status"] for i in ec2.describe_network_interfaces()["NetworkInterfaces"]] == ["available"])
        (left,) = ec2.describe_network_interfaces()["NetworkInterfaces"]
        ec2.delete_network_interface(NetworkInterfaceId=left["NetworkInterfaceId"])
        missing = left["NetworkInterfaceId"]
        assert code_of(ec2.delete_network_interface, NetworkInterfaceId=missing) == "InvalidNetworkInterfaceID.NotFound"


class TestNamesAndTokens:
    def test_template_is_honoured(self, ec2: Any) -> None:
        user_data = base64.b64encode(b"#!/bin/bash\n").decode()
        made = ec2.create_launch_template(
            LaunchTemplateName="fleet",
            LaunchTemplateData={
                "ImageId": IMAGE_ID,
                "InstanceType": TYPE,
                "UserData": user_data,
                "NetworkInterfaces": interfaces(),
                "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "from", "Value": "template"}]}],
            },
        )["LaunchTemplate"]
        (version,) = ec2.describe_launch_template_versions(LaunchTemplateId=made["LaunchTemplateId"])[
            "LaunchTemplateVersions"
        ]
        assert version["LaunchTemplateData"]["UserData"] == user_data
        assert len(version["LaunchTemplateData"]["NetworkInterfaces"]) == 33
        named = {"LaunchTemplateId": made["LaunchTemplateId"], "Version": "1"}
        (one,) = ec2.run_instances(LaunchTemplate=named, MinCount=1, MaxCount=1)["Instances"]
        assert len(one["NetworkInterfaces"]) == 33
        assert {"Key": "from", "Value": "template"} in one["Tags"]
        assert one["SecurityGroups"][0]["GroupId"] == SECURITY_GROUP_ID
        wrong = {**named, "Version": "2"}
        code = code_of(ec2.run_instances, LaunchTemplate=wrong, MinCount=1, MaxCount=1)
        assert code == "InvalidLaunchTemplateId.VersionNotFound"

    def test_template_name_is_free_again_after_deletion(self, ec2: Any) -> None:
        data = {"InstanceType": TYPE}
        first = ec2.create_launch_template(LaunchTemplateName="fleet", ClientToken="a", LaunchTemplateData=data)
        same = ec2.create_launch_template(LaunchTemplateName="fleet", ClientToken="a", LaunchTemplateData=data)
        assert first["LaunchTemplate"] == same["LaunchTemplate"]
        taken = "InvalidLaunchTemplateName.AlreadyExistsException"
        assert code_of(ec2.create_launch_template, LaunchTemplateName="fleet", LaunchTemplateData=data) == taken
        ec2.delete_launch_template(LaunchTemplateName="fleet")
        assert code_of(ec2.delete_launch_template, LaunchTemplateName="fleet").endswith(".NotFoundException")
        second = ec2.create_launch_template(LaunchTemplateName="fleet", ClientToken="a", LaunchTemplateData=data)
        assert second["LaunchTemplate"]["LaunchTemplateId"] != first["LaunchTemplate"]["LaunchTemplateId"]

    def test_a_failed_launch_does_not_use_up_its_token(self, ec2: Any, server: AwsServer) -> None:
        server.world.fault_add("no-capacity", left=1)
        assert code_of(run, ec2=ec2, ClientToken="t") == "InsufficientInstanceCapacity"
        assert len(run(ec2, ClientToken="t")) == 1

    def test_placement_groups(self, ec2: Any) -> None:
        ec2.create_placement_group(GroupName="g", Strategy="cluster")
        assert code_of(ec2.create_placement_group, GroupName="g") == "InvalidPlacementGroup.Duplicate"
        (made,) = run(ec2, Placement={"GroupName": "g"})
        assert made["Placement"]["GroupName"] == "g"
        assert code_of(ec2.delete_placement_group, GroupName="g") == "InvalidPlacementGroup.InUse"
        ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
        assert code_of(ec2.delete_placement_group, GroupName="g") == "InvalidPlacementGroup.InUse"
        until(lambda: states(ec2) == ["terminated"])
        ec2.delete_placement_group(GroupName="g")
        assert code_of(ec2.delete_placement_group, GroupName="g") == "InvalidPlacementGroup.Unknown"
        assert code_of(ec2.describe_placement_groups, GroupNames=["g"]) == "InvalidPlacementGroup.Unknown"


class TestJoining:
    LINE = '# quarterdeck-node: {"cluster": "alpha", "partition": "gpu", "gpu_type": "h100", "gpus": 8}'

    def test_node_joins_and_leaves(self, ec2: Any, server: AwsServer) -> None:
        heard: list[tuple[str, str]] = []
        server.world.on_node(lambda event, node: heard.append((event, node.name)))
        (made,) = run(ec2, UserData=f"#!/bin/bash\n{self.LINE}\necho\n")
        (mute,) = run(ec2, UserData="#!/bin/bash\n")
        name = made["PrivateDnsName"].split(".")[0]
        assert server.world.nodes == {}
        until(lambda: name in server.world.nodes)
        node = server.world.nodes[name]
        assert (node.cluster, node.partition, node.gpu_type, len(node.gpus)) == ("alpha", "gpu", "h100", 8)
        assert (node.cpus, node.memory_mib) == (192, 2_097_152)
        server.world.node_lose(name)
        (lost,) = ec2.describe_instance_status(InstanceIds=[made["InstanceId"]])["InstanceStatuses"]
        assert lost["InstanceState"]["Name"] == "running"
        assert lost["SystemStatus"]["Status"] == "impaired"
        ec2.terminate_instances(InstanceIds=[made["InstanceId"], mute["InstanceId"]])
        until(lambda: server.world.nodes == {})
        assert heard == [("joined", name), ("lost", name), ("left", name)]

    def test_line(self) -> None:
        def encoded(text: str) -> str:
            return base64.b64encode(text.encode()).decode()

        assert node_line(encoded(f"#!/bin/bash\n{self.LINE}\r\nx")) == NodeLine("alpha", "gpu", "h100", 8)
        assert node_line(encoded("#!/bin/bash\necho # quarterdeck-node\n")) is None
        assert node_line("") is None
        for bad in ('# quarterdeck-node: {"cluster": "a"}', "# quarterdeck-node: {oops}"):
            with pytest.raises(ValueError, match="quarterdeck-node"):
                node_line(encoded(bad))

    def test_restart_keeps_instances_and_ids(self, ec2: Any, server: AwsServer, tmp_path: Path) -> None:
        (made,) = run(ec2, UserData=f"#!/bin/bash\n{self.LINE}\n", ClientToken="once")
        server.stop()
        again = AwsServer(World(), "127.0.0.1", 0, tmp_path, FAST)
        again.start()
        try:
            second = client_of(again)
            (kept,) = second.describe_instances()["Reservations"][0]["Instances"]
            assert kept["InstanceId"] == made["InstanceId"]
            assert len(kept["NetworkInterfaces"]) == 33
            assert again.ids() == server.ids()
            until(lambda: made["PrivateDnsName"].split(".")[0] in again.world.nodes)
            assert run(second, UserData=f"#!/bin/bash\n{self.LINE}\n", ClientToken="once")[0] == {
                **kept,
                "State": made["State"],
            }
        finally:
            again.stop()

    def test_state_of_another_version_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "aws-state.json").write_text('{"machines": {}}')
        with pytest.raises(ValueError, match=r"aws-state\.json"):
            AwsServer(World(), "127.0.0.1", 0, tmp_path, FAST)


class TestFrontDoor:
    def test_identity(self, server: AwsServer) -> None:
        assert client_of(server, "sts").get_caller_identity()["Account"] == "123456789012"

    def test_quotas(self, server: AwsServer) -> None:
        quotas = client_of(server, "service-quotas")
        found = quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-417A185B")["Quota"]
        assert (found["QuotaName"], found["Value"]) == ("Running On-Demand P instances", 24_576.0)
        names = {q["QuotaName"] for q in quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]}
        assert {"Running On-Demand P instances", "Concurrent P5en Capacity Blocks per account"} <= names
        assert code_of(quotas.get_service_quota, ServiceCode="ec2", QuotaCode="L-0") == "NoSuchResourceException"
        assert code_of(quotas.list_services) == "UnknownOperationException"

    def test_another_region_is_refused(self, server: AwsServer) -> None:
        elsewhere = boto3.client(
            "ec2",
            region_name="eu-west-1",
            endpoint_url=server.url,
            aws_access_key_id=ACCESS_KEY_ID,
            aws_secret_access_key=SECRET_ACCESS_KEY,
        )
        assert code_of(elsewhere.describe_instances) == "AuthFailure"

    def test_another_service_is_refused(self, server: AwsServer) -> None:
        assert code_of(client_of(server, "sqs").list_queues) == "UnknownOperationException"

    @pytest.mark.parametrize("path", ["/", "/moto-api/reset", "/x?Action=DescribeInstances"])
    def test_unsigned(self, server: AwsServer, path: str) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with pytest.raises(urllib.error.HTTPError) as refused:
            opener.open(urllib.request.Request(server.url + path, data=b""), timeout=5)
        assert refused.value.code == 403
        assert b"MissingAuthenticationToken" in refused.value.read()

    def test_own_mistakes_look_like_aws(
        self, server: AwsServer, ec2: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def broken(*_: Any) -> None:
            raise RuntimeError("boom")

        monkeypatch.setattr("sandbox.aws.views.reservations", broken)
        assert code_of(ec2.describe_instances) == "InternalError"
        assert "boom" in capsys.readouterr().err

    def test_fault_of_one_call_leaves_others(self, server: AwsServer, ec2: Any) -> None:
        server.world.fault_add("throttling", service="aws", operation="RunInstances")
        server.world.fault_add("server-error", service="slurm")
        assert ec2.describe_instances()["Reservations"] == []
        assert code_of(run, ec2=ec2) == "RequestLimitExceeded"


class TestLiveCheck:
    @pytest.fixture(autouse=True)
    def _keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
        for name in [n for n in os.environ if n in ("AWS_SESSION_TOKEN", "AWS_PROFILE")]:
            monkeypatch.delenv(name)

    def test_all_well(self, server: AwsServer, capsys: pytest.CaptureFixture[str]) -> None:
        base = ["--region", "us-east-2", "--endpoint-url", server.url]
        assert live_check(base) == 0
        assert "nothing carries our tag" in capsys.readouterr().out
        launch = ["--subnet", SUBNET_ID, "--security-group", SECURITY_GROUP_ID, "--image", IMAGE_ID, "--nodes", "4"]
        assert live_check([*base, *launch]) == 0
        said = capsys.readouterr().out
        assert said.count("\nok ") == 9
        assert "FAIL" not in said
        assert server.cloud.census()["instances"] == 0

    def test_a_failure_shows_and_counts(self, server: AwsServer, capsys: pytest.CaptureFixture[str]) -> None:
        launch = ["--subnet", SUBNET_ID, "--security-group", SECURITY_GROUP_ID, "--image", IMAGE_ID]
        assert live_check(["--region", "us-east-2", "--endpoint-url", server.url, *launch, "--nodes", "5000"]) == 1
        assert "FAIL subnet-addresses" in capsys.readouterr().out

    def test_unreachable(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert live_check(["--region", "us-east-2", "--endpoint-url", "http://127.0.0.1:9"]) == 1
        assert "FAIL identity" in capsys.readouterr().out


def test_filters_treat_brackets_as_letters() -> None:
    assert matches({"tag:a": ["[x]*"]}, {"a": "[x]yz"}, lambda name: None)
    assert not matches({"tag:a": ["[x]*"]}, {"a": "xyz"}, lambda name: None)


def test_pages_cover_everything_once() -> None:
    things, token, seen = list(range(23)), None, []
    while True:
        some, token = page(things, 5, token)
        seen += some
        if token is None:
            break
    assert seen == things


def test_state_file_is_json(server: AwsServer, ec2: Any, tmp_path: Path) -> None:
    run(ec2)
    saved = json.loads((tmp_path / "aws-state.json").read_text())
    assert len(saved["interfaces"]) == 33
