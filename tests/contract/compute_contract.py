"""What every implementation of the port ``Compute`` has to do, told through ``Ec2Compute``."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from worker.providers import errors
from worker.providers import values as v
from worker.providers.aws import Ec2Compute, interface_layout

TYPE = "p5.48xlarge"


def wait_for(read: Callable[[], bool], what: str, within_s: float = 15.0) -> None:
    ends_at = time.monotonic() + within_s
    while not read():
        assert time.monotonic() < ends_at, f"not within {within_s} s: {what}"
        time.sleep(0.05)


class Fleet:
    """One fleet's names, tags and tokens, as a reconciler would derive them from its row."""

    def __init__(self, subnet_id: str, security_group_id: str, image_id: str) -> None:
        self.uid = uuid.uuid4().hex
        self.name = f"qd-{self.uid[:8]}"
        self.tags: Mapping[str, str] = {v.TAG_UID: self.uid, v.TAG_ATTEMPT: "1", v.TAG_TEAM: "nlp"}
        self.subnet_id = subnet_id
        self.security_group_id = security_group_id
        self.image_id = image_id

    def plan(self, nodes: int = 4) -> v.LaunchPlan:
        return v.LaunchPlan(
            instance_type=TYPE,
            nodes=nodes,
            vcpus_per_node=192,
            subnet_id=self.subnet_id,
            security_group_ids=(self.security_group_id,),
            image_id=self.image_id,
            interfaces=interface_layout(TYPE),
        )

    def template(self) -> v.LaunchTemplateSpec:
        return v.LaunchTemplateSpec(
            name=self.name,
            instance_type=TYPE,
            image_id=self.image_id,
            subnet_id=self.subnet_id,
            security_group_ids=(self.security_group_id,),
            interfaces=interface_layout(TYPE),
            user_data="#!/bin/bash\n"
            '# quarterdeck-node: {"cluster": "alpha", "partition": "gpu", "gpu_type": "h100", "gpus": 8}\n'
            "echo boot\n",
            tags=self.tags,
        )

    def request(self, template: v.LaunchTemplate, count: int = 4, attempt: str = "1") -> v.LaunchRequest:
        return v.LaunchRequest(
            launch_template_id=template.provider_id,
            launch_template_version=template.version,
            count=count,
            client_token=f"{self.uid}-run-{attempt}",
            placement_group=self.name,
            tags={**self.tags, v.TAG_ATTEMPT: attempt},
        )

    def prepare(self, compute: Ec2Compute) -> v.LaunchTemplate:
        compute.placement_group_ensure(self.name, self.tags)
        return compute.launch_template_ensure(self.template(), f"{self.uid}-lt-1")

    def live(self, compute: Ec2Compute) -> list[v.Instance]:
        mine = compute.instances({v.TAG_UID: self.uid})
        return [i for i in mine if i.state not in ("shutting-down", "terminated")]

    def tear_down(self, compute: Ec2Compute) -> None:
        """In the reverse order of making, each step repeated until the thing is gone."""
        compute.terminate([i.provider_id for i in compute.instances({v.TAG_UID: self.uid})])

        def ended() -> bool:
            return all(i.state == "terminated" for i in compute.instances({v.TAG_UID: self.uid}))

        wait_for(ended, "instances terminated")
        for interface in compute.interfaces({v.TAG_UID: self.uid}):
            until_gone(lambda i=interface: compute.interface_delete(i.provider_id))
        for owned in compute.owned():
            if owned.uid == self.uid and owned.kind == "launch-template":
                until_gone(lambda o=owned: compute.launch_template_delete(o.provider_id))
        until_gone(lambda: compute.placement_group_delete(self.name))


def until_gone(delete: Callable[[], None], within_s: float = 15.0) -> None:
    ends_at = time.monotonic() + within_s
    while time.monotonic() < ends_at:
        try:
            delete()
        except errors.NotFound:
            return
        except errors.Conflict:
            pass
        time.sleep(0.05)
    pytest.fail(f"still there after {within_s} s")


class ComputeContract:
    """Subclasses give the fixtures ``compute`` and ``fleet``."""

    def test_identity(self, compute: Ec2Compute) -> None:
        who = compute.identity()
        assert len(who.account_id) == 12
        assert who.account_id in who.arn

    def test_placement_group_life(self, compute: Ec2Compute, fleet: Fleet) -> None:
        made = compute.placement_group_ensure(fleet.name, fleet.tags)
        again = compute.placement_group_ensure(fleet.name, fleet.tags)
        assert made == again
        assert (made.name, made.state) == (fleet.name, "available")
        assert made.tags[v.TAG_UID] == fleet.uid
        with pytest.raises(errors.Conflict) as refused:
            compute.placement_group_ensure(fleet.name, {v.TAG_UID: "someone-else"})
        assert fleet.uid in refused.value.message
        until_gone(lambda: compute.placement_group_delete(fleet.name))

    def test_things_without_our_tag_are_never_made(self, compute: Ec2Compute, fleet: Fleet) -> None:
        with pytest.raises(errors.InvalidRequest, match=v.TAG_UID):
            compute.placement_group_ensure(fleet.name, {"Name": "x"})
        with pytest.raises(errors.InvalidRequest, match=v.TAG_UID):
            compute.launch_template_ensure(replace(fleet.template(), tags={}), "token")
        with pytest.raises(errors.InvalidRequest, match="tag"):
            compute.instances({})

    def test_launch_template_ensure_twice(self, compute: Ec2Compute, fleet: Fleet) -> None:
        made = compute.launch_template_ensure(fleet.template(), f"{fleet.uid}-lt-1")
        same_token = compute.launch_template_ensure(fleet.template(), f"{fleet.uid}-lt-1")
        other_token = compute.launch_template_ensure(fleet.template(), f"{fleet.uid}-lt-2")
        assert made == same_token == other_token
        assert made.version == "1"
        stranger = replace(fleet.template(), tags={v.TAG_UID: "someone-else"})
        with pytest.raises(errors.Conflict):
            compute.launch_template_ensure(stranger, "another-token")
        with pytest.raises(errors.Conflict) as mismatch:
            compute.launch_template_ensure(replace(fleet.template(), root_volume_gib=600), f"{fleet.uid}-lt-1")
        assert mismatch.value.code == "IdempotentParameterMismatch"
        until_gone(lambda: compute.launch_template_delete(made.provider_id))

    def test_unknown_image_is_a_bad_request(self, compute: Ec2Compute, fleet: Fleet) -> None:
        with pytest.raises(errors.InvalidRequest, match="ami-0bad"):
            compute.launch_template_ensure(replace(fleet.template(), image_id="ami-0bad0000000000000"), "token")

    def test_fleet_life(self, compute: Ec2Compute, fleet: Fleet) -> None:
        template = fleet.prepare(compute)
        launched = compute.launch(fleet.request(template))
        assert len(launched) == 4
        assert {i.state for i in launched} == {"pending"}
        wait_for(lambda: all(i.state == "running" for i in compute.instances(fleet.tags)), "all running")
        seen = compute.instances(fleet.tags)
        assert {i.provider_id for i in seen} == {i.provider_id for i in launched}
        assert {i.placement_group for i in seen} == {fleet.name}
        assert len({i.name for i in seen}) == 4
        for instance in seen:
            assert instance.name == "ip-" + instance.private_ip.replace(".", "-")
            assert instance.zone_id
            assert instance.launched_at is not None
            assert instance.tags.items() >= fleet.tags.items()
        interfaces = compute.interfaces({v.TAG_UID: fleet.uid})
        assert len(interfaces) == 4 * 33
        assert {i.attempt for i in interfaces} == {"1"}
        with pytest.raises(errors.Conflict):
            compute.interface_delete(interfaces[0].provider_id)
        with pytest.raises(errors.Conflict):
            compute.placement_group_delete(fleet.name)
        kinds = [o.kind for o in compute.owned() if o.uid == fleet.uid]
        assert sorted(set(kinds)) == ["instance", "launch-template", "network-interface", "placement-group"]
        assert kinds.count("instance") == 4

        fleet.tear_down(compute)
        assert [o for o in compute.owned() if o.uid == fleet.uid] == []
        left = compute.instances({v.TAG_UID: fleet.uid})
        assert {i.state for i in left} <= {"terminated"}
        with pytest.raises(errors.NotFound):
            compute.launch_template_delete(template.provider_id)
        compute.terminate([i.provider_id for i in launched])

    def test_relaunch_with_the_same_token_makes_nothing_new(self, compute: Ec2Compute, fleet: Fleet) -> None:
        template = fleet.prepare(compute)
        request = fleet.request(template, count=2)
        first = compute.launch(request)
        second = compute.launch(request)
        assert {i.provider_id for i in first} == {i.provider_id for i in second}
        assert len(fleet.live(compute)) == 2
        with pytest.raises(errors.Conflict) as mismatch:
            compute.launch(replace(request, count=3))
        assert mismatch.value.code == "IdempotentParameterMismatch"
        compute.terminate([i.provider_id for i in first])
        with pytest.raises(errors.Conflict) as terminated:
            compute.launch(request)
        assert terminated.value.code == "IdempotentInstanceTerminated"
        assert len(compute.launch(fleet.request(template, count=1, attempt="2"))) == 1
        fleet.tear_down(compute)

    def test_terminate_survives_unknown_ids(self, compute: Ec2Compute, fleet: Fleet) -> None:
        template = fleet.prepare(compute)
        (one,) = compute.launch(fleet.request(template, count=1))
        compute.terminate(["i-0123456789abcdef0", one.provider_id])
        assert fleet.live(compute) == []
        compute.terminate(["i-0123456789abcdef0"])
        fleet.tear_down(compute)

    def test_launch_names_what_is_missing(self, compute: Ec2Compute, fleet: Fleet) -> None:
        template = fleet.prepare(compute)
        with pytest.raises(errors.InvalidRequest) as no_group:
            compute.launch(replace(fleet.request(template), placement_group="not-there"))
        assert "not-there" in no_group.value.message
        with pytest.raises(errors.InvalidRequest) as no_template:
            compute.launch(replace(fleet.request(template), launch_template_id="lt-0123456789abcdef0"))
        assert "lt-0123456789abcdef0" in no_template.value.message
        fleet.tear_down(compute)

    def test_preflight_passes(self, compute: Ec2Compute, fleet: Fleet) -> None:
        checks = compute.preflight(fleet.plan())
        assert [c.name for c in checks] == [
            "subnet",
            "instance-type-offered",
            "interfaces",
            "subnet-addresses",
            "security-groups",
            "image",
            "vcpu-quota",
            "permission-to-launch",
        ]
        assert [c for c in checks if not c.passed] == []

    def test_preflight_makes_nothing(self, compute: Ec2Compute, fleet: Fleet) -> None:
        before = len(compute.owned())
        compute.preflight(fleet.plan())
        assert len(compute.owned()) == before
