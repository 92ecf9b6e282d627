"""As whom the worker acts in Slurm: minted tokens, who may use which, and what goes with whom."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import replace
from typing import Any

import pytest

from apps.audit.models import Entry
from apps.clusters.models import Cluster
from apps.clusters.slurm_selectors import slurm_user_of
from apps.clusters.slurm_services import slurm_account_put, slurm_user_put
from apps.core.errors import InvalidInput
from apps.jobs.services import job_preview, job_stop, job_submit
from tests.conftest import actor_of
from worker import doors
from worker.providers.errors import AccessDenied, InvalidRequest
from worker.providers.slurm.tokens import PosixIdentity, TokenMill, mint_jwt

KEY = secrets.token_bytes(32)


def claims(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))


@pytest.fixture
def keyed(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster whose signing key the worker can read."""
    monkeypatch.setenv("TEST_KEY", base64.b64encode(KEY).decode())
    Cluster.objects.filter(pk=cluster.pk).update(jwt_key_ref="env:TEST_KEY", token_ref="")
    cluster.refresh_from_db()
    return cluster


def test_a_token_is_made_anew_well_before_it_ends() -> None:
    now = [1000.0]
    mill = TokenMill(600, clock=lambda: now[0])
    first = mill.token(KEY, "member")
    now[0] += 350
    assert mill.token(KEY, "member") is first
    now[0] += 20
    assert mill.token(KEY, "member") is not first, "less than 40 % of its life is left"
    assert mill.token(KEY, "other") != first
    assert first not in repr(mill)


def test_a_token_of_pcs_carries_who_its_bearer_is() -> None:
    told = claims(mint_jwt(KEY, "member", 600, PosixIdentity(2001, 2001, (3000,), "A Member")))
    assert (told["sun"], told["uid"], told["gid"]) == ("member", 2001, 2001)
    who = {"name": "member", "gecos": "A Member", "dir": "/home/member", "shell": "/bin/bash", "gids": [2001, 3000]}
    assert told["id"] == who
    assert told["exp"] - told["iat"] == 600


def test_each_acts_with_a_token_of_their_own(keyed: Cluster) -> None:
    own, other = doors.scheduler_access(keyed), doors.scheduler_access(keyed, "member")
    assert (own.user_name, claims(own.token)["sun"]) == ("qd", "qd")
    assert (other.user_name, claims(other.token)["sun"]) == ("member", "member")
    assert other.token not in repr(other)
    assert doors.scheduler_for(keyed, "member") is doors.scheduler_for(keyed, "member")
    assert doors.scheduler_for(keyed) is not doors.scheduler_for(keyed, "member")


def test_a_fresh_token_goes_into_the_open_connection(keyed: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    before: Any = doors.scheduler_for(keyed, "member")
    first = before._rest.access.token
    monkeypatch.setattr(doors, "_mills", {})
    monkeypatch.setattr("worker.providers.slurm.tokens.time.time", lambda: 4_000_000_000)
    after: Any = doors.scheduler_for(keyed, "member")
    assert after is before
    assert after._rest.access.token != first
    assert after._rest._client.headers["X-SLURM-USER-TOKEN"] == after._rest.access.token


def test_pcs_gets_ids_and_no_name(keyed: Cluster, operator: Any) -> None:
    Cluster.objects.filter(pk=keyed.pk).update(token_style="pcs")
    keyed.refresh_from_db()
    with pytest.raises(InvalidRequest, match="no uid and gid"):
        doors.scheduler_access(keyed)
    slurm_user_put(actor=actor_of(operator), cluster=keyed, user_name="qd", uid_number=900, gid_number=900)
    access = doors.scheduler_access(keyed)
    assert not access.names_user
    assert claims(access.token)["uid"] == 900
    scheduler: Any = doors.scheduler_for(keyed)
    assert "X-SLURM-USER-NAME" not in scheduler._rest._client.headers


def test_a_static_token_is_everyones(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOKEN", "a.b.c")
    assert doors.scheduler_access(cluster, "").token == "a.b.c"
    assert doors.scheduler_access(cluster, "member").user_name == "qd"


@pytest.mark.parametrize(("value", "words"), [("not base64!", "not base64"), ("c2hvcnQ=", "at least 16")])
def test_a_key_that_is_none_is_named(keyed: Cluster, monkeypatch: pytest.MonkeyPatch, value: str, words: str) -> None:
    monkeypatch.setenv("TEST_KEY", value)
    with pytest.raises(InvalidRequest, match=words) as refused:
        doors.scheduler_access(keyed)
    assert value not in str(refused.value)


def test_nobody_submits_without_a_user(keyed: Cluster, team: Any, owner: Any, operator: Any, spec: Any) -> None:
    preview = job_preview(actor=actor_of(owner), team=team, cluster=keyed, spec=spec)
    found = {p.code: p.detail for p in preview.problems}
    assert set(found) == {"no-slurm-user"}
    assert all(word in found["no-slurm-user"] for word in ("owner", "lab", "operator")), found
    with pytest.raises(InvalidInput):
        job_submit(actor=actor_of(owner), team=team, cluster=keyed, spec=spec)
    assert not keyed.jobs.exists()
    Cluster.objects.filter(pk=keyed.pk).update(same_names=True)
    keyed.refresh_from_db()
    assert job_preview(actor=actor_of(owner), team=team, cluster=keyed, spec=spec).slurm_user == "owner"


def test_the_same_name_gives_nobody_anothers_rights(keyed: Cluster, owner: Any, outsider: Any, operator: Any) -> None:
    Cluster.objects.filter(pk=keyed.pk).update(same_names=True)
    keyed.refresh_from_db()
    assert slurm_user_of(keyed, actor_of(outsider)) == "outsider"
    slurm_user_put(actor=actor_of(operator), cluster=keyed, user_name="outsider", user=owner)
    assert slurm_user_of(keyed, actor_of(owner)) == "outsider"
    assert slurm_user_of(keyed, actor_of(outsider)) == "", "the name is the owner's there"
    for name in ("root", "slurm", keyed.user_name, "two words", "9to5", "a" * 61, "línea", "name\n"):
        outsider.username = name
        assert slurm_user_of(keyed, actor_of(outsider)) == "", name
    slurm_user_put(actor=actor_of(operator), cluster=keyed, user_name="o1", user=outsider)
    assert slurm_user_of(keyed, actor_of(outsider)) == "o1", "a mapping says more than a name"


def test_a_job_goes_as_its_owner_and_its_stop_as_who_asked(
    keyed: Cluster, team: Any, owner: Any, operator: Any, spec: Any, scheduler: Any, work: Any, tick: Any
) -> None:
    acts = []
    real = scheduler.acting

    def acting(as_user: str) -> Any:
        acts.append(as_user)
        return real(as_user)

    scheduler.acting = acting
    slurm_user_put(actor=actor_of(operator), cluster=keyed, user_name="u7", user=owner)
    slurm_account_put(actor=actor_of(operator), cluster=keyed, account="nlp-lab", team=team)
    jobs = [job_submit(actor=actor_of(owner), team=team, cluster=keyed, spec=spec) for _n in range(2)]
    work("job.reconcile")
    assert set(acts) == {"u7"}
    assert {j.slurm_user for j in jobs} == {"u7"}
    assert {r.account for r in scheduler.requests.values()} == {"nlp-lab"}
    script = next(iter(scheduler.requests.values())).script
    assert "mkdir -p /tmp/qd/u7" in script
    assert "[ ! -O /tmp/qd/u7 ]" in script
    tick(keyed)
    acts.clear()
    job_stop(actor=actor_of(owner), job=jobs[0], kind="cancel")
    work("job.reconcile")
    assert "u7" in acts
    acts.clear()
    job_stop(actor=actor_of(operator), job=jobs[1], kind="cancel")
    work("job.reconcile")
    assert "" in acts
    assert "u7" not in acts
    told = [e.after for e in Entry.objects.filter(verb="job.cancel").order_by("pk")]
    assert [t["slurm_user"] for t in told] == ["u7", "qd"]
    assert [t["own_job"] for t in told] == [True, False]


def test_a_user_whom_slurm_refuses_ends_the_job_in_clear_words(
    keyed: Cluster, team: Any, owner: Any, operator: Any, spec: Any, scheduler: Any, work: Any
) -> None:
    slurm_user_put(actor=actor_of(operator), cluster=keyed, user_name="u7", user=owner)
    job = job_submit(actor=actor_of(owner), team=team, cluster=keyed, spec=spec)
    scheduler.calls.fail_next["submit"] = AccessDenied("Invalid user id", source="slurm")
    work("job.reconcile")
    job.refresh_from_db()
    assert job.phase == "FAILED"
    assert "u7" in job.message
    assert "lab" in job.message


def test_an_account_of_another_team_is_refused(
    keyed: Cluster, team: Any, owner: Any, outsider: Any, operator: Any, spec: Any
) -> None:
    slurm_user_put(actor=actor_of(operator), cluster=keyed, user_name="u7", user=owner)
    other = outsider.memberships.get().team
    slurm_account_put(actor=actor_of(operator), cluster=keyed, account="vision", team=other)
    asked = replace(spec, slurm_options=["--account=vision"])
    preview = job_preview(actor=actor_of(owner), team=team, cluster=keyed, spec=asked)
    assert [p.code for p in preview.problems] == ["other-team"]


def test_a_missing_association_is_told_in_clear_words(
    keyed: Cluster, team: Any, owner: Any, operator: Any, spec: Any, scheduler: Any, work: Any
) -> None:
    slurm_user_put(actor=actor_of(operator), cluster=keyed, user_name="u7", user=owner)
    slurm_account_put(actor=actor_of(operator), cluster=keyed, account="nlp-lab", team=team)
    job = job_submit(actor=actor_of(owner), team=team, cluster=keyed, spec=spec)
    words = "Invalid account or account/partition combination specified"
    scheduler.calls.fail_next["submit"] = InvalidRequest(words, source="slurm", code="2045")
    work("job.reconcile")
    job.refresh_from_db()
    assert all(word in job.message for word in ("u7", "nlp-lab", "lab", "association"))


def test_another_try_is_not_made_as_somebody_else(
    keyed: Cluster, team: Any, owner: Any, operator: Any, spec: Any, scheduler: Any, work: Any
) -> None:
    slurm_user_put(actor=actor_of(operator), cluster=keyed, user_name="u7", user=owner)
    job = job_submit(actor=actor_of(owner), team=team, cluster=keyed, spec=spec)
    Cluster.objects.filter(pk=keyed.pk).update(jwt_key_ref="", token_ref="env:TEST_TOKEN")
    work("job.reconcile")
    job.refresh_from_db()
    assert job.phase == "FAILED"
    assert "no signing key" in job.message
    assert not scheduler.requests
