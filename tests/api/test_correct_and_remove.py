"""Accounts and clusters are corrected and removed on their pages and by the API, by who may, and never under a user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.audit.models import Entry, Event
from apps.capacity.models import Reservation
from apps.clusters.fleet_services import fleet_create
from apps.clusters.models import Cluster, Fleet
from apps.clusters.selectors import capacities, cluster_sentence
from apps.clusters.services import cluster_create, cluster_update
from apps.connections.models import CloudAccount
from apps.connections.selectors import account_sentence
from apps.connections.services import AccountInUse, account_connect, account_observe, account_remove
from apps.core.errors import InvalidInput, TransitionConflict
from apps.intents.models import Intent
from tests.api.conftest import ApiClient
from tests.conftest import actor_of
from worker.collectors.housekeeping import keep_house
from worker.reconcilers import accounts as account_reconciler
from worker.reconcilers import clusters as cluster_reconciler
from worker.reconcilers import fleets as fleet_reconciler

pytestmark = pytest.mark.django_db

ROLE = "arn:aws:iam::123456789012:role/portal"


@pytest.fixture
def account(operator: Any) -> CloudAccount:
    """A connected account."""
    found = account_connect(actor=actor_of(operator), name="main", region="us-east-2", credentials_ref="env:AWS_MAIN")
    account_observe(found, account_id="123456789012", arn="arn:aws:sts::123456789012:assumed-role/x")
    found.refresh_from_db()
    return found


@pytest.fixture
def fleet(account: CloudAccount, cluster: Cluster) -> Fleet:
    """A fleet that AWS holds machines of."""
    Cluster.objects.filter(pk=cluster.pk).update(account=account)
    cluster.refresh_from_db()
    return Fleet.objects.create(
        cluster=cluster, name="p5", instance_type="p5.48xlarge", nodes=1, subnet_id="s", image_id="a", phase="READY"
    )


@pytest.fixture
def page_of() -> Callable[..., Client]:
    """A browser signed in as a person, or as nobody."""

    def make(user: Any = None, language: str = "en") -> Client:
        client = Client()
        client.cookies["django_language"] = language
        if user is not None:
            client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return make


def account_form(account: CloudAccount, **changes: Any) -> dict[str, Any]:
    names = ("name", "region", "endpoint_url", "credentials_ref", "role_arn", "external_id", "version")
    return {name: getattr(account, name) for name in names} | {"key": "k"} | changes


def cluster_form(cluster: Cluster, **changes: Any) -> dict[str, Any]:
    names = ("name", "api_url", "user_name", "token_ref", "partition", "exporter_url", "working_root", "version")
    data = {name: getattr(cluster, name) for name in names} | {"key": "k", "responds_to_findings": "on"}
    return data | {"account": cluster.account.uid if cluster.account else ""} | changes


def test_an_account_is_corrected_on_its_page(account: CloudAccount, operator: Any, page_of: Any) -> None:
    client = page_of(operator)
    address = reverse("connection-edit", args=[account.uid])
    page = client.get(address).content.decode()
    assert 'value="us-east-2"' in page
    assert 'value="env:AWS_MAIN"' in page
    Intent.objects.all().delete()
    answer = client.post(address, account_form(account, region="us-west-2", role_arn=ROLE, external_id="x-1"))
    assert (answer.status_code, answer["Location"]) == (302, reverse("connection", args=[account.uid]))
    account.refresh_from_db()
    assert (account.region, account.role_arn, account.external_id) == ("us-west-2", ROLE, "x-1")
    entry = Entry.objects.get(verb="account.update")
    assert entry.before == {"region": "us-east-2", "role_arn": "", "external_id": ""}
    assert entry.after == {"region": "us-west-2", "role_arn": ROLE, "external_id": "x-1"}
    assert Intent.objects.filter(kind="account.check", key=account.uid).exists()
    assert "asking AWS again" in account_sentence(account)
    account_observe(account, account_id="123456789012", arn="arn")
    account.refresh_from_db()
    assert "asking AWS again" not in account_sentence(account)
    assert "Changed: Region, Role to assume, External id" in client.get(answer["Location"]).content.decode()


def test_the_worker_assumes_the_role_with_its_external_id(
    account: CloudAccount, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker import doors

    seen: list[Any] = []
    monkeypatch.setattr("worker.providers.aws.Ec2Compute", seen.append)
    monkeypatch.setenv("AWS_MAIN", '{"access_key_id": "a", "secret_access_key": "b"}')
    CloudAccount.objects.filter(pk=account.pk).update(role_arn=ROLE, external_id="x-1")
    account.refresh_from_db()
    doors.compute_for(account)
    assert (seen[0].role_arn, seen[0].external_id) == (ROLE, "x-1")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("region", "ohio", "does not look like us-east-1"),
        ("credentials_ref", "AKIAIOSFODNN7EXAMPLE", "never the secret itself"),
        ("role_arn", "portal", "a role looks like"),
        ("external_id", "x-1", "only goes with a role"),
        ("name", "Main Account", "lower-case letters"),
        ("endpoint_url", "ftp://x", "must start with http"),
        ("name", "other", "already used"),
    ],
)
def test_a_bad_value_shows_at_its_field_and_changes_nothing(
    account: CloudAccount, operator: Any, page_of: Any, field: str, value: str, words: str
) -> None:
    CloudAccount.objects.create(name="other", region="us-east-1")
    answer = page_of(operator).post(
        reverse("connection-edit", args=[account.uid]), account_form(account, **{field: value})
    )
    assert answer.status_code == 422
    text = answer.content.decode()
    assert words in text
    assert f'value="{value}"' in text, "what was typed stays"
    fresh = CloudAccount.objects.get(pk=account.pk)
    assert getattr(fresh, field) == getattr(account, field)
    assert fresh.version == account.version
    assert not Entry.objects.filter(verb="account.update").exists()


def test_someone_elses_change_is_not_overwritten(account: CloudAccount, operator: Any, page_of: Any) -> None:
    client, form = page_of(operator), account_form(account)
    assert (
        client.post(reverse("connection-edit", args=[account.uid]), form | {"region": "us-west-2"}).status_code == 302
    )
    late = client.post(reverse("connection-edit", args=[account.uid]), form | {"region": "eu-west-1"})
    assert late.status_code == 412
    assert CloudAccount.objects.get(pk=account.pk).region == "us-west-2"


def test_region_stays_while_fleets_live_there(account: CloudAccount, fleet: Fleet, operator: Any, page_of: Any) -> None:
    client = page_of(operator)
    address = reverse("connection-edit", args=[account.uid])
    answer = client.post(address, account_form(account, region="us-west-2"))
    assert answer.status_code == 422
    assert "lab/p5" in answer.content.decode()
    assert client.post(address, account_form(account, credentials_ref="env:AWS_NEW")).status_code == 302
    Fleet.objects.update(phase="DELETED")
    account.refresh_from_db()
    assert client.post(address, account_form(account, region="us-west-2")).status_code == 302


def test_credentials_of_another_account_do_not_write_off_its_machines(
    account: CloudAccount, fleet: Fleet, operator: Any, page_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.doors.compute_for", lambda account: pytest.fail("asked before the account was checked"))
    page_of(operator).post(
        reverse("connection-edit", args=[account.uid]), account_form(account, credentials_ref="env:AWS_NEW")
    )
    fleet_reconciler.reconcile(fleet.uid)
    account.refresh_from_db()
    account_observe(account, account_id="210987654321", arn="arn")
    account.refresh_from_db()
    assert (account.phase, account.observed_account_id) == ("FAILED", "123456789012")
    assert "210987654321" in account.message
    fleet_reconciler.reconcile(fleet.uid)
    assert Fleet.objects.get(pk=fleet.pk).phase == "READY"
    Fleet.objects.update(phase="DELETED")
    account_observe(account, account_id="210987654321", arn="arn")
    assert CloudAccount.objects.get(pk=account.pk).observed_account_id == "210987654321"


def test_an_account_goes_only_when_nothing_hangs_on_it(
    account: CloudAccount, fleet: Fleet, operator: Any, page_of: Any
) -> None:
    client = page_of(operator)
    remove = reverse("connection-remove", args=[account.uid])
    page = client.get(reverse("connection", args=[account.uid])).content.decode()
    dialog = page[page.index('id="ask-remove"') :]
    assert reverse("fleet", args=[fleet.uid]) in dialog
    assert reverse("cluster", args=[fleet.cluster.uid]) in dialog
    assert "Remove the account" not in dialog
    answer = client.post(remove, {"typed": "main", "version": account.version})
    assert answer.status_code == 409
    assert "cluster lab, fleet lab/p5" in answer.content.decode()
    Fleet.objects.update(phase="DELETED")
    Cluster.objects.update(phase="DELETED")
    assert client.post(remove, {"typed": "mein", "version": account.version}).status_code == 422
    assert CloudAccount.objects.get(pk=account.pk).delete_requested_at is None
    assert client.post(remove, {"typed": "main", "version": account.version}).status_code == 302
    account.refresh_from_db()
    assert Entry.objects.get(verb="account.remove").before["region"] == "us-east-2"
    page = client.get(reverse("connection", args=[account.uid])).content.decode()
    assert "Being removed" in page
    assert 'id="ask-remove"' not in page
    account_reconciler.check(account.uid)
    account.refresh_from_db()
    assert account.phase == "REMOVED"
    Intent.objects.all().delete()
    keep_house()
    assert not Intent.objects.filter(key=account.uid).exists()


def test_a_removed_account_stays_readable_and_frees_its_name(
    account: CloudAccount, operator: Any, page_of: Any, as_user: Callable[..., ApiClient]
) -> None:
    account_remove(actor=actor_of(operator), account=account, expected_version=account.version)
    account_reconciler.check(account.uid)
    client = page_of(operator)
    page = client.get(reverse("connection", args=[account.uid]))
    assert page.status_code == 200
    assert "Removed" in page.content.decode()
    assert "hx-get" not in page.content.decode().partition('id="account-live"')[2].partition(">")[0]
    assert account.uid not in client.get(reverse("connections")).content.decode()
    assert account.uid in client.get(reverse("connections") + "?phase=REMOVED").content.decode()
    for name in ("connection-edit", "connection-remove", "connection-pause"):
        assert client.post(reverse(name, args=[account.uid]), {"version": 2}).status_code == 404, name
    assert as_user(operator).send("GET", f"accounts/{account.uid}").json()["phase"] == "REMOVED"
    account_connect(actor=actor_of(operator), name="main", region="us-east-2")


def test_nothing_is_hung_on_what_goes(account: CloudAccount, operator: Any, cluster: Cluster) -> None:
    actor = actor_of(operator)
    Cluster.objects.filter(pk=cluster.pk).update(account=account, delete_requested_at="2026-01-01T00:00:00Z")
    cluster.refresh_from_db()
    with pytest.raises(TransitionConflict):
        cluster_update(actor=actor, cluster=cluster, expected_version=1, partition="x")
    with pytest.raises(TransitionConflict):
        fleet_create(
            actor=actor,
            cluster=cluster,
            name="p5",
            instance_type="p5.48xlarge",
            nodes=1,
            subnet_id="subnet-1",
            security_group_ids=["sg-1"],
            image_id="ami-1",
        )
    Cluster.objects.update(account=None)
    account_remove(actor=actor, account=account, expected_version=account.version)
    common = {"user_name": "qd", "token_ref": "env:T", "working_root": "/fsx"}
    with pytest.raises(AccountInUse):
        cluster_create(actor=actor, name="new", api_url="http://127.0.0.1:9", account=account, **common)
    assert not Cluster.objects.filter(name="new").exists()


def test_a_cluster_is_corrected_on_its_page(
    cluster: Cluster, account: CloudAccount, operator: Any, page_of: Any
) -> None:
    client = page_of(operator)
    address = reverse("cluster-edit", args=[cluster.uid])
    assert 'value="http://127.0.0.1:9"' in client.get(address).content.decode()
    form = cluster_form(cluster, api_url="http://slurmctl:6820/", partition="batch", account=account.uid)
    answer = client.post(address, form)
    assert (answer.status_code, answer["Location"]) == (302, reverse("cluster", args=[cluster.uid]))
    fresh = Cluster.objects.get(pk=cluster.pk)
    assert (fresh.api_url, fresh.partition, fresh.account) == ("http://slurmctl:6820", "batch", account)
    entry = Entry.objects.get(verb="cluster.update")
    assert entry.before == {"account": None, "api_url": "http://127.0.0.1:9", "partition": "gpu"}
    assert entry.after == {"account": "main", "api_url": "http://slurmctl:6820", "partition": "batch"}
    assert Intent.objects.filter(kind="cluster.connect", key=cluster.uid).exists()
    assert "connecting again" in cluster_sentence(fresh, capacities([fresh])[0])
    page = client.get(answer["Location"]).content.decode()
    assert "Changed: Cloud account, Address of slurmrestd, Default partition" in page
    assert client.post(address, form).status_code == 412


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("api_url", "slurmctl:6820", "must start with http"),
        ("working_root", "fsx", "an absolute path"),
        ("token_ref", "eyJhbGciOi", "never the secret itself"),
        ("exporter_url", "http://node:9400", "{node}"),
        ("name", "Lab!", "lower-case letters"),
    ],
)
def test_a_bad_value_of_a_cluster(
    cluster: Cluster, operator: Any, page_of: Any, field: str, value: str, words: str
) -> None:
    answer = page_of(operator).post(
        reverse("cluster-edit", args=[cluster.uid]), cluster_form(cluster, **{field: value})
    )
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert getattr(Cluster.objects.get(pk=cluster.pk), field) == getattr(cluster, field)


def test_what_live_jobs_and_fleets_need_stays(
    job: Any, fleet: Fleet, account: CloudAccount, operator: Any, page_of: Any
) -> None:
    cluster, client = fleet.cluster, page_of(operator)
    address = reverse("cluster-edit", args=[cluster.uid])
    answer = client.post(address, cluster_form(cluster, working_root="/fsx"))
    assert answer.status_code == 422
    assert "1 job that has not ended keeps its files there" in answer.content.decode()
    answer = client.post(address, cluster_form(cluster, account=""))
    assert answer.status_code == 422
    assert "fleets live in it: p5" in answer.content.decode()
    assert client.post(address, cluster_form(cluster, token_ref="env:NEW")).status_code == 302


def test_a_cluster_goes_only_without_fleets_and_jobs_and_stays_readable(
    job: Any, fleet: Fleet, operator: Any, owner: Any, page_of: Any
) -> None:
    cluster, client = fleet.cluster, page_of(operator)
    remove, page = reverse("cluster-delete", args=[cluster.uid]), reverse("cluster", args=[cluster.uid])
    order = {"typed": "lab", "version": cluster.version}
    answer = client.post(remove, order)
    assert answer.status_code == 409
    assert "fleets: p5" in answer.content.decode()
    Fleet.objects.update(phase="DELETED")
    answer = client.post(remove, order)
    assert answer.status_code == 409
    assert "1 job on cluster lab has not ended" in answer.content.decode()
    assert "1 job there has not ended" in client.get(page).content.decode()
    type(job).objects.update(phase="CANCELLED", ended_at=job.created_at)
    assert client.post(remove, order | {"typed": ""}).status_code == 422
    assert client.post(remove, order).status_code == 302
    assert Entry.objects.get(verb="cluster.delete").before["api_url"] == cluster.api_url
    cluster_reconciler.connect(cluster.uid)
    for person in (operator, owner):
        shown = page_of(person).get(page)
        assert shown.status_code == 200
        assert "stay readable" in shown.content.decode()
        assert 'id="ask-delete"' not in shown.content.decode()
    assert Event.objects.filter(object_uid=cluster.uid, kind="ClusterDeleteRequested").exists()
    assert cluster.uid not in client.get(reverse("clusters")).content.decode()
    assert cluster.uid in client.get(reverse("clusters") + "?phase=DELETED").content.decode()
    assert client.get(reverse("job", args=[job.uid])).status_code == 200
    assert client.get(reverse("cluster-edit", args=[cluster.uid])).status_code == 404


def test_only_operators_change_and_remove(
    account: CloudAccount, cluster: Cluster, member: Any, outsider: Any, owner: Any, page_of: Any
) -> None:
    for about, names in (
        (account, ("connection-edit", "connection-remove")),
        (cluster, ("cluster-edit", "cluster-delete")),
    ):
        for name in names:
            address = reverse(name, args=[about.uid])
            body = {"typed": about.name, "version": about.version}
            assert page_of().post(address, body)["Location"].startswith("/accounts/login/"), name
            for person in (member, outsider, owner):
                assert page_of(person).post(address, body).status_code == 403, (name, person)
    assert CloudAccount.objects.get().delete_requested_at is None
    assert Cluster.objects.get().delete_requested_at is None
    shown = page_of(owner).get(reverse("cluster", args=[cluster.uid])).content.decode()
    assert reverse("cluster-edit", args=[cluster.uid]) not in shown


def test_the_api_corrects_and_removes(
    account: CloudAccount,
    cluster: Cluster,
    operator: Any,
    member: Any,
    outsider: Any,
    as_user: Callable[..., ApiClient],
) -> None:
    mine = as_user(operator)
    for path, body in (
        (f"accounts/{account.uid}", {"region": "us-west-2"}),
        (f"clusters/{cluster.uid}", {"partition": "batch", "account": "main"}),
    ):
        tag = mine.send("GET", path)["ETag"]
        assert as_user().send("PATCH", path, body, If_Match=tag).status_code == 401
        assert as_user().send("DELETE", path, If_Match=tag).status_code == 401
        for person in (member, outsider):
            assert as_user(person).send("PATCH", path, body, If_Match=tag).status_code == 403
            assert as_user(person).send("DELETE", path, If_Match=tag).status_code == 403
        assert mine.send("PATCH", path, body).status_code == 428
        assert mine.send("PATCH", path, {"phase": "READY"}, If_Match=tag).status_code == 422
        answer = mine.send("PATCH", path, body, If_Match=tag)
        assert answer.status_code == 200, answer.content
        assert answer.json().items() >= body.items()
        assert mine.send("PATCH", path, body, If_Match=tag).status_code == 412
    account_tag = mine.send("GET", f"accounts/{account.uid}")["ETag"]
    refused = mine.send("DELETE", f"accounts/{account.uid}", If_Match=account_tag)
    assert (refused.status_code, refused.json()["code"]) == (409, "AccountInUse")
    paused = mine.send("PATCH", f"accounts/{account.uid}", {"is_paused": True, "name": "prod"}, If_Match=account_tag)
    assert (paused.json()["is_paused"], paused.json()["name"]) == (True, "prod")
    tag = mine.send("GET", f"clusters/{cluster.uid}")["ETag"]
    assert mine.send("PATCH", f"clusters/{cluster.uid}", {"account": None}, If_Match=tag).json()["account"] is None
    removed = mine.send("DELETE", f"accounts/{account.uid}", If_Match=paused["ETag"])
    assert removed.status_code == 202
    assert removed.json()["delete_requested_at"]


def test_a_secret_typed_as_a_reference_is_never_kept(account: CloudAccount, operator: Any) -> None:
    from apps.connections.services import account_update

    with pytest.raises(InvalidInput) as refused:
        account_update(actor=actor_of(operator), account=account, expected_version=2, credentials_ref="AKIA-SECRET")
    assert "AKIA-SECRET" not in str(refused.value)
    assert not Entry.objects.filter(after__icontains="AKIA-SECRET").exists()


def test_only_an_administrator_lets_capacity_be_bought(as_user: Any, admin: Any, operator: Any) -> None:
    account = CloudAccount.objects.create(name="main", region="us-east-2", phase="CONNECTED")
    body = {"allows_purchases": True}
    refused = as_user(operator).send("PATCH", f"accounts/{account.uid}", body, If_Match='"1"')
    assert refused.status_code == 403, refused.content
    account.refresh_from_db()
    assert not account.allows_purchases
    answer = as_user(admin).send("PATCH", f"accounts/{account.uid}", body, If_Match='"1"')
    assert (answer.status_code, answer.json()["allows_purchases"]) == (200, True)


@pytest.mark.parametrize(("phase", "holds"), [("ACTIVE", True), ("EXPIRED", False)])
def test_an_account_with_reserved_capacity_stays(admin: Any, phase: str, holds: bool) -> None:
    account = CloudAccount.objects.create(name="main", region="us-east-2", phase="CONNECTED")
    Reservation.objects.create(
        account=account, kind="odcr", name="train", instance_type="p5.48xlarge", instances=1, phase=phase
    )
    if holds:
        with pytest.raises(AccountInUse, match="reservation train"):
            account_remove(actor=actor_of(admin), account=account, expected_version=1)
    else:
        account_remove(actor=actor_of(admin), account=account, expected_version=1)
