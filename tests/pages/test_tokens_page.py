"""The page of API tokens: made once, shown once, ended for good."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.test import Client

from apps.teams.models import ApiToken
from apps.teams.selectors import token_by_bearer
from tests.demo_rows import DemoRows

SignIn = Callable[..., Client]
GOOD = {"label": "nightly", "days": "30", "scopes": ["jobs.view"], "service_account": ""}


def test_the_text_is_shown_once_and_opens_the_api(sign_in: SignIn) -> None:
    client = sign_in("owner")
    answer = client.post("/tokens", GOOD)
    assert answer["Cache-Control"] == "no-store"
    bearer = re.search(r"data-copy=\"(qd_[0-9a-f]+\.[^\"]+)\"", answer.content.decode())
    assert bearer
    token = token_by_bearer(bearer[1])
    assert token is not None
    assert token.scopes == ["jobs.view"]
    assert bearer[1] not in client.get("/tokens").content.decode()
    assert Client().get("/api/v1/jobs", headers={"Authorization": f"Bearer {bearer[1]}"}).status_code == 200


def test_bad_input_is_told_at_its_field(sign_in: SignIn) -> None:
    client = sign_in("owner")
    before = ApiToken.objects.count()
    for change, words in (
        ({"label": ""}, "This field is required"),
        ({"days": "400"}, "less than or equal to 365"),
        ({"scopes": []}, "Choose at least one right."),
        ({"scopes": ["quotas.manage"]}, "Select a valid choice"),
    ):
        answer = client.post("/tokens", {**GOOD, **change})
        assert answer.status_code == 422
        assert words in answer.content.decode()
    assert ApiToken.objects.count() == before


def test_only_leads_make_tokens_of_service_accounts(sign_in: SignIn, site: DemoRows) -> None:
    account = site.teams["nlp"].service_accounts.get()
    assert sign_in("owner").post("/tokens", {**GOOD, "service_account": account.uid}).status_code == 422
    assert sign_in("lead").post("/tokens", {**GOOD, "service_account": account.uid}).status_code == 200
    assert account.tokens.count() == 1


def test_revoking_ends_it_and_others_cannot(sign_in: SignIn, site: DemoRows) -> None:
    token = ApiToken.objects.filter(user=site.users["owner"])[0]
    assert sign_in("outsider").post(f"/tokens/{token.uid}/revoke").status_code == 404
    assert sign_in("anonymous").post(f"/tokens/{token.uid}/revoke").status_code == 302
    token.refresh_from_db()
    assert token.is_live
    assert sign_in("owner").post(f"/tokens/{token.uid}/revoke").status_code == 302
    token.refresh_from_db()
    assert not token.is_live
    assert "Revoked" in sign_in("owner").get("/tokens").content.decode()
    assert token.label not in sign_in("outsider").get("/tokens").content.decode()
