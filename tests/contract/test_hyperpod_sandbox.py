"""The contract of clusters that AWS keeps, against the sandbox's HyperPod, in their whole lives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sandbox.aws import AwsServer
from sandbox.world import World
from tests import cluster_site as at
from tests.cluster_site import (
    HEAD,
    KUBE_POD,
    POD,
    POD_GROUP,
    TYPE,
    active,
    aws,
    eventually,
    gone,
    group,
    nothing_left,
    plan,
)
from worker.providers import cluster_values as kv
from worker.providers import errors
from worker.providers import values as v
from worker.providers.aws.hyperpod import HyperPod

pytestmark = pytest.mark.contract


@pytest.fixture
def server(tmp_path: Any) -> Iterator[AwsServer]:
    server = AwsServer(World(), "127.0.0.1", 0, tmp_path, at.OPTIONS)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def pod(server: AwsServer) -> HyperPod:
    return HyperPod(at.access_of(server))


# --- HyperPod


def patched(server: AwsServer) -> None:
    client = aws(server, "sagemaker")
    client.update_cluster_software(ClusterName="lab")
    eventually(lambda: client.describe_cluster(ClusterName="lab")["ClusterStatus"] == "InService")


def test_hyperpod_whole_life(pod: HyperPod, server: AwsServer) -> None:
    first = pod.cluster_ensure(POD, "")
    assert pod.cluster_ensure(POD, "").provider_id == first.provider_id
    with pytest.raises(errors.InvalidRequest, match="not ours"):
        pod.cluster_ensure(replace(POD, tags={v.TAG_UID: "clu_2"}), "")
    seen = active(pod, POD)
    assert (seen.facts["orchestrator"], seen.facts["is_continuous"]) == ("Slurm", False)
    assert pod.prepare(seen, POD.settings, POD.tags, "NODES") == ""
    members = pod.members(seen)
    assert {(m.group, m.state, m.instance_type) for m in members} == {
        ("head", "running", "m5.2xlarge"),
        ("p5en", "running", TYPE),
    }
    # They are in no EC2 account.
    assert server.census()["instances"] == 0
    assert pod.happenings(seen, ()) == ()
    pod.group_resize(seen, replace(POD_GROUP, nodes=3), group(pod, seen), "")
    eventually(lambda: pod.cluster("lab").state == kv.ACTIVE and len(pod.members(seen)) == 4)
    grown = group(pod, seen)
    assert (grown.target_nodes, grown.settings["node_type"]) == (3, "Compute")
    assert grown.settings["request"]["SlurmConfig"]["PartitionNames"] == ["train"]
    more = replace(POD_GROUP, uid="grp_3", name="more", nodes=1)
    pod.group_ensure(seen, more, "")
    eventually(lambda: pod.cluster("lab").state == kv.ACTIVE)
    pod.group_ensure(seen, more, "")
    eventually(lambda: len(pod.members(seen)) == 5)
    pod.group_delete(seen, "more")
    with pytest.raises(errors.NotFound):
        pod.group_delete(seen, "more")
    eventually(lambda: pod.cluster("lab").state == kv.ACTIVE)
    pod.cluster_delete("lab")
    eventually(lambda: gone(pod))
    assert nothing_left(server)


@pytest.mark.parametrize(
    "name",
    [
        "p4d.24xlarge",
        "p4de.24xlarge",
        "p5.4xlarge",
        "p5.48xlarge",
        "p5e.48xlarge",
        "p5en.48xlarge",
        "p6-b200.48xlarge",
        "p6-b300.48xlarge",
        "p6e-gb200.36xlarge",
    ],
)
def test_hyperpod_takes_every_p_type(pod: HyperPod, name: str) -> None:
    pod.cluster_ensure(replace(POD, groups=(HEAD, replace(POD_GROUP, instance_type=name))), "")
    assert {g.instance_type for g in pod.groups(pod.cluster("lab"))} == {"m5.2xlarge", name}


def test_hyperpod_doubt_is_resolved_by_a_look(pod: HyperPod, server: AwsServer) -> None:
    server.world.fault_add("server-error", left=1, service="aws", operation="CreateCluster", shape="lost-reply")
    with pytest.raises(errors.Unavailable):
        pod.cluster_ensure(POD, "")
    assert pod.cluster_ensure(POD, "").tags[v.TAG_UID] == "clu_1"
    assert server.census()["hyperpod_clusters"] == 1


def test_hyperpod_batches_answer_for_each_node(pod: HyperPod, server: AwsServer) -> None:
    seen = active(pod, POD)
    before = {m.provider_id: m for m in pod.members(seen) if m.group == "p5en"}
    one, other = sorted(before)
    with pytest.raises(errors.InvalidRequest, match="UpdateClusterSoftware"):
        pod.nodes_act(seen, "replace", [one])
    patched(server)
    unknown = "i-0123456789abcdef0"
    answers = {a.provider_id: a for a in pod.nodes_act(seen, "replace", [one, unknown])}
    assert (answers[one].code, answers[unknown].code) == ("", "InstanceIdNotFound")
    after = eventually(lambda: m if all((m := pod.members(seen))[i].state == "running" for i in range(3)) else None)
    replaced = next(m for m in after if m.group == "p5en" and m.provider_id != other)
    # Another machine under the old name and address.
    assert replaced.provider_id != one
    assert replaced.name == before[one].name
    assert pod.nodes_act(seen, "reboot", [other])[0].code == ""
    assert pod.nodes_act(seen, "reboot", [other])[0].code == "InvalidInstanceStatus"
    with pytest.raises(errors.InvalidRequest, match="at most 25"):
        pod.nodes_act(seen, "reboot", [f"i-{n:017x}" for n in range(26)])


def test_hyperpod_without_capacity_or_with_a_broken_script(pod: HyperPod, server: AwsServer) -> None:
    server.world.fault_add("lifecycle-fails", left=1)
    pod.cluster_ensure(POD, "")
    failed = eventually(lambda: c if (c := pod.cluster("lab")).state == kv.FAILED else None)
    assert "Lifecycle scripts" in failed.failure
    assert pod.members(failed) == ()
    pod.cluster_delete("lab")
    eventually(lambda: gone(pod))


def test_hyperpod_climbs_to_its_count_and_tells_why_not(pod: HyperPod, server: AwsServer) -> None:
    fault = server.world.fault_add("group-no-capacity", group="p5en")
    seen = active(pod, KUBE_POD)
    assert seen.facts["is_continuous"]
    told = eventually(lambda: [h for h in pod.happenings(seen, ()) if h.level == "Error"])
    # A pair is told once, with the reason whichever of the two carried it.
    assert {(h.text, h.reason, len(h.twins)) for h in told} == {
        ("Insufficient capacity to add instances to the instance group.",) * 2 + (1,)
    }
    short = group(pod, seen)
    assert (short.state, short.current_nodes, short.target_nodes) == (kv.ACTIVE, 0, 2)
    assert "p5en 0/2" in pod.prepare(seen, KUBE_POD.settings, KUBE_POD.tags, "NODES")
    server.world.fault_clear(fault.uid)
    server.world.fault_add("lifecycle-fails", left=1, node=True)
    eventually(lambda: group(pod, seen).current_nodes == 2)
    failing = next(m for m in pod.members(seen) if m.state == "failing")
    assert "exited with status 1" in failing.message
    known = {i for h in pod.happenings(seen, ()) for i in (h.provider_id, *h.twins)}
    assert pod.happenings(seen, known) == ()


def test_hyperpod_reasons_are_asked_for_once(pod: HyperPod, server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.world.fault_add("group-no-capacity", group="p5en")
    seen = active(pod, KUBE_POD)
    asked: list[str] = []
    real = HyperPod._reason_of
    monkeypatch.setattr(
        HyperPod, "_reason_of", lambda self, c, event_id: asked.append(event_id) or real(self, c, event_id)
    )
    known: set[str] = set()
    reasons: list[str] = []
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        for happening in pod.happenings(seen, known):
            known |= {happening.provider_id, *happening.twins}
            reasons += [happening.reason] if happening.level == "Error" else []
        time.sleep(0.05)
    assert len(reasons) >= 2
    assert all(reasons)
    assert len(asked) == len(set(asked))


def test_hyperpod_uses_its_training_plan(pod: HyperPod, server: AwsServer) -> None:
    arn = plan(server, 3)
    client = aws(server, "sagemaker")
    spec = replace(POD, groups=(HEAD, replace(POD_GROUP, source="training-plan", reservation_id=arn)))
    with pytest.raises(errors.InvalidRequest, match="Scheduled|Pending"):
        pod.cluster_ensure(spec, "")
    row = server.services["sagemaker"].rows("plans")["plan"]
    server.world.advance(row["start"] - time.time() + 2)
    seen = active(pod, spec)
    used = client.describe_training_plan(TrainingPlanName="plan")
    assert (used["InUseInstanceCount"], used["AvailableInstanceCount"]) == (2, 1)
    assert group(pod, seen).source == "training-plan"
    with pytest.raises(errors.QuotaExceeded, match="has not"):
        pod.group_resize(seen, replace(POD_GROUP, nodes=4), group(pod, seen), "")
    pod.group_resize(seen, replace(POD_GROUP, nodes=3), group(pod, seen), "")
    assert client.describe_training_plan(TrainingPlanName="plan")["InUseInstanceCount"] == 3
    eventually(lambda: pod.cluster("lab").state == kv.ACTIVE)
    pod.cluster_delete("lab")
    eventually(lambda: gone(pod))
    assert client.describe_training_plan(TrainingPlanName="plan")["InUseInstanceCount"] == 0
