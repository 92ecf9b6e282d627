"""Clusters that AWS keeps: the forms that make, adopt, resize and delete them, and what their pages say."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.clusters.group_models import NodeAction, NodeGroup
from apps.clusters.models import Cluster, Node
from apps.connections.models import CloudAccount
from apps.intents.models import Intent
from tests.demo_clusters import CONFIG, PROFILE, ROLE
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]


def account() -> str:
    return str(CloudAccount.objects.get(name="research").uid)


def posted(kind: str, **changes: Any) -> dict[str, Any]:
    """What the form of a kind sends, with a group where it has one."""
    body: dict[str, Any] = {"key": uuid.uuid4().hex, "name": "lab-one", "account": account()}
    where = {"subnet_ids": "subnet-0a1b2c3d", "security_group_ids": "sg-0a1b2c3d"}
    group = {
        "group-name": "train",
        "group-instance_type": "p5.48xlarge",
        "group-nodes": "4",
        "group-source": "on-demand",
        "group-team": "nlp",
    }
    in_ec2 = {"group-subnet_ids": "subnet-0a1b2c3d", "group-security_group_ids": "sg-0a1b2c3d"}
    scripts = {"role_arn": ROLE, "lifecycle_s3": "s3://sagemaker-research/hp/", "on_create": "on_create.sh"}
    match kind:
        case "pcs":
            body |= {**where, **group, **in_ec2, "version": "25.05", "size": "SMALL", "idle_s": "600"}
            body |= {"group-role_arn": PROFILE, "group-image_id": "ami-0a1b2c3d", "group-queue": "train"}
        case "eks":
            body |= {**group, **in_ec2, "version": "1.34", "subnet_ids": "subnet-0a1b2c3d, subnet-0a1b2c3e"}
            body |= {"role_arn": ROLE, "admin_arns": "arn:aws:iam::123456789012:role/platform"}
            body |= {"addons": ["vpc-cni", "coredns"], "group-role_arn": ROLE, "group-repairs": "on"}
        case "hyperpod-slurm":
            body |= {**where, **group, **scripts, "controller_type": "m5.xlarge", "recovers": "on"}
            body |= {"group-queue": "train", "group-deep_checks": "on"}
        case "hyperpod-eks":
            body |= {**where, **group, **scripts, "recovers": "on"}
            body |= {"eks_cluster_arn": "arn:aws:eks:us-east-1:123456789012:cluster/pods"}
        case "parallelcluster":
            api = "https://abc.execute-api.us-east-1.amazonaws.com/prod"
            body |= {"config": CONFIG, "pcluster_api_url": api}
    return body | changes


@pytest.mark.parametrize("kind", ["pcs", "eks", "hyperpod-slurm", "hyperpod-eks", "parallelcluster"])
def test_each_kind_is_made_once_by_its_form(sign_in: SignIn, more: DemoRows, kind: str) -> None:
    client, body = sign_in("operator"), posted(kind)
    first, second = (client.post(f"/clusters/new/{kind}", body) for _ in range(2))
    assert first.status_code == second.status_code == 302, first.content.decode()
    assert first["Location"] == second["Location"]
    cluster = Cluster.objects.get(name="lab-one")
    assert (cluster.kind, cluster.phase, cluster.is_adopted) == (kind, "PENDING", False)
    assert Intent.objects.filter(kind="cluster.reconcile", key=cluster.uid).exists()
    groups = {g.name: g for g in NodeGroup.objects.filter(cluster=cluster)}
    expected = {"parallelcluster": set(), "hyperpod-slurm": {"controller", "train"}}.get(kind, {"train"})
    assert set(groups) == expected
    if groups:
        assert (groups["train"].nodes, groups["train"].team) == (4, more.teams["nlp"])
        assert groups["train"].usd_per_hour is not None
    match kind:
        case "pcs":
            assert cluster.settings["size"] == "SMALL"
            assert groups["train"].role_arn == PROFILE
        case "eks":
            assert cluster.settings["addons"] == ["vpc-cni", "coredns"]
            assert groups["train"].settings == {"repairs": True}
        case "hyperpod-slurm":
            assert groups["controller"].settings["node_type"] == "Controller"
            assert groups["train"].settings["lifecycle_s3"] == "s3://sagemaker-research/hp/"
            assert groups["train"].settings["deep_checks"] is True
        case "hyperpod-eks":
            assert cluster.settings["eks_cluster_arn"].endswith("cluster/pods")
        case _:
            assert cluster.settings["config"].startswith("Region: us-east-1")
    text = client.get(first["Location"]).content.decode()
    assert "Accepted" in text


@pytest.mark.parametrize(
    ("kind", "changes", "field", "words"),
    [
        ("pcs", {"group-nodes": "64"}, "size", "the smallest that fits is MEDIUM"),
        ("pcs", {"subnet_ids": "subnet-0a1b2c3d subnet-0a1b2c3e"}, "subnet_ids", "exactly one subnet"),
        ("pcs", {"group-role_arn": ROLE}, "group-role_arn", "instance-profile"),
        ("pcs", {"group-name": "1train"}, "group-name", "the first a letter"),
        ("pcs", {"group-image_id": "image"}, "group-image_id", "ami-"),
        ("pcs", {"name": "Über"}, "name", "lower-case letters"),
        ("pcs", {"name": "ada"}, "name", "already used"),
        ("pcs", {"user_name": "train"}, "working_root", "go together"),
        ("pcs", {"group-source": "capacity-block"}, "group-reservation", "choose the reservation"),
        ("pcs", {"group-instance_type": "p5e.48xlarge"}, "group-instance_type", "no published on-demand price"),
        ("eks", {"subnet_ids": "subnet-0a1b2c3d"}, "subnet_ids", "two subnets at least"),
        ("eks", {"admin_arns": "me"}, "admin_arns", "IAM role or user"),
        ("eks", {"role_arn": "arn:aws:iam::999999999999:role/x"}, "role_arn", "account 999999999999"),
        ("hyperpod-slurm", {"lifecycle_s3": "s3://mine/"}, "lifecycle_s3", "s3://sagemaker-"),
        ("hyperpod-slurm", {"group-name": ""}, "group-name", "required"),
        ("hyperpod-eks", {"eks_cluster_arn": "pods"}, "eks_cluster_arn", "ARN of an EKS cluster"),
        ("hyperpod-eks", {"role_arn": "x"}, "role_arn", "ARN"),
        ("parallelcluster", {"config": "a: ["}, "config", "not YAML"),
        ("parallelcluster", {"pcluster_api_url": "https://evil.example"}, "pcluster_api_url", "execute-api"),
    ],
)
def test_a_bad_form_is_refused_at_its_field(
    sign_in: SignIn, more: DemoRows, kind: str, changes: dict[str, str], field: str, words: str
) -> None:
    before = Cluster.objects.count()
    answer = sign_in("operator").post(f"/clusters/new/{kind}", posted(kind, **changes))
    assert answer.status_code == 422
    text = answer.content.decode()
    shown = text.split(f'id="{field}-problem"')[1].split("</p>")[0]
    assert words in shown
    # Fields may lie below the fold: the top says that there is something.
    assert text.count("Nothing was changed. Correct what is marked") == 1
    assert Cluster.objects.count() == before


def test_an_unknown_price_is_not_zero(sign_in: SignIn, more: DemoRows) -> None:
    body = posted("hyperpod-eks", **{"group-instance_type": "p5e.48xlarge"})
    text = sign_in("operator").post("/clusters/new/hyperpod-eks/plan", body).content.decode()
    assert "No price is known of p5e.48xlarge" in text
    assert "$0.00" not in text
    assert "Make it" in text


def test_without_a_group_nothing_is_launched(sign_in: SignIn, more: DemoRows) -> None:
    body = {k: v for k, v in posted("pcs").items() if not k.startswith("group-")} | {"group-name": ""}
    assert sign_in("operator").post("/clusters/new/pcs", body).status_code == 302
    assert not NodeGroup.objects.filter(cluster__name="lab-one").exists()


def test_the_plan_names_price_size_steps_and_what_aws_does(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("operator")
    text = client.post("/clusters/new/pcs/plan", posted("pcs", **{"group-min_nodes": "1"})).content.decode()
    assert "<html" not in text
    assert "$220.16" in text
    assert "$55.04/h while nothing waits" in text
    assert "Make it for $220.16/h" in text
    assert "about 10 min" in text
    assert "The size cannot be changed later" in text
    large = client.post("/clusters/new/pcs/plan", posted("pcs", **{"group-nodes": "64"})).content.decode()
    assert "the smallest that fits is MEDIUM" in large
    assert re.search(r"<button[^>]*disabled", large)
    pod = client.post("/clusters/new/hyperpod-slurm/plan", posted("hyperpod-slurm")).content.decode()
    assert "No price is known of m5.xlarge" in pod
    assert "SageMaker charges its own" in pod
    config = client.post("/clusters/new/parallelcluster/plan", posted("parallelcluster")).content.decode()
    assert "2–8 × p5.48xlarge" in config
    adopt = client.post("/clusters/adopt/eks/plan", {"name": "x", "account": account()}).content.decode()
    assert "nothing is made" in adopt
    assert "Adopt it" in adopt
    assert sign_in("owner").post("/clusters/new/pcs/plan", posted("pcs")).status_code == 403


def test_a_block_is_told_in_the_plan(sign_in: SignIn, more: DemoRows) -> None:
    from datetime import timedelta

    from apps.capacity.models import Reservation
    from apps.core import clock

    block = Reservation.objects.create(
        account=CloudAccount.objects.get(name="research"),
        kind="capacity-block",
        name="w60",
        instance_type="p5.48xlarge",
        instances=4,
        phase="SCHEDULED",
        provider_id="cr-60",
        start_at=clock.now() + timedelta(days=1),
        end_at=clock.now() + timedelta(days=3),
    )
    body = posted("eks", **{"group-source": "capacity-block", "group-reservation": block.uid})
    text = sign_in("operator").post("/clusters/new/eks/plan", body).content.decode()
    assert "begins with no nodes and grows when the block does" in text
    assert "40 minutes before the block ends" in text
    assert sign_in("operator").post("/clusters/new/eks", body).status_code == 302
    assert NodeGroup.objects.get(cluster__name="lab-one").reservation == block


def test_a_cluster_is_adopted_and_only_forgotten(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("operator")
    body = {"key": uuid.uuid4().hex, "name": "pods", "account": account(), "name_at_provider": "pods-prod"}
    answer = client.post("/clusters/adopt/eks", body)
    assert answer.status_code == 302, answer.content.decode()
    cluster = Cluster.objects.get(name="pods")
    assert cluster.is_adopted
    again = client.post("/clusters/adopt/eks", {**body, "key": "k2", "name": "pods-two"})
    assert "it is in the portal already, as pods" in again.content.decode()
    text = client.get(f"/clusters/{cluster.uid}").content.decode()
    assert "Being looked for in the account" in text
    assert "it goes on as it is, and goes on costing" in text
    assert client.post(f"/clusters/{cluster.uid}/delete", {"version": "1", "typed": "x"}).status_code == 422
    gone = client.post(f"/clusters/{cluster.uid}/delete", {"version": "1", "typed": "pods"})
    assert gone.status_code == 302
    cluster.refresh_from_db()
    assert cluster.delete_requested_at is not None


def test_the_page_shows_groups_health_facts_and_the_way_to_jobs(sign_in: SignIn, more: DemoRows) -> None:
    pcs = more.clusters["shannon"].uid
    text = sign_in("member").get(f"/clusters/{pcs}").content.decode()
    assert "InsufficientInstanceCapacity" in text
    assert "Other zones or a reservation help" in text
    assert "MEDIUM: up to 512 nodes and 8192 jobs" in text
    assert "secretsmanager" in text
    assert "New node group" not in text, "a viewer may not add"
    assert "$220.16/h" in text
    assert "New node group" in sign_in("operator").get(f"/clusters/{pcs}").content.decode()
    eks = sign_in("member").get(f"/clusters/{more.clusters['hamilton'].uid}").content.decode()
    assert "to submit jobs from the portal, let them in" in eks
    assert 'hx-trigger="every 3s"' in eks, "what moves is watched closely"
    assert "waiting for coredns" in eks
    hpc = sign_in("member").get(f"/clusters/{more.clusters['hpc-west'].uid}").content.decode()
    assert "m5.2xlarge" in hpc
    assert "SlurmQueues" in hpc
    assert "Jobs are submitted from the portal." in hpc


def test_money_of_a_group_is_shown_to_whom_it_concerns(sign_in: SignIn, more: DemoRows) -> None:
    group = NodeGroup.objects.get(cluster=more.clusters["shannon"], name="train")
    assert "$220.16" in sign_in("operator").get(f"/groups/{group.uid}").content.decode()
    assert "$220.16" not in sign_in("outsider").get(f"/groups/{group.uid}").content.decode()
    assert "$220.16" not in sign_in("outsider").get(f"/clusters/{group.cluster.uid}").content.decode()


def test_a_group_is_added_by_its_form(sign_in: SignIn, more: DemoRows) -> None:
    client, where = sign_in("operator"), f"/clusters/{more.clusters['shannon'].uid}/groups/new"
    page = client.get(where).content.decode()
    assert PROFILE in page, "filled from the newest group"
    body = {
        "key": uuid.uuid4().hex,
        "name": "more",
        "instance_type": "p5.48xlarge",
        "nodes": "8",
        "min_nodes": "0",
        "source": "on-demand",
        "queue": "more",
        "subnet_ids": "subnet-0a1b2c3d",
        "security_group_ids": "sg-0a1b2c3d",
        "role_arn": PROFILE,
        "image_id": "ami-0a1b2c3d",
    }
    plan = client.post(where.replace("/new", "/plan"), body).content.decode()
    assert "Add it for $440.32/h" in plan
    over = client.post(where, {**body, "nodes": "600"})
    assert over.status_code == 422
    assert "make a new cluster of size LARGE" in over.content.decode()
    first, second = client.post(where, body), client.post(where, body)
    assert first["Location"] == second["Location"]
    group = NodeGroup.objects.get(name="more")
    assert Intent.objects.filter(kind="group.reconcile", key=group.uid).exists()
    assert client.get(f"/clusters/{more.clusters['hpc-west'].uid}/groups/new").status_code == 404
    assert client.get(f"/clusters/{more.clusters['ada'].uid}/groups/new").status_code == 404


def test_a_login_group_is_added_without_gpus(sign_in: SignIn, more: DemoRows) -> None:
    client, cluster = sign_in("operator"), more.clusters["noether"]
    Cluster.objects.filter(pk=cluster.pk).update(phase="READY")
    where = f"/clusters/{cluster.uid}/groups/new"
    assert "ml.m5.xlarge" in client.get(where).content.decode()
    body = {
        "key": uuid.uuid4().hex,
        "name": "login",
        "instance_type": "m5.xlarge",
        "nodes": "1",
        "source": "on-demand",
        "node_type": "Login",
        "role_arn": ROLE,
        "lifecycle_s3": "s3://sagemaker-research/hp/",
        "on_create": "on_create.sh",
    }
    assert client.post(where, body).status_code == 302
    assert NodeGroup.objects.get(cluster=cluster, name="login").settings["node_type"] == "Login"


def test_a_group_is_resized_and_deleted(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("operator")
    group = NodeGroup.objects.get(cluster=more.clusters["shannon"], name="eval")
    where = f"/groups/{group.uid}"
    refused = client.post(f"{where}/resize", {"version": group.version, "nodes": "900", "min_nodes": "0"})
    assert refused.status_code == 422
    assert "data-open" in refused.content.decode(), "the form is open with what was wrong"
    done = client.post(f"{where}/resize", {"version": group.version, "nodes": "4", "min_nodes": "1"})
    assert done.status_code == 302
    group.refresh_from_db()
    assert (group.nodes, group.min_nodes) == (4, 1)
    assert client.post(f"{where}/resize", {"version": "1", "nodes": "5", "min_nodes": "1"}).status_code == 412
    assert client.post(f"{where}/delete", {"version": group.version, "typed": "x"}).status_code == 422
    gone = client.post(f"{where}/delete", {"version": group.version, "typed": "eval"})
    assert gone.status_code == 302
    group.refresh_from_db()
    assert group.delete_requested_at is not None
    text = client.get(where).content.decode()
    assert "Being deleted; its machines go with it." in text
    assert "Resize…" not in text
    assert sign_in("owner").post(f"{where}/delete", {"version": "1", "typed": "eval"}).status_code == 403


def test_nodes_are_replaced_after_a_look_at_what_it_means(sign_in: SignIn, more: DemoRows) -> None:
    client, cluster = sign_in("operator"), more.clusters["lovelace"]
    where = f"/clusters/{cluster.uid}/nodes/ask"
    nodes = list(Node.objects.filter(cluster=cluster, phase="READY").order_by("name")[:2])
    chosen = [n.uid for n in nodes]
    review = client.post(where, {"review": "1", "verb": "replace", "node": chosen})
    text = review.content.decode()
    assert review.status_code == 200
    assert "volumes are wiped" in text
    assert f"Jobs run on {nodes[0].name}, {nodes[1].name}" in text
    assert "Replace 2 nodes" in text
    key = re.search(r'name="key" value="([0-9a-f]+)"', text)
    assert key is not None
    before = NodeAction.objects.count()
    silent = client.post(where, {"key": key[1], "verb": "replace", "node": chosen, "reason": ""})
    assert silent.status_code == 422
    assert NodeAction.objects.count() == before
    body = {"key": key[1], "verb": "replace", "node": chosen, "reason": "XID 79"}
    assert client.post(where, body).status_code == 302
    assert client.post(where, body).status_code == 302
    assert NodeAction.objects.filter(reason="XID 79").count() == 2, "once, however often it is clicked"
    assert Intent.objects.filter(kind="node.act", key=cluster.uid).exists()
    page = client.get(f"/clusters/{cluster.uid}").content.decode()
    assert "InvalidInstanceStatus: the node is being replaced already" in page
    empty = client.post(where, {"review": "1", "verb": "reboot"}).content.decode()
    assert "No node is chosen" in empty
    assert sign_in("owner").post(where, body).status_code == 403


def test_a_failed_cluster_offers_another_try(sign_in: SignIn, more: DemoRows) -> None:
    client, cluster = sign_in("operator"), more.clusters["noether"]
    text = client.get(f"/clusters/{cluster.uid}").content.decode()
    assert "Failed 48 min ago." in text
    assert "LifecycleScriptFailed" in text
    assert "Not reached" in text
    assert "Try again" not in sign_in("member").get(f"/clusters/{cluster.uid}").content.decode()
    assert client.post(f"/clusters/{cluster.uid}/retry", {"version": cluster.version}).status_code == 302
    assert "Another try has been asked for." in client.get(f"/clusters/{cluster.uid}").content.decode()


def test_how_jobs_are_submitted_is_corrected(sign_in: SignIn, more: DemoRows) -> None:
    client, cluster = sign_in("operator"), more.clusters["shannon"]
    where = f"/clusters/{cluster.uid}/edit"
    body = {"version": cluster.version, "name": "shannon", "user_name": "portal", "token_ref": "env:SLURM"}
    refused = client.post(where, body)
    assert refused.status_code == 422
    assert "go together" in refused.content.decode()
    assert client.post(where, {**body, "working_root": "/fsx/jobs"}).status_code == 302
    cluster.refresh_from_db()
    assert cluster.takes_jobs, "with the address that AWS told"
    eks = more.clusters["hamilton"]
    assert client.post(f"/clusters/{eks.uid}/edit", {"version": eks.version, "name": "hamilton-2"}).status_code == 302


def test_a_cluster_is_deleted_with_what_goes_said(sign_in: SignIn, more: DemoRows) -> None:
    client, cluster = sign_in("operator"), more.clusters["hamilton"]
    text = client.get(f"/clusters/{cluster.uid}").content.decode()
    assert "1 node group goes, with its queue and launch template." in text
    busy = client.post(
        f"/clusters/{more.clusters['shannon'].uid}/delete",
        {"version": more.clusters["shannon"].version, "typed": "shannon"},
    )
    assert busy.status_code == 409, "jobs run on its nodes"
    assert "train-1" in busy.content.decode()
    done = client.post(f"/clusters/{cluster.uid}/delete", {"version": cluster.version, "typed": "hamilton"})
    assert done.status_code == 302
    page = client.get(f"/clusters/{cluster.uid}").content.decode()
    assert "Being deleted: queues, then groups" in page
    assert "ask-delete" not in page


def test_a_new_cluster_begins_with_its_kind(sign_in: SignIn, more: DemoRows) -> None:
    text = sign_in("operator").get("/clusters/new").content.decode()
    for kind in ("pcs", "eks", "hyperpod-slurm", "hyperpod-eks", "parallelcluster"):
        assert f'href="/clusters/new/{kind}"' in text
    adopting = sign_in("operator").get("/clusters/adopt/pcs").content.decode()
    assert 'href="/clusters/adopt/eks"' in adopting, "the choice to adopt stays"
    assert sign_in("operator").get("/clusters/new/nomad").status_code == 404
    assert sign_in("operator").get("/clusters/new/slurm").status_code == 404


def test_operators_are_told_at_home_what_failed(sign_in: SignIn, more: DemoRows) -> None:
    text = sign_in("operator").get("/").content.decode()
    assert f"/clusters/{more.clusters['noether'].uid}" in text
    assert f"/clusters/{more.clusters['noether'].uid}" not in sign_in("owner").get("/").content.decode()


def test_machines_of_such_a_cluster_come_in_groups(sign_in: SignIn, more: DemoRows) -> None:
    uid = more.clusters["shannon"].uid
    answer = sign_in("operator").get(f"/clusters/{uid}/fleets/new")
    assert answer["Location"] == f"/clusters/{uid}/groups/new"
