"""Rules of clusters that AWS keeps and of their groups: every refusal stands at its field and says what would do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apps.clusters import group_rules, managed_rules, pcluster_rules
from apps.clusters.group_rules import Kept, TypeFacts, Wish
from apps.clusters.managed_rules import Place

PLACE = Place("acct_1", "research", "123456789012", "us-east-2")
P5EN = TypeFacts(is_on_demand=True, efa_interfaces=16)
UNSOLD = TypeFacts(is_on_demand=False, efa_interfaces=16)
ROLE = "arn:aws:iam::123456789012:role/nodes"
PROFILE = "arn:aws:iam::123456789012:instance-profile/AWSPCS-nodes"
SETTINGS: dict[str, dict[str, Any]] = {
    "pcs": {
        "version": "25.05",
        "size": "SMALL",
        "subnet_ids": ["subnet-0a1b"],
        "security_group_ids": ["sg-0a1b"],
        "idle_s": 600,
    },
    "eks": {
        "version": "1.34",
        "role_arn": ROLE,
        "subnet_ids": ["subnet-0a1b", "subnet-0a1c"],
        "security_group_ids": [],
        "admin_arns": ["arn:aws:iam::123456789012:role/admins"],
        "addons": ["vpc-cni"],
    },
    "hyperpod-slurm": {"subnet_ids": ["subnet-0a1b"], "security_group_ids": ["sg-0a1b"], "recovers": True},
    "hyperpod-eks": {
        "subnet_ids": ["subnet-0a1b"],
        "security_group_ids": ["sg-0a1b"],
        "recovers": True,
        "eks_cluster_arn": "arn:aws:eks:us-east-2:123456789012:cluster/pods",
    },
}
WISHES: dict[str, Wish] = {
    "pcs": Wish(
        name="train",
        instance_type="p5en.48xlarge",
        nodes=4,
        subnet_ids=("subnet-0a1b",),
        security_group_ids=("sg-0a1b",),
        image_id="ami-0a1b2c",
        role_arn=PROFILE,
        queue="train",
    ),
    "eks": Wish(
        name="train",
        instance_type="p5en.48xlarge",
        nodes=4,
        subnet_ids=("subnet-0a1b",),
        security_group_ids=("sg-0a1b",),
        role_arn=ROLE,
    ),
    "hyperpod-slurm": Wish(
        name="train",
        instance_type="p5en.48xlarge",
        nodes=4,
        role_arn=ROLE,
        queue="train",
        settings={"lifecycle_s3": "s3://sagemaker-research/hp/", "on_create": "on_create.sh", "node_type": "Compute"},
    ),
    "hyperpod-eks": Wish(
        name="train",
        instance_type="p5en.48xlarge",
        nodes=4,
        role_arn=ROLE,
        settings={"lifecycle_s3": "s3://sagemaker-research/hp/", "on_create": "on_create.sh"},
    ),
}
BLOCK = Kept("w48", "capacity-block", "acct_1", "p5en.48xlarge", 8, "ACTIVE", False, zone_id="use2-az1")


def asked(kind: str, *, kept: Kept | None = None, machine: TypeFacts | None = P5EN, version: str = "", **changes: Any):  # type: ignore[no-untyped-def]
    wish = replace(WISHES[kind], **changes)
    found = group_rules.wish_problems(kind, wish, place=PLACE, machine=machine, kept=kept, version=version)
    return {(p.pointer, p.code): p.detail for p in found}


CONFIG = """
Region: us-east-2
Image: {Os: ubuntu2204}
HeadNode: {InstanceType: m5.xlarge}
Scheduling:
  Scheduler: slurm
  SlurmQueues:
  - Name: train
    ComputeResources:
    - {Name: p5, InstanceType: p5.48xlarge, MinCount: 2, MaxCount: 4}
    - {Name: any, Instances: [{InstanceType: p5en.48xlarge}], MaxCount: 8}
"""
API = "https://abc.execute-api.us-east-2.amazonaws.com/prod"


@pytest.mark.parametrize(
    ("config", "api", "pointer", "words"),
    [
        ("", API, "/config", "paste the configuration"),
        ("a: [1", API, "/config", "not YAML"),
        ("- 1", API, "/config", "HeadNode and Scheduling"),
        ("a: " + "9" * 5000, API, "/config", "not YAML"),
        ("a: 2026-99-99", API, "/config", "not YAML"),
        ("[" * 5000, API, "/config", "not YAML"),
        ("a: 1", API, "/config", "Image, HeadNode, Scheduling is missing"),
        (CONFIG.replace("us-east-2", "us-west-2"), API, "/config", "it is for us-west-2"),
        (CONFIG.replace("Scheduler: slurm", "Scheduler: awsbatch"), API, "/config", "must be slurm"),
        (CONFIG.replace("SlurmQueues", "Queues"), API, "/config", "no queue"),
        (CONFIG.replace("MaxCount: 4", "MaxCount: .inf"), API, "/config", "no queue"),
        ("x" * 100_001, API, "/config", "longer than"),
        (CONFIG, "", "/pcluster_api_url", "execute-api.us-east-2"),
        (CONFIG, "https://evil.example/prod", "/pcluster_api_url", "execute-api.us-east-2"),
        (CONFIG, API.replace("https", "http"), "/pcluster_api_url", "https://"),
        (CONFIG, "https://a@abc.execute-api.us-east-2.amazonaws.com/", "/pcluster_api_url", "https://"),
    ],
)
def test_a_bad_configuration_of_parallelcluster_says_why(config: str, api: str, pointer: str, words: str) -> None:
    settings = {"config": config, "pcluster_api_url": api}
    found = managed_rules.settings_problems("parallelcluster", settings, PLACE)
    assert [p.pointer for p in found] == [pointer], found
    assert words in found[0].detail


def test_machines_of_a_configuration() -> None:
    assert managed_rules.settings_problems("parallelcluster", {"config": CONFIG, "pcluster_api_url": API}, PLACE) == []
    local = replace(PLACE, endpoint_url="http://127.0.0.1:4566")
    here = {"config": CONFIG, "pcluster_api_url": "http://127.0.0.1:4566/parallelcluster"}
    assert managed_rules.settings_problems("parallelcluster", here, local) == []
    found = [(m.name, m.instance_type, m.least, m.most) for m in pcluster_rules.machines(CONFIG)]
    assert found == [
        ("HeadNode", "m5.xlarge", 1, 1),
        ("train/p5", "p5.48xlarge", 2, 4),
        ("train/any", "p5en.48xlarge", 0, 8),
    ]
    assert pcluster_rules.machines("[") == []
    huge = pcluster_rules.machines(CONFIG.replace("MaxCount: 8", "MaxCount: 99999999999"))
    assert huge[-1].most == 10_000, "no sum that cannot be shown"
    assert pcluster_rules.machines("Scheduling: {SlurmQueues: [3]}") == []
    for endless in (".inf", "-.inf", ".nan"):
        for limit in ("MaxCount: 8", "MinCount: 2"):
            assert pcluster_rules.machines(CONFIG.replace(limit, f"{limit[:8]}: {endless}")) == []


@pytest.mark.parametrize("kind", sorted(SETTINGS))
def test_what_is_right_has_no_problem(kind: str) -> None:
    assert managed_rules.settings_problems(kind, SETTINGS[kind], PLACE) == []
    assert asked(kind) == {}


@pytest.mark.parametrize(
    ("kind", "changes", "pointer", "words"),
    [
        ("pcs", {"version": "23.02"}, "/version", "25.05"),
        ("pcs", {"size": "HUGE"}, "/size", "SMALL, MEDIUM, LARGE"),
        ("pcs", {"subnet_ids": ["subnet-0a1b", "subnet-0a1c"]}, "/subnet_ids", "exactly one subnet, these are 2"),
        ("pcs", {"subnet_ids": []}, "/subnet_ids", "at least 1"),
        ("pcs", {"subnet_ids": ["vpc-0a1b"]}, "/subnet_ids", "must start with subnet-"),
        ("pcs", {"security_group_ids": []}, "/security_group_ids", "at least 1"),
        ("pcs", {"idle_s": 0}, "/idle_s", "86400"),
        ("eks", {"version": "1.20"}, "/version", "1.34"),
        ("eks", {"subnet_ids": ["subnet-0a1b"]}, "/subnet_ids", "two subnets at least, in different zones"),
        ("eks", {"subnet_ids": ["subnet-0a1b", "subnet-0a1b"]}, "/subnet_ids", "named twice"),
        ("eks", {"role_arn": "admin"}, "/role_arn", "arn:aws:iam::123456789012:role/name"),
        ("eks", {"role_arn": "arn:aws:iam::999999999999:role/x"}, "/role_arn", "account 999999999999"),
        ("eks", {"admin_arns": []}, "/admin_arns", "nobody could reach"),
        ("eks", {"admin_arns": ["arn:aws:sts::123456789012:assumed-role/x/y"]}, "/admin_arns", "assumed-role"),
        ("eks", {"addons": ["cni"]}, "/addons", "vpc-cni"),
        ("hyperpod-eks", {"eks_cluster_arn": ""}, "/eks_cluster_arn", "arn:aws:eks:us-east-2"),
        (
            "hyperpod-eks",
            {"eks_cluster_arn": "arn:aws:eks:us-west-2:123456789012:cluster/pods"},
            "/eks_cluster_arn",
            "us-west-2; the account works in us-east-2",
        ),
        (
            "hyperpod-eks",
            {"eks_cluster_arn": "arn:aws:eks:us-east-2:999999999999:cluster/pods"},
            "/eks_cluster_arn",
            "account 999999999999",
        ),
        (
            "hyperpod-slurm",
            {"eks_cluster_arn": "arn:aws:eks:us-east-2:123456789012:cluster/pods"},
            "/eks_cluster_arn",
            "only HyperPod on EKS",
        ),
        ("hyperpod-slurm", {"security_group_ids": []}, "/security_group_ids", "at least 1"),
    ],
)
def test_bad_settings_are_named_at_their_field(kind: str, changes: dict[str, Any], pointer: str, words: str) -> None:
    found = managed_rules.settings_problems(kind, {**SETTINGS[kind], **changes}, PLACE)
    assert [p.pointer for p in found] == [pointer], found
    assert words in found[0].detail


@pytest.mark.parametrize(
    ("kind", "changes", "pointer", "words"),
    [
        ("pcs", {"name": "a-name-that-is-longer-than-25"}, "/name", "3–25"),
        ("pcs", {"name": "5train"}, "/name", "the first a letter"),
        ("eks", {"name": "x" * 64}, "/name", "1–63"),
        ("hyperpod-eks", {"name": "train_a"}, "/name", "1–63"),
        ("pcs", {"nodes": -1}, "/nodes", "from 0"),
        ("pcs", {"min_nodes": 5}, "/min_nodes", "from 0 to the number of nodes, 4"),
        ("eks", {"min_nodes": 1}, "/min_nodes", "only PCS"),
        ("pcs", {"role_arn": ROLE}, "/role_arn", "instance profile"),
        (
            "pcs",
            {"role_arn": "arn:aws:iam::123456789012:instance-profile/nodes"},
            "/role_arn",
            "begins with AWSPCS or that stand under /aws-pcs/",
        ),
        ("eks", {"role_arn": PROFILE}, "/role_arn", ":role/name"),
        ("pcs", {"image_id": ""}, "/image_id", "ami-"),
        ("eks", {"image_id": "ami-0a1b"}, "/image_id", "leave it empty"),
        ("eks", {"queue": "q"}, "/queue", "no queues"),
        ("pcs", {"queue": "q"}, "/queue", "3–25"),
        ("pcs", {"subnet_ids": ("subnet-0a1b", "subnet-0a1c")}, "/subnet_ids", "EFA does not cross zones"),
        ("eks", {"security_group_ids": ()}, "/security_group_ids", "reach each other, in and out"),
        ("hyperpod-slurm", {"source": "odcr"}, "/source", "on demand or a training plan"),
        ("hyperpod-eks", {"source": "capacity-block"}, "/source", "on demand or a training plan"),
        ("pcs", {"source": "training-plan"}, "/source", "on-demand, spot, odcr, capacity-block"),
        ("pcs", {"source": "capacity-block"}, "/reservation", "choose the reservation"),
        (
            "hyperpod-slurm",
            {"settings": {**WISHES["hyperpod-slurm"].settings, "lifecycle_s3": "s3://mine/x"}},
            "/lifecycle_s3",
            "s3://sagemaker-",
        ),
        (
            "hyperpod-slurm",
            {"settings": {**WISHES["hyperpod-slurm"].settings, "on_create": "rm -rf /"}},
            "/on_create",
            "on_create.sh",
        ),
        (
            "hyperpod-slurm",
            {"settings": {**WISHES["hyperpod-slurm"].settings, "node_type": "Worker"}},
            "/node_type",
            "Controller, Login, Compute",
        ),
        (
            "hyperpod-slurm",
            {"queue": "", "settings": {**WISHES["hyperpod-slurm"].settings, "node_type": "Controller"}},
            "/nodes",
            "exactly one controller",
        ),
    ],
)
def test_a_bad_group_is_named_at_its_field(kind: str, changes: dict[str, Any], pointer: str, words: str) -> None:
    found = asked(kind, **changes)
    assert [key[0] for key in found] == [pointer], found
    assert words in next(iter(found.values()))


def test_an_unknown_type_and_one_that_is_not_sold_on_demand() -> None:
    assert (
        "'p99.huge' is not in the catalog"
        in asked("pcs", instance_type="p99.huge", machine=None)[("/instance_type", "unknown")]
    )
    assert ("/instance_type", "not-on-demand") in asked("eks", instance_type="p5e.48xlarge", machine=UNSOLD)
    head = {**WISHES["hyperpod-slurm"].settings, "node_type": "Controller"}
    plain = {"settings": head, "nodes": 1, "queue": "", "machine": None}
    assert asked("hyperpod-slurm", instance_type="m5.xlarge", **plain) == {}
    assert "m5.xlarge" in asked("hyperpod-slurm", instance_type="x9.tiny", **plain)[("/instance_type", "unknown")]


@pytest.mark.parametrize(
    ("kept", "changes", "key", "words"),
    [
        ({"account_uid": "acct_2"}, {}, ("/reservation", "other-account"), "another account than research"),
        ({"kind": "odcr"}, {}, ("/reservation", "other-kind"), "Capacity Block"),
        ({"is_over": True, "phase": "EXPIRED"}, {}, ("/reservation", "over"), "Choose or book another"),
        ({"phase": "PAYMENT_PENDING"}, {}, ("/reservation", "not-live"), "wait until"),
        ({"instance_type": "p5.48xlarge"}, {}, ("/instance_type", "other-type"), "is for p5.48xlarge"),
        ({}, {"nodes": 9}, ("/nodes", "too-many"), "w48 has 8 machines"),
        ({"taken": 6, "used_by": "eval"}, {}, ("/nodes", "taken"), "6 are meant for eval"),
        ({}, {"subnet_ids": ("subnet-0a1b", "subnet-0a1c")}, ("/subnet_ids", "other-zone"), "use2-az1"),
    ],
)
def test_a_reservation_that_does_not_fit_says_how(
    kept: dict[str, Any], changes: dict[str, Any], key: tuple[str, str], words: str
) -> None:
    for kind in ("pcs", "eks"):
        found = asked(kind, kept=replace(BLOCK, **kept), source="capacity-block", **changes)
        assert list(found) == [key], (kind, found)
        assert words in found[key]


def test_a_reservation_that_fits_and_one_that_the_source_does_not_use() -> None:
    assert asked("eks", kept=BLOCK, source="capacity-block") == {}
    assert asked("pcs", kept=replace(BLOCK, phase="SCHEDULED"), source="capacity-block") == {}, "PCS attaches it early"
    plan = replace(BLOCK, kind="training-plan")
    assert asked("hyperpod-eks", kept=plan, source="training-plan") == {}
    assert ("/reservation", "not-here") in asked("pcs", kept=BLOCK)


def test_ultraservers_on_pcs() -> None:
    ultra = replace(BLOCK, kind="ultraserver-block", instance_type="p6e-gb200.36xlarge", instances=18)
    wish: dict[str, Any] = {"instance_type": "p6e-gb200.36xlarge", "source": "capacity-block", "machine": UNSOLD}
    assert asked("pcs", kept=ultra, version="25.05", **wish) == {}
    assert ("/instance_type", "old-slurm") in asked("pcs", kept=ultra, version="24.11", **wish)
    assert ("/queue", "required") in asked("pcs", kept=ultra, version="25.05", queue="", **wish)
    plain = replace(ultra, kind="capacity-block")
    assert ("/reservation", "not-ultraserver") in asked("pcs", kept=plain, version="25.05", **wish)
    shared = replace(ultra, taken=4, used_by="other")
    assert ("/reservation", "taken") in asked("pcs", kept=shared, version="25.05", **wish)


def test_sizes_of_pcs_name_the_smallest_that_fits() -> None:
    assert [managed_rules.size_for(n) for n in (0, 32, 33, 512, 513, 2048, 2049)] == [
        "SMALL",
        "SMALL",
        "MEDIUM",
        "MEDIUM",
        "LARGE",
        "LARGE",
        None,
    ]
    assert managed_rules.size_problem("MEDIUM", 512, is_made=False, pointer="/size") is None
    found = managed_rules.size_problem("SMALL", 64, is_made=False, pointer="/size")
    assert found is not None
    assert "smallest that fits is MEDIUM" in found.detail
    made = managed_rules.size_problem("SMALL", 64, is_made=True, pointer="/nodes")
    assert made is not None
    assert "cannot be changed" in made.detail
    over = managed_rules.size_problem("LARGE", 3000, is_made=False, pointer="/size")
    assert over is not None
    assert "two clusters" in over.detail


def test_groups_of_one_cluster_go_together() -> None:
    wish = WISHES["hyperpod-slurm"]
    head = replace(wish, name="controller", nodes=1, queue="", settings={**wish.settings, "node_type": "Controller"})

    def codes(kind: str, *wishes: Wish) -> list[tuple[str, str]]:
        return [(p.pointer, p.code) for p in group_rules.together_problems(kind, wishes)]

    assert codes("hyperpod-slurm", head, wish) == []
    assert codes("hyperpod-slurm", wish) == [("/groups", "controllers")]
    assert codes("hyperpod-slurm", head, replace(head, name="b"), wish) == [("/groups", "controllers")]
    assert codes("hyperpod-eks") == [("/groups", "required")]
    assert codes("pcs") == []
    assert codes("eks", WISHES["eks"], WISHES["eks"]) == [("/groups/1/name", "taken")]
    assert codes("pcs", WISHES["pcs"], replace(WISHES["pcs"], name="b")) == [("/groups/1/queue", "taken")]


@pytest.mark.parametrize(
    ("kind", "name", "is_right"),
    [
        ("pcs", "train", True),
        ("pcs", "1train", False),
        ("pcs", "x" * 41, False),
        ("pcs", "Train", False),
        ("eks", "1train", True),
        ("hyperpod-eks", "train-", False),
    ],
)
def test_names_of_clusters(kind: str, name: str, is_right: bool) -> None:
    assert (managed_rules.name_problems(kind, name) == []) is is_right


def test_what_cannot_be_made_says_what_to_do_instead() -> None:
    assert managed_rules.kind_problems("parallelcluster", is_adopted=False) == []
    assert managed_rules.kind_problems("parallelcluster", is_adopted=True) == []
    assert "by its address" in managed_rules.kind_problems("slurm", is_adopted=True)[0].detail
    assert "pcs" in managed_rules.kind_problems("nomad", is_adopted=False)[0].detail
    assert managed_rules.adoption_problems("hyperpod-slurm", "x" * 64)[0].pointer == "/name_at_provider"
    assert managed_rules.adoption_problems("eks", "my_cluster-1") == []
