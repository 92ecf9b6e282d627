"""Clusters, fleets, connections, catalog: what they show and what their forms do."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.clusters.models import Cluster, Fleet
from apps.clusters.observations import fleet_move
from apps.connections.models import CloudAccount
from apps.intents.models import Intent
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]


def fleet_input(**changes: Any) -> dict[str, Any]:
    return {
        "key": uuid.uuid4().hex,
        "name": "p5-more",
        "instance_type": "p5.48xlarge",
        "nodes": "4",
        "subnet_id": "subnet-0a1b2c3d",
        "security_group_ids": "sg-0a1b2c3d, sg-0f0f0f0f",
        "image_id": "ami-0a1b2c3d",
        "partition": "",
        "team": "nlp",
        **changes,
    }


def test_cards_show_sentence_bar_and_age(sign_in: SignIn, more: DemoRows) -> None:
    text = sign_in("member").get("/clusters").content.decode()
    assert "Unreachable for" in text
    assert "from slurm" in text
    assert text.count("stack-bar") == 7, "those without GPUs have none"
    assert text.count(">shannon<") == text.count(">noether<") == 1
    only = sign_in("member").get("/clusters?phase=UNREACHABLE").content.decode()
    assert ">hopper<" in only
    assert ">ada<" not in only
    pcs = sign_in("member").get("/clusters?kind=pcs").content.decode()
    assert ">shannon<" in pcs
    assert ">ada<" not in pcs
    assert "No cluster matches" in sign_in("member").get("/clusters?q=zzz").content.decode()


def test_a_cluster_shows_its_fleets_nodes_and_jobs(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("member")
    ada = more.clusters["ada"].uid
    text = client.get(f"/clusters/{ada}").content.decode()
    assert "p5en-eval" in text
    assert 'hx-trigger="every 3s"' in text, "fleets in motion are watched closely"
    assert "New fleet" not in text, "a viewer may not launch"
    grid = client.get(f"/health/nodes-of/{ada}").content.decode()
    assert "p5-main-8" in grid
    assert 'class="sq-off"' in grid
    jobs = client.get(f"/jobs/on-cluster/{ada}").content.decode()
    assert "llama-70b-pretrain" in jobs
    assert "speech-encoder-large" not in jobs, "another team's job"


def test_the_preview_names_price_gpus_steps_and_checks(sign_in: SignIn, more: DemoRows) -> None:
    where = f"/clusters/{more.clusters['ada'].uid}/fleets/preview"
    text = sign_in("operator").post(where, fleet_input()).content.decode()
    assert "$220.16" in text
    assert "32 (4 × 8 H100)" in text
    assert "Launch for $220.16/h" in text
    assert "Preflight" in text
    assert "vCPU quota of the account" in text
    assert "<html" not in text
    sold = sign_in("operator").post(where, fleet_input(instance_type="p5e.48xlarge")).content.decode()
    assert "sold through reservations" in sold
    assert re.search(r"<button[^>]*disabled", sold)
    assert "Choose a type" in sign_in("operator").post(where, fleet_input(nodes="x")).content.decode()
    assert sign_in("owner").post(where, fleet_input()).status_code == 403


def test_a_launch_happens_once_however_often_it_is_clicked(sign_in: SignIn, more: DemoRows) -> None:
    client, where = sign_in("operator"), f"/clusters/{more.clusters['ada'].uid}/fleets/new"
    body = fleet_input()
    first, second = client.post(where, body), client.post(where, body)
    assert first.status_code == second.status_code == 302
    assert first["Location"] == second["Location"]
    fleet = Fleet.objects.get(name="p5-more")
    assert fleet.security_group_ids == ["sg-0a1b2c3d", "sg-0f0f0f0f"]
    assert fleet.team == more.teams["nlp"]
    assert Intent.objects.filter(kind="fleet.reconcile", key=fleet.uid).exists()
    text = client.get(first["Location"]).content.decode()
    assert "Accepted: 4 × p5.48xlarge" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"subnet_id": "net-1"}, "must start with subnet-"),
        ({"security_group_ids": "x"}, "each starting with sg-"),
        ({"nodes": "0"}, "greater than or equal to 1"),
        ({"name": "Über"}, "lower-case letters"),
        ({"instance_type": "p5e.48xlarge"}, "no published on-demand price"),
        ({"name": "p5-main"}, "already used"),
        ({"instance_type": "p99.huge"}, "p99.huge"),
    ],
)
def test_a_bad_launch_is_refused_at_its_field(
    sign_in: SignIn, more: DemoRows, changes: dict[str, str], words: str
) -> None:
    before = Fleet.objects.count()
    answer = sign_in("operator").post(f"/clusters/{more.clusters['ada'].uid}/fleets/new", fleet_input(**changes))
    assert answer.status_code == 422
    text = answer.content.decode()
    assert words in text
    assert "has-problem" in text
    assert 'value="ami-0a1b2c3d"' in text, "what was typed stays"
    assert Fleet.objects.count() == before


def test_a_failed_fleet_says_why_and_what_to_do(sign_in: SignIn, more: DemoRows) -> None:
    text = sign_in("operator").get(f"/fleets/{more.fleets['p5en-eval'].uid}").content.decode()
    assert "vCPU quota of the account" in text
    assert "is 768 vCPUs, 384 in use" in text
    assert "Nothing was started and nothing is billed" in text
    assert "Not reached" in text


def test_a_working_fleet_is_watched_and_a_deleted_one_is_not(sign_in: SignIn, more: DemoRows) -> None:
    client, fleet = sign_in("member"), more.fleets["g6-old"]
    assert 'hx-trigger="every 3s"' in client.get(f"/fleets/{fleet.uid}").content.decode()
    fleet_move(Fleet.objects.get(pk=fleet.pk), "DELETED", observed_nodes=0)
    text = client.get(f"/fleets/{fleet.uid}").content.decode()
    assert "hx-trigger" not in text[text.index('id="fleet-live"') : text.index("Provisioning steps")]
    assert "AWS holds nothing of it" in text


def test_deleting_a_fleet_takes_its_typed_name_and_its_version(sign_in: SignIn, more: DemoRows) -> None:
    client, fleet = sign_in("operator"), more.fleets["b200-try"]
    where = f"/fleets/{fleet.uid}/delete"
    page = client.get(f"/fleets/{fleet.uid}").content.decode()
    assert "data-must-equal" in page
    assert "This cannot be undone" in page
    assert client.post(where, {"version": fleet.version, "typed": "b200"}).status_code == 422
    assert client.post(where, {"version": fleet.version + 1, "typed": fleet.name}).status_code == 412
    assert client.post(where, {"typed": fleet.name}).status_code == 422
    assert sign_in("owner").post(where, {"version": fleet.version, "typed": fleet.name}).status_code == 403
    assert Fleet.objects.get(pk=fleet.pk).delete_requested_at is None
    assert client.post(where, {"version": fleet.version, "typed": fleet.name}).status_code == 302
    assert Fleet.objects.get(pk=fleet.pk).delete_requested_at is not None


def test_a_fleet_in_use_is_not_deleted(sign_in: SignIn, more: DemoRows) -> None:
    client, fleet = sign_in("operator"), Fleet.objects.get(name="p5-main")
    assert "Jobs run on p5-main-1" in client.get(f"/fleets/{fleet.uid}").content.decode()
    answer = client.post(f"/fleets/{fleet.uid}/delete", {"version": fleet.version, "typed": fleet.name})
    assert answer.status_code == 409
    assert "p5-main-1" in answer.content.decode()


def cluster_input(**changes: Any) -> dict[str, Any]:
    return {
        "key": uuid.uuid4().hex,
        "name": "turing",
        "api_url": "http://turing.internal:6820",
        "user_name": "portal",
        "token_ref": "file:slurm-turing",
        "working_root": "/fsx/jobs",
        "partition": "gpu",
        "account": "",
        "exporter_url": "",
        **changes,
    }


def test_a_cluster_is_connected_and_removed(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("operator")
    account = CloudAccount.objects.get(name="research")
    answer = client.post("/clusters/new", cluster_input(account=account.uid))
    assert answer.status_code == 302
    cluster = Cluster.objects.get(name="turing")
    assert cluster.account == account
    assert cluster.responds_to_findings is False, "an empty box is a no"
    where = f"/clusters/{cluster.uid}/delete"
    assert client.post(where, {"version": cluster.version, "typed": "ada"}).status_code == 422
    assert client.post(where, {"version": cluster.version, "typed": "turing"}).status_code == 302
    assert Cluster.objects.get(pk=cluster.pk).delete_requested_at is not None
    busy = more.clusters["ada"]
    assert client.post(f"/clusters/{busy.uid}/delete", {"version": 1, "typed": "ada"}).status_code == 409


def test_a_pasted_secret_is_refused_and_not_kept(sign_in: SignIn, more: DemoRows) -> None:
    answer = sign_in("operator").post("/clusters/new", cluster_input(token_ref="eyJhbGciOi.secret.token"))
    assert answer.status_code == 422
    assert "a name, never the secret itself" in answer.content.decode()
    assert not Cluster.objects.filter(name="turing").exists()


def test_an_account_is_connected_paused_and_used_again(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("operator")
    body = {"key": uuid.uuid4().hex, "name": "sandbox", "region": "us-east-1", "credentials_ref": "file:sandbox-aws"}
    body |= {"endpoint_url": "http://127.0.0.1:5600", "role_arn": ""}
    answer = client.post("/connections/new", body)
    assert answer.status_code == 302
    account = CloudAccount.objects.get(name="sandbox")
    page = client.get(answer["Location"]).content.decode()
    assert "asking AWS who it is" in page
    assert 'hx-trigger="every 3s"' in page
    assert client.post(f"/connections/{account.uid}/pause", {"version": 99}).status_code == 412
    assert client.post(f"/connections/{account.uid}/pause", {"version": account.version}).status_code == 302
    account.refresh_from_db()
    assert account.is_paused
    assert client.post(f"/connections/{account.uid}/resume", {"version": account.version}).status_code == 302
    assert not CloudAccount.objects.get(pk=account.pk).is_paused
    bad = client.post("/connections/new", {**body, "key": "x", "name": "other", "region": "mars"})
    assert bad.status_code == 422
    assert "does not look like us-east-1" in bad.content.decode()


def test_an_account_tells_its_identity_and_what_the_sweep_did(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("operator")
    research = CloudAccount.objects.get(name="research")
    text = client.get(f"/connections/{research.uid}").content.decode()
    assert "assumed-role/quarterdeck/portal" in text
    assert "network-interface eni-0f00ba4, which belonged to nothing, is gone" in text
    old = CloudAccount.objects.get(name="old-lab")
    assert "InvalidClientTokenId" in client.get(f"/connections/{old.uid}").content.decode()


def test_the_catalog_sorts_filters_and_compares(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("member")
    text = client.get("/catalog?sort=-gpu_price").content.decode()
    order = re.findall(r'<tr id="([^"]+)"', text)
    assert order[0] == "p6-b300.48xlarge"
    assert order.index("p5.48xlarge") < order.index("g6.xlarge")
    assert re.findall(r'<tr id="([^"]+)"', client.get("/catalog?gpu=H200").content.decode()) == [
        "p5e.48xlarge",
        "p5en.48xlarge",
    ]
    both = client.get("/catalog/compare?type=p5.48xlarge&type=p6-b300.48xlarge").content.decode()
    assert "32 EFA interfaces on cards 0–31" in both
    assert "16 EFA interfaces on cards 1–16; card 0 is ENA only" in both
    assert "2026-09-19" in both
    for query in ("", "?type=p5.48xlarge", "?type=p5.48xlarge&type=nope", "?type=" + ",".join(order[:5])):
        assert client.get(f"/catalog/compare{query}").status_code == 400


def test_a_form_without_its_token_changes_nothing(more: DemoRows, db: None) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(more.users["operator"], backend="django.contrib.auth.backends.ModelBackend")
    before = Fleet.objects.count()
    for path in (
        f"/clusters/{more.clusters['ada'].uid}/fleets/new",
        "/clusters/new",
        "/connections/new",
        f"/nodes/{more.nodes['p5-main-1'].uid}/drain",
        f"/findings/{more.findings['xid79'].uid}/resolve",
    ):
        assert client.post(path, fleet_input()).status_code == 403, path
    assert Fleet.objects.count() == before
