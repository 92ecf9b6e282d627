"""Kueue's objects in both versions, checked against their schemas, and drift told in words."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from tests.providers.kubernetes.schemas import faults
from worker.providers.errors import InvalidRequest
from worker.providers.kubernetes.kueue_objects import differences, objects, served_version
from worker.providers.kubernetes.kueue_values import (
    NEVER,
    VERSIONS,
    Arrangement,
    Flavor,
    Layers,
    Priority,
    Share,
    TeamQueue,
)

GPU = "nvidia.com/gpu"
LAYER = "topology.k8s.aws/network-node-layer-"


def shares(gpus: str, **limits: str) -> tuple[Share, ...]:
    return tuple(
        Share(flavor, resource, amount, **limits)
        for flavor in ("p5en-block", "p5-on-demand")
        for resource, amount in ((GPU, gpus), ("cpu", "768"), ("memory", "8Ti"))
    )


WANTED = Arrangement(
    flavors=(
        Flavor(
            "p5en-block",
            labels=(("node.kubernetes.io/instance-type", "p5en.48xlarge"),),
            taints=(("nvidia.com/gpu", "", "NoSchedule"), ("quarterdeck.dev/block", "cr-0a1b", "NoSchedule")),
            topology="aws",
        ),
        Flavor("p5-on-demand", labels=(("node.kubernetes.io/instance-type", "p5.48xlarge"),)),
    ),
    teams=(
        TeamQueue("Vision & Langage", "vision", ("team-vision",), shares("64", borrowing="32", lending="16"), "2"),
        TeamQueue("speech", "speech", ("team-speech", "team-speech-dev"), shares("32"), preemption=NEVER),
    ),
    cohort="research",
    priorities=(Priority("high", 1000, "Deadlines"), Priority("low", -10)),
    layers=(Layers("aws", (f"{LAYER}1", f"{LAYER}2", f"{LAYER}3", "kubernetes.io/hostname")),),
)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_one_that_the_server_takes(version):
    made = objects(WANTED, version)

    assert [fault for row in made for fault in faults(row)] == []
    assert {row["apiVersion"] for row in made} == {f"kueue.x-k8s.io/{version}"}
    assert [row["kind"] for row in made] == [
        "Topology",
        *["ResourceFlavor"] * 2,
        *["WorkloadPriorityClass"] * 2,
        "Cohort",
        *["ClusterQueue", "LocalQueue"],
        *["ClusterQueue", "LocalQueue", "LocalQueue"],
    ]


def test_the_cohort_has_the_name_of_its_version():
    queues = {version: objects(WANTED, version)[6]["spec"] for version in VERSIONS}

    assert queues["v1beta1"]["cohort"] == queues["v1beta2"]["cohortName"] == "research"
    assert "cohortName" not in queues["v1beta1"]
    assert "cohort" not in queues["v1beta2"]
    assert faults({**objects(WANTED, "v1beta2")[6], "apiVersion": "kueue.x-k8s.io/v1beta1"})


def test_shares_limits_and_weight_are_the_team_s():
    spec = objects(WANTED, "v1beta2")[6]["spec"]
    (group,) = spec["resourceGroups"]

    assert group["coveredResources"] == [GPU, "cpu", "memory"]
    assert [flavor["name"] for flavor in group["flavors"]] == ["p5en-block", "p5-on-demand"]
    assert group["flavors"][0]["resources"][0] == {
        "name": GPU,
        "nominalQuota": "64",
        "borrowingLimit": "32",
        "lendingLimit": "16",
    }
    assert spec["fairSharing"] == {"weight": "2"}
    assert spec["namespaceSelector"]["matchExpressions"][0]["values"] == ["team-vision"]


def test_without_a_cohort_nobody_reclaims():
    teams = tuple(replace(team, shares=shares("8")) for team in WANTED.teams)
    spec = objects(replace(WANTED, cohort="", teams=teams), "v1beta2")[5]["spec"]

    assert spec["preemption"]["reclaimWithinCohort"] == "Never"
    assert "fairSharing" not in spec


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"flavors": (Flavor("P5"),)}, "flavor 'P5' is no name"),
        ({"flavors": (*WANTED.flavors, Flavor("p5-on-demand"))}, "flavor 'p5-on-demand' is there twice"),
        ({"layers": ()}, "topology 'aws', which is not there"),
        ({"layers": (Layers("aws", ("kubernetes.io/hostname", "a")),)}, "before the last"),
        ({"cohort": ""}, "without a cohort nothing is lent or borrowed"),
        ({"teams": (TeamQueue("a", "a", ("a",), ()),)}, "no share of anything"),
        ({"teams": (TeamQueue("a", "a", (), shares("1")),)}, "queue 'a' has no namespace"),
        ({"teams": (TeamQueue("a", "a", ("a",), (Share("x", GPU, "1"),)),)}, "no such flavor"),
        ({"teams": (TeamQueue("a", "a", ("a",), shares("many")),)}, "'many', which is no quantity"),
        ({"teams": (TeamQueue("a", "a", ("a",), shares("-1")),)}, "below zero"),
        ({"teams": (TeamQueue("a", "a", ("a",), shares("1")[:4]),)}, "the same resources"),
        ({"teams": (TeamQueue("a", "a", ("a",), (*shares("1"), Share("p5en-block", GPU, "1"))),)}, "there twice"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(change, says):
    with pytest.raises(InvalidRequest, match=says):
        objects(replace(WANTED, **change), "v1beta2")


def test_the_newest_version_that_both_know():
    assert served_version(["v1alpha1", "v1beta1"]) == "v1beta1"
    assert served_version(["v1beta2", "v1beta1"]) == "v1beta2"
    with pytest.raises(InvalidRequest, match="v1, v2"):
        served_version(["v1", "v2"])


# --- drift -----------------------------------------------------------------------------------------


def stored(version: str = "v1beta2") -> list[dict]:
    """As a server gives them back: with uid and defaults, quantities in their own form."""
    found = copy.deepcopy([*objects(WANTED, version)])
    for row in found:
        row["metadata"] |= {"uid": "u", "resourceVersion": "7"}
        row["status"] = {}
    found[6]["spec"] |= {"flavorFungibility": {"whenCanBorrow": "MayStopSearch"}}
    found[6]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][2]["nominalQuota"] = "8192Gi"
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_drifted(version):
    assert differences(objects(WANTED, version), stored(version)) == []


def test_the_other_version_is_no_drift():
    assert differences(objects(WANTED, "v1beta2"), stored("v1beta1")) == []


def test_drift_is_told_in_words():
    found = stored()
    vision = found[6]["spec"]
    vision["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "128"
    vision["resourceGroups"][0]["flavors"][1]["resources"][0].pop("lendingLimit")
    vision["fairSharing"]["weight"] = "5"
    vision["stopPolicy"] = "Hold"
    found[8]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = "0"
    found[8]["spec"]["resourceGroups"][0]["flavors"].reverse()
    found[3]["value"] = 5
    found[1]["metadata"]["labels"] = {}
    del found[9]
    found.append({"kind": "ClusterQueue", "metadata": {"name": "old", "labels": found[0]["metadata"]["labels"]}})
    found.append({"kind": "ClusterQueue", "metadata": {"name": "theirs"}})

    assert [str(row) for row in differences(objects(WANTED, "v1beta2"), found)] == [
        "ResourceFlavor p5en-block: labels.app.kubernetes.io/managed-by is not set; wanted is quarterdeck.",
        "WorkloadPriorityClass high: value is 5; wanted is 1000.",
        "ClusterQueue vision: spec.resourceGroups[0].flavors[p5en-block].resources[nvidia.com/gpu].nominalQuota is "
        "128; wanted is 64.",
        "ClusterQueue vision: spec.resourceGroups[0].flavors[p5-on-demand].resources[nvidia.com/gpu].lendingLimit is "
        "not set; wanted is 16.",
        "ClusterQueue vision: spec.stopPolicy is Hold; wanted is None.",
        "ClusterQueue vision: spec.fairSharing.weight is 5; wanted is 2.",
        "ClusterQueue speech: spec.resourceGroups[0].flavors[p5en-block].resources[nvidia.com/gpu].borrowingLimit is "
        "0; wanted is none.",
        "ClusterQueue speech: spec.resourceGroups[0].flavors is p5-on-demand, p5en-block; wanted is p5en-block, "
        "p5-on-demand.",
        "LocalQueue team-speech/speech is missing.",
        "ClusterQueue old is no longer wanted.",
    ]
