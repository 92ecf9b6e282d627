"""Default deny: every address of the API for anonymous, outsider, member without the right, and owner."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import URLPattern, get_resolver

from apps.capacity.models import OfferingSearch, Purchase, Reservation
from apps.capacity.orphan_models import Orphan
from apps.checkpoints.models import Checkpoint
from apps.clusters.group_models import NodeGroup
from apps.clusters.kube_models import KubernetesSettings, TeamNamespace, TeamShare
from apps.clusters.models import Cluster, Fleet, Mount, Node, PreflightRun
from apps.clusters.slurm_models import SlurmAccount, SlurmUser
from apps.connections.models import CloudAccount
from apps.core.api import Endpoint
from apps.core.pages import PUBLIC
from apps.health.models import Finding
from apps.jobs.models import JobTemplate
from apps.jobs.template_rules import Content
from apps.jobs.template_services import template_create
from apps.storage.models import FileSystem, RepositoryAssociation
from apps.teams.permissions import system_actor

pytestmark = pytest.mark.django_db


def endpoints() -> list[tuple[str, type[Endpoint], dict[str, Any]]]:
    """(path, class, initkwargs) of every API address, found by walking the URLs."""
    from portal import api_urls

    found = []
    for pattern in api_urls.urlpatterns:
        assert isinstance(pattern, URLPattern)
        view = getattr(pattern.callback, "cls", None)
        if view is not None:
            found.append((str(pattern.pattern), view, getattr(pattern.callback, "initkwargs", {})))
    return found


def test_every_endpoint_declares_rights_from_the_table() -> None:
    from apps.core.pages import SIGNED_IN
    from apps.teams.permissions import ALL_RIGHTS

    assert len(endpoints()) > 35
    for path, view, _kwargs in endpoints():
        methods = {m.upper() for m in ("get", "post", "put", "patch", "delete") if hasattr(view, m)}
        assert methods == set(view.rights), path
        for right in view.rights.values():
            assert right in ALL_RIGHTS | {SIGNED_IN, PUBLIC}, path


def test_no_address_outside_the_api_is_open_by_accident(client: Any) -> None:
    """Walks every URL of the portal without arguments: nothing but the public ones answers a stranger."""
    public = {"healthz", "readyz", "metrics", "account_login", "account_logout", "account_signup", "set_language"}
    for pattern in get_resolver().url_patterns:
        for name, path in _flat(pattern):
            if name is None or "<" in path or name in public or path.startswith(("api/", "admin/", "accounts/")):
                continue
            answer = client.get(f"/{path}")
            assert answer.status_code in (302, 401, 403, 404, 405), (name, path, answer.status_code)
            if answer.status_code == 302:
                assert "/accounts/login/" in answer["Location"], (name, path)


def _flat(pattern: Any, prefix: str = "") -> list[tuple[str | None, str]]:
    here = prefix + str(pattern.pattern)
    if isinstance(pattern, URLPattern):
        return [(pattern.name, here)]
    return [row for inner in pattern.url_patterns for row in _flat(inner, here)]


@pytest.fixture
def things(job: Any, cluster: Any) -> dict[str, str]:
    """One of everything, by the word its address uses."""
    account = CloudAccount.objects.create(name="main", region="us-east-2", phase="CONNECTED")
    fleet = Fleet.objects.create(
        cluster=cluster, name="f", instance_type="p5.48xlarge", nodes=1, subnet_id="s", image_id="a", phase="READY"
    )
    node = Node.objects.filter(cluster=cluster).first()
    finding = Finding.objects.create(node=node, source="xid", code="79", title="XID 79", severity="reboot")
    checkpoint = Checkpoint.objects.create(
        series=job.series, attempt_uid="a", path="/c/step-1", step=1, state="COMPLETE"
    )
    file_system = FileSystem.objects.create(account=account, name="scratch", phase="AVAILABLE", provider_id="fs-1")
    association = RepositoryAssociation.objects.create(file_system=file_system, path="/c", repository="s3://b/c/")
    mount = Mount.objects.create(cluster=cluster, kind="nvme", path="/scratch", purpose="scratch")
    reservation = Reservation.objects.create(
        account=account, kind="odcr", instance_type="p5.48xlarge", instances=1, phase="ACTIVE", provider_id="cr-1"
    )
    search = OfferingSearch.objects.create(account=account, kind="capacity-block", criteria={}, asked_by="user:0")
    purchase = Purchase.objects.create(
        account=account,
        kind="capacity-block",
        name="b",
        instance_type="p5.48xlarge",
        instances=1,
        key="k",
        requested_by="user:0",
    )
    orphan = Orphan.objects.create(account=account, kind="instance", provider_id="i-1", tagged_uid="flt_gone")
    check = PreflightRun.objects.create(cluster=cluster, spec={}, asked_by="someone")
    kept = Cluster.objects.create(name="kept", kind="hyperpod-eks", account=account, phase="READY")
    group = NodeGroup.objects.create(cluster=kept, name="g", instance_type="p5.48xlarge", nodes=1, phase="ACTIVE")
    pods = Cluster.objects.create(name="pods", kind="kubernetes", phase="READY")
    KubernetesSettings.objects.create(cluster=pods, auth="kubeconfig", kubeconfig_ref="file:kubeconfig")
    namespace = TeamNamespace.objects.create(cluster=pods, team=job.team, namespace="train")
    share = TeamShare.objects.create(cluster=pods, team=job.team, instance_type="p5.48xlarge", gpus=8)
    slurm_user = SlurmUser.objects.create(cluster=cluster, user_name="u1")
    slurm_account = SlurmAccount.objects.create(cluster=cluster, account="a1", team=job.team)
    return {
        "kubernetes-clusters": pods.uid,
        "team-namespaces": namespace.uid,
        "team-shares": share.uid,
        "slurm-users": slurm_user.uid,
        "slurm-accounts": slurm_account.uid,
        "managed-clusters": kept.uid,
        "groups": group.uid,
        "reservations": reservation.uid,
        "offering-searches": search.uid,
        "purchases": purchase.uid,
        "orphans": orphan.uid,
        "preflights": check.uid,
        "file-systems": file_system.uid,
        "associations": association.uid,
        "mounts": mount.uid,
        "jobs": job.uid,
        "accounts": account.uid,
        "clusters": cluster.uid,
        "fleets": fleet.uid,
        "nodes": node.uid,
        "findings": finding.uid,
        "checkpoints": checkpoint.uid,
        "slug": job.team.slug,
        "templates": keep_template(job.team).name,
        "tokens": "tok_none",
    }


def keep_template(team: Any) -> JobTemplate:
    """A template of one team with one version."""
    content = Content(title="Kept by train", script="#!/bin/bash\ntrue\n")
    return template_create(actor=system_actor(), name="kept", teams=[team], content=content)


def cases() -> list[tuple[str, str, str]]:
    """(path template, method, right) of everything that takes a right."""
    return [
        (path, method, right)
        for path, view, _kwargs in endpoints()
        for method, right in view.rights.items()
        if right != PUBLIC
    ]


def address(path: str, things: dict[str, str]) -> str:
    kind = path.split("/")[0]
    path = path.replace("<int:number>", "1")
    return path.replace("<str:uid>", things.get(kind, "x")).replace("<slug:slug>", things["slug"])


@pytest.mark.parametrize(("path", "method", "right"), cases())
def test_anonymous_is_told_to_authenticate(as_user: Any, things: Any, path: str, method: str, right: str) -> None:
    answer = as_user().send(method, address(path, things), {})
    assert answer.status_code == 401
    assert answer["Content-Type"] == "application/problem+json"
    assert answer["WWW-Authenticate"].startswith("Bearer")


TEAM_OBJECTS = ("jobs/<str:uid>", "checkpoints/<str:uid>", "teams/<slug:slug>", "templates/<str:uid>")


@pytest.mark.parametrize(("path", "method", "right"), [c for c in cases() if c[0].startswith(TEAM_OBJECTS)])
def test_an_outsider_sees_nothing_of_another_team(
    as_user: Any, outsider: Any, things: Any, path: str, method: str, right: str
) -> None:
    answer = as_user(outsider).send(method, address(path, things), {})
    assert answer.status_code in (403, 404), answer.content
    if right in ("jobs.view", "checkpoints.view", "jobs.cancel", "costs.view", "quotas.view"):
        assert answer.status_code == 404
    assert b"train" not in answer.content


DRY_RUNS = ("jobs/preview", "jobs/candidates")
WRITES = [c for c in cases() if c[1] != "GET" and not c[0].startswith("tokens") and c[0] not in DRY_RUNS]


@pytest.mark.parametrize(("path", "method", "right"), WRITES)
def test_a_viewer_changes_nothing(as_user: Any, member: Any, things: Any, path: str, method: str, right: str) -> None:
    answer = as_user(member).send(method, address(path, things), {}, Idempotency_Key="k", If_Match='"1"')
    assert answer.status_code == 403, (path, answer.content)


@pytest.mark.parametrize(("path", "method", "right"), [c for c in cases() if c[1] == "GET"])
def test_a_scope_less_token_reads_nothing_but_itself(
    as_user: Any, admin: Any, things: Any, path: str, method: str, right: str
) -> None:
    answer = as_user(admin, scopes=["templates.view"]).send(method, address(path, things))
    allowed = right in ("templates.view", "signed-in")
    assert answer.status_code == (200 if allowed else 403), (path, answer.content)


@pytest.mark.parametrize(("path", "method", "right"), [c for c in cases() if c[1] == "GET"])
def test_an_administrator_reads_everything(
    as_user: Any, admin: Any, things: Any, path: str, method: str, right: str
) -> None:
    answer = as_user(admin).send(method, address(path, things))
    assert answer.status_code == 200, (path, answer.content)


def test_the_owner_cancels_and_a_team_mate_who_is_not_lead_does_not(
    as_user: Any, owner: Any, job: Any, team: Any
) -> None:
    from tests.conftest import _user

    mate = _user("mate")
    mate.memberships.create(team=team, role="researcher")
    assert as_user(mate).send("POST", f"jobs/{job.uid}/cancel", {}).status_code == 404
    answer = as_user(owner).send("POST", f"jobs/{job.uid}/cancel", {})
    assert answer.status_code == 202
    lead = _user("lead")
    lead.memberships.create(team=team, role="lead")
    assert as_user(lead).send("POST", f"jobs/{job.uid}/cancel", {}).status_code == 202


@pytest.mark.parametrize("bearer", ["", "qd_x.y", "qd_.", "Basic x", "qd_000000000000.wrong", "é"])
def test_a_bad_token_never_falls_back_to_the_session(client: Any, admin: Any, bearer: str) -> None:
    client.force_login(admin)
    answer = client.get("/api/v1/whoami", headers={"Authorization": f"Bearer {bearer}"})
    assert answer.status_code == 401


def test_expired_revoked_and_disabled_tokens_open_nothing(as_user: Any, owner: Any) -> None:
    from datetime import timedelta

    from apps.core import clock
    from apps.teams.models import ApiToken

    client = as_user(owner)
    assert client.send("GET", "whoami").status_code == 200
    ApiToken.objects.update(expires_at=clock.now() - timedelta(seconds=1))
    assert client.send("GET", "whoami").status_code == 401
    ApiToken.objects.update(expires_at=clock.now() + timedelta(days=1), revoked_at=clock.now())
    assert client.send("GET", "whoami").status_code == 401
    ApiToken.objects.update(revoked_at=None)
    owner.is_active = False
    owner.save()
    assert client.send("GET", "whoami").status_code == 401


def test_a_token_cannot_hold_more_than_its_maker(client: Any, owner: Any) -> None:
    client.force_login(owner)

    def make(**body: Any) -> Any:
        return client.post("/api/v1/tokens", {"label": "x", "days": 3, **body}, content_type="application/json")

    answer = make(scopes=["quotas.manage"], days=3)
    assert answer.status_code == 403
    answer = make(scopes=["no.such"], days=3)
    assert answer.status_code == 422
    answer = make(scopes=["jobs.view"], days=400)
    assert answer.status_code == 422
    answer = make(scopes=["jobs.view"], days=3)
    assert answer.status_code == 201
    assert answer.json()["bearer"].startswith("qd_")
    assert "digest" not in answer.json()
