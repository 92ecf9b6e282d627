"""AWS ParallelCluster through the port ``ClusterService``: made by its API, read from stack, bucket and machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sandbox.aws import AwsOptions, AwsServer
from sandbox.aws.options import ACCESS_KEY_ID, SECRET_ACCESS_KEY, SUBNET_ID
from sandbox.aws.parallelcluster import API_PATH, CloudFormation
from sandbox.world import World
from worker.providers import cluster_values as kv
from worker.providers import errors
from worker.providers import values as v
from worker.providers.aws.parallelcluster import (
    ParallelCluster,
    check_address,
    configured_groups,
    read_config,
    state_of,
    tagged_config,
)

pytestmark = pytest.mark.contract

CONFIG = f"""
Region: us-east-2
Image: {{Os: ubuntu2204}}
HeadNode:
  InstanceType: m7i.4xlarge
  Networking: {{SubnetId: {SUBNET_ID}}}
Scheduling:
  Scheduler: slurm
  SlurmQueues:
    - Name: train
      CapacityType: CAPACITY_BLOCK
      CapacityReservationTarget: {{CapacityReservationId: cr-0123456789abcdef0}}
      Networking: {{SubnetIds: [{SUBNET_ID}]}}
      ComputeResources:
        - Name: p5en
          InstanceType: p5en.48xlarge
          MinCount: 2
          MaxCount: 8
          Efa: {{Enabled: true}}
    - Name: spare
      Networking: {{SubnetIds: [{SUBNET_ID}]}}
      ComputeResources:
        - Name: any
          Instances: [{{InstanceType: p5.48xlarge}}, {{InstanceType: p5e.48xlarge}}]
          MaxCount: 4
Tags:
  - {{Key: project, Value: llm}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    options = AwsOptions(cluster_create_s=0.4, cluster_delete_s=0.3)
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path_factory.mktemp("aws"), options)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def access(server: AwsServer) -> Iterator[v.CloudAccess]:
    yield v.CloudAccess(server.options.region, v.Credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY), server.url)
    server.world.faults.clear()


@pytest.fixture
def service(access: v.CloudAccess) -> ParallelCluster:
    return ParallelCluster(access, access.endpoint_url + API_PATH)


@pytest.fixture
def spec(request: pytest.FixtureRequest) -> kv.ClusterSpec:
    uid = f"clu_{request.node.name}"[:30]
    name = request.node.name.replace("_", "-").removeprefix("test-")[:50]
    return kv.ClusterSpec("parallelcluster", name, {"config": CONFIG}, {v.TAG_UID: uid})


def eventually(read: Callable[[], Any], within_s: float = 30.0) -> Any:
    ends_at = time.monotonic() + within_s
    while not (found := read()):
        assert time.monotonic() < ends_at, "it never came"
        time.sleep(0.05)
    return found


def made(service: ParallelCluster, spec: kv.ClusterSpec) -> kv.SeenCluster:
    service.cluster_ensure(spec, "")
    eventually(lambda: service.cluster(spec.name).state == kv.ACTIVE)
    return service.cluster(spec.name)


def is_gone(service: ParallelCluster, name: str) -> bool:
    try:
        service.cluster_delete(name)
    except errors.NotFound:
        return True
    return False


def test_it_is_made_read_and_taken_away(server: AwsServer, service: ParallelCluster, spec: kv.ClusterSpec) -> None:
    assert service.cluster_ensure(spec, "").state == kv.CREATING
    seen = made(service, spec)
    assert (seen.version, seen.facts["scheduler"]) == ("3.12.0", "slurm")
    assert seen.tags[v.TAG_UID] == spec.tags[v.TAG_UID]
    assert seen.tags["project"] == "llm"
    assert "CAPACITY_BLOCK" in seen.facts["config"]
    assert seen.facts["config_problem"] == ""
    assert seen.facts["head_node"]["instance_type"] == "m7i.4xlarge"
    eventually(lambda: service.prepare(service.cluster(spec.name), {}, {}, "NODES") == "")
    train, spare = service.groups(seen)
    assert (train.name, train.instance_type, train.source) == ("train/p5en", "p5en.48xlarge", "capacity-block")
    assert (train.min_nodes, train.target_nodes, train.current_nodes) == (2, 8, 2)
    assert (spare.instance_type, spare.min_nodes, spare.current_nodes) == ("p5.48xlarge", 0, 0)
    members = service.members(seen)
    assert {m.group for m in members} == {"train/p5en"}
    assert len(members) == 2
    eventually(lambda: is_gone(service, spec.name))
    assert server.census()["stacks"] == 0
    eventually(lambda: server.census()["instances"] == 0)


def test_the_name_is_the_only_key(service: ParallelCluster, spec: kv.ClusterSpec) -> None:
    made(service, spec)
    assert made(service, spec).tags[v.TAG_UID] == spec.tags[v.TAG_UID]
    with pytest.raises(errors.InvalidRequest, match="not ours"):
        service.cluster_ensure(replace(spec, tags={v.TAG_UID: "clu_other"}), "")
    eventually(lambda: is_gone(service, spec.name))


def test_a_reply_that_was_lost_is_found_again(
    server: AwsServer, service: ParallelCluster, spec: kv.ClusterSpec
) -> None:
    server.world.fault_add("server-error", left=1, service="aws", operation="CreateCluster", shape="lost-reply")
    with pytest.raises(errors.Unavailable):
        service.cluster_ensure(spec, "")
    assert service.cluster_ensure(spec, "").name == spec.name
    eventually(lambda: is_gone(service, spec.name))


def test_one_made_elsewhere_is_read_without_its_api(server: AwsServer, access: v.CloudAccess) -> None:
    stacks = server.services["cloudformation"]
    assert isinstance(stacks, CloudFormation)
    stacks.make("by-hand", CONFIG)
    service = ParallelCluster(access)
    eventually(lambda: service.cluster("by-hand").state == kv.ACTIVE)
    seen = service.cluster("by-hand")
    assert v.TAG_UID not in seen.tags
    assert [g.name for g in service.groups(seen)] == ["train/p5en", "spare/any"]
    with pytest.raises(errors.Unsupported, match="no address"):
        service.cluster_delete("by-hand")
    stacks.remove("by-hand")
    eventually(lambda: server.census()["stacks"] == 0)


def test_a_configuration_that_cannot_be_read_is_told(server: AwsServer, access: v.CloudAccess) -> None:
    stacks = server.services["cloudformation"]
    assert isinstance(stacks, CloudFormation)
    stacks.make("closed", CONFIG)
    service = ParallelCluster(access)
    eventually(lambda: service.cluster("closed").state == kv.ACTIVE)
    server.world.fault_add("access-denied", left=1, service="aws", operation="GetObject")
    seen = service.cluster("closed")
    assert seen.facts["config"] == ""
    assert "not authorized" in seen.facts["config_problem"]
    # Machines tell of the queues that have any.
    assert [(g.name, g.current_nodes, g.settings["queue"]) for g in service.groups(seen)] == [
        ("train/p5en", 2, "train")
    ]
    stacks.remove("closed")
    eventually(lambda: server.census()["stacks"] == 0)


def test_what_fails_says_why(server: AwsServer, service: ParallelCluster, spec: kv.ClusterSpec) -> None:
    server.world.fault_add("cluster-fails", left=1, what="parallelcluster")
    service.cluster_ensure(spec, "")
    eventually(lambda: service.cluster(spec.name).state == kv.FAILED)
    assert "chef recipe" in service.cluster(spec.name).failure
    eventually(lambda: is_gone(service, spec.name))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("Region: [", "not YAML"),
        ("- a list", "not a YAML mapping"),
        ("Region: eu-west-1", "for eu-west-1, the account for us-east-2"),
        ("Region: us-east-2", "ConfigSchemaValidator"),
        (CONFIG.replace(SUBNET_ID, "subnet-none"), "SubnetsValidator: The subnet ID 'subnet-none' does not exist"),
    ],
)
def test_a_wrong_configuration_is_refused(service: ParallelCluster, config: str, said: str) -> None:
    spec = kv.ClusterSpec("parallelcluster", "wrong", {"config": config}, {v.TAG_UID: "clu_wrong"})
    with pytest.raises(errors.InvalidRequest, match=said):
        service.cluster_ensure(spec, "")
    with pytest.raises(errors.NotFound):
        service.cluster("wrong")


def test_a_stack_of_something_else_is_refused(server: AwsServer, service: ParallelCluster) -> None:
    with pytest.raises(errors.NotFound):
        service.cluster("nothing")


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/prod",
        "http://abc.execute-api.us-east-2.amazonaws.com/prod",
        "https://abc.execute-api.eu-west-1.amazonaws.com/prod",
        "https://execute-api.us-east-2.amazonaws.com.example.org",
        "http://127.0.0.1:1/parallelcluster",
    ],
)
def test_signed_requests_go_to_the_accounts_api_only(url: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="not an API Gateway address"):
        check_address(url, v.CloudAccess("us-east-2"))
    check_address("https://abc123.execute-api.us-east-2.amazonaws.com/prod", v.CloudAccess("us-east-2"))


def test_pure_parts() -> None:
    assert state_of("UPDATE_ROLLBACK_COMPLETE") == kv.ACTIVE
    assert state_of("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS") == kv.UPDATING
    assert state_of("ROLLBACK_COMPLETE") == kv.FAILED
    assert configured_groups("") == ()
    assert configured_groups("Scheduling: {SlurmQueues: [3]}") == ()
    for wrong in ("MaxCount: .inf", "MaxCount: .nan", "MinCount: .inf", "MinCount: many"):
        assert configured_groups(CONFIG.replace(f"{wrong[:8]}: {8 if wrong[1] == 'a' else 2}", wrong)) == ()
    assert configured_groups(CONFIG.replace("- Name: train", "- Title: train")) == ()
    for unreadable in ("a: [1", "[" * 5000, "a: 2026-99-99", "a: " + "9" * 5000):
        assert configured_groups(unreadable) == ()
        with pytest.raises(errors.InvalidRequest, match="not YAML"):
            read_config(unreadable)
    tagged = tagged_config("Tags: [{Key: 'quarterdeck:uid', Value: old}]", {v.TAG_UID: "new"}, "us-east-2")
    assert tagged.count("quarterdeck:uid") == 1
    assert "old" not in tagged
