"""The admin console: rights by role, limits through the services, history, trails for reading only, clean markup."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from apps.audit.models import Entry
from apps.costs.models import Budget, Posting
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.states import Unit
from apps.health.models import XidCode
from apps.quotas.models import Quota
from apps.teams.models import Team, User
from tests.demo_rows import DemoRows
from tests.pages.test_markup import Scan

SignIn = Callable[..., Client]
READ_ONLY = (
    "audit/entry",
    "audit/event",
    "intents/intent",
    "costs/posting",
    "costs/account",
    "teams/apitoken",
    "jobs/jobtemplate",
)
EDITABLE = (
    "quotas/quota",
    "costs/budget",
    "teams/user",
    "teams/team",
    "teams/serviceaccount",
    "health/xidcode",
    "clusters/slurmuser",
    "clusters/slurmaccount",
)


def first(path: str) -> Any:
    label, name = path.split("/")
    model = next(m for m in admin.site._registry if (m._meta.app_label, m._meta.model_name) == (label, name))
    return model._default_manager.order_by("pk").first()


def faults(text: str) -> list[str]:
    found = Scan()
    found.feed(text.replace('type="application/json"', 'src="data"'))
    return [f for f in found.faults if "leads to" not in f]


def test_nobody_but_administrators_sees_anything(sign_in: SignIn, more: DemoRows) -> None:
    assert sign_in("anonymous").get("/admin/").status_code == 302
    for who in ("outsider", "member", "lead", "operator"):
        assert sign_in(who).get("/admin/").status_code == 302, who
    User.objects.filter(username="operator").update(is_staff=True)
    client = sign_in("operator")
    assert "Budgets" not in client.get("/admin/").content.decode()
    assert client.get("/admin/quotas/quota/").status_code == 403


def test_the_role_is_enough_without_djangos_permissions(sign_in: SignIn, more: DemoRows) -> None:
    User.objects.filter(username="admin").update(is_superuser=False)
    client = sign_in("admin")
    text = client.get("/admin/").content.decode()
    for word in ("Quarterdeck", "Budgets", "Quotas", "XID codes", "Intents"):
        assert word in text
    assert client.get(f"/admin/quotas/quota/{first('quotas/quota').pk}/history/").status_code == 200


@pytest.mark.parametrize("path", [*EDITABLE, *READ_ONLY])
def test_pages_are_clean_under_the_policy(sign_in: SignIn, more: DemoRows, path: str) -> None:
    client, pk = sign_in("admin"), first(path).pk
    pages = [f"/admin/{path}/", f"/admin/{path}/{pk}/change/", f"/admin/{path}/{pk}/history/"]
    if path in EDITABLE:
        pages.append(f"/admin/{path}/add/")
    for page in pages:
        answer = client.get(page)
        assert answer.status_code == 200, page
        assert faults(answer.content.decode()) == [], page


@pytest.mark.parametrize("path", READ_ONLY)
def test_trails_are_for_reading_only(sign_in: SignIn, more: DemoRows, path: str) -> None:
    client, pk = sign_in("admin"), first(path).pk
    assert client.get(f"/admin/{path}/add/").status_code == 403
    assert client.post(f"/admin/{path}/{pk}/change/", {"memo": "x"}).status_code == 403
    assert client.post(f"/admin/{path}/{pk}/delete/", {"post": "yes"}).status_code == 403


def test_a_quota_set_here_moves_the_ledger_and_is_recorded(sign_in: SignIn, more: DemoRows) -> None:
    client, quota = sign_in("admin"), Quota.objects.get(team__slug="vision")
    before = quota.history.count()
    answer = client.post(
        f"/admin/quotas/quota/{quota.pk}/change/", {"gpus": 96, "seen_version": quota.version, "_save": "Save"}
    )
    assert answer.status_code == 302, answer.content.decode()
    assert standing_of(quota.team, Unit.GPUS).limit == 96
    assert quota.history.count() == before + 1
    newest = quota.history.latest("history_id")
    assert newest.history_user.username == "admin"
    entry = Entry.objects.latest("id")
    assert (entry.verb, entry.actor_name, entry.after) == ("quota.set", "admin", {"gpus": 96})
    assert ledger_check().is_balanced
    shown = client.get(f"/admin/quotas/quota/{quota.pk}/history/").content.decode()
    assert "64 → 96" in shown


def test_a_first_budget_is_set_here(sign_in: SignIn, more: DemoRows) -> None:
    client, team = sign_in("admin"), Team.objects.get(slug="robotics")
    answer = client.post("/admin/costs/budget/add/", {"team": team.pk, "usd_per_month": "1234.50", "_save": "Save"})
    assert answer.status_code == 302, answer.content.decode()
    assert Budget.objects.get(team=team).usd_per_month == Decimal("1234.50")
    assert standing_of(team, Unit.USD).limit == Decimal("1234.50")
    again = client.post("/admin/costs/budget/add/", {"team": team.pk, "usd_per_month": "1", "_save": "Save"})
    assert again.status_code == 200, "a team has one budget"
    assert standing_of(team, Unit.USD).limit == Decimal("1234.50")


def test_a_stale_form_is_told_and_changes_nothing(sign_in: SignIn, more: DemoRows) -> None:
    client, budget = sign_in("admin"), Budget.objects.get(team__slug="vision")
    where = f"/admin/costs/budget/{budget.pk}/change/"
    body = {"usd_per_month": "5.00", "seen_version": budget.version - 1, "_save": "Save"}
    for seen in (budget.version - 1, ""):
        answer = client.post(where, {**body, "seen_version": seen})
        assert answer.status_code == 200
        assert "Someone else changed this meanwhile" in answer.content.decode()
    assert standing_of(budget.team, Unit.USD).limit == 20_000


def test_a_quota_cannot_be_deleted_nor_moved_to_another_team(sign_in: SignIn, more: DemoRows) -> None:
    client, quota = sign_in("admin"), Quota.objects.get(team__slug="vision")
    assert client.post(f"/admin/quotas/quota/{quota.pk}/delete/", {"post": "yes"}).status_code == 403
    other = Team.objects.get(slug="speech")
    body = {"team": other.pk, "gpus": quota.gpus, "seen_version": quota.version, "_save": "Save"}
    client.post(f"/admin/quotas/quota/{quota.pk}/change/", body)
    assert Quota.objects.get(pk=quota.pk).team.slug == "vision"


def test_an_xid_code_is_edited_with_history(sign_in: SignIn, more: DemoRows) -> None:
    code = XidCode.objects.get(code=63)
    client = sign_in("admin")
    names = ("code", "mnemonic", "meaning", "architectures", "fault_class", "nvidia_immediate_action")
    names += ("nvidia_if_it_recurs", "suggested_action", "source")
    body = {name: getattr(code, name) for name in names} | {"severity": "reset", "_save": "Save"}
    answer = client.post(f"/admin/health/xidcode/{code.pk}/change/", body)
    assert answer.status_code == 302, answer.content.decode()
    assert code.history.latest("history_id").severity == "reset"
    entry = Entry.objects.latest("id")
    assert (entry.verb, entry.before["severity"], entry.after["severity"]) == ("xid-code.change", "watch", "reset")


def test_a_new_person_and_a_membership_are_recorded(sign_in: SignIn, more: DemoRows) -> None:
    client = sign_in("admin")
    body = {"username": "newcomer", "password1": "correct horse battery", "password2": "correct horse battery"}
    body |= {"usable_password": "true", "platform_role": ""}
    inline = {f"memberships-{k}": "0" for k in ("TOTAL_FORMS", "INITIAL_FORMS", "MIN_NUM_FORMS")}
    inline["memberships-MAX_NUM_FORMS"] = "1000"
    answer = client.post("/admin/teams/user/add/", {**body, **inline, "_save": "Save"})
    assert answer.status_code == 302, answer.content.decode()
    person = User.objects.get(username="newcomer")
    assert Entry.objects.latest("id").verb == "user.create"
    assert "password" not in str(Entry.objects.latest("id").after)
    team = more.teams["speech"]
    change = {"slug": team.slug, "name": team.name, **inline, "memberships-TOTAL_FORMS": "1", "_save": "Save"}
    change["memberships-INITIAL_FORMS"] = "0"
    existing = list(team.memberships.order_by("pk"))
    change["memberships-INITIAL_FORMS"] = str(len(existing))
    change["memberships-TOTAL_FORMS"] = str(len(existing) + 1)
    for number, row in enumerate(existing):
        change |= {
            f"memberships-{number}-{k}": v for k, v in (("id", row.pk), ("user", row.user_id), ("role", row.role))
        }
        change[f"memberships-{number}-team"] = team.pk
    last = len(existing)
    change |= {f"memberships-{last}-user": person.pk, f"memberships-{last}-role": "viewer"}
    change[f"memberships-{last}-team"] = team.pk
    answer = client.post(f"/admin/teams/team/{team.pk}/change/", change)
    assert answer.status_code == 302, answer.content.decode()
    entry = Entry.objects.filter(verb="membership.change").latest("id")
    assert "newcomer viewer of speech" in entry.after["memberships"]


def test_postings_cannot_be_touched_from_anywhere(sign_in: SignIn, more: DemoRows) -> None:
    before = Posting.objects.count()
    body = {"action": "delete_selected", "_selected_action": [first("costs/posting").pk], "post": "yes"}
    sign_in("admin").post("/admin/costs/posting/", body)
    assert Posting.objects.count() == before
