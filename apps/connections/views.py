"""Pages of cloud accounts: list, connecting one, and one account with its pause switch and its sweep."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django_filters import FilterSet

from apps.audit.selectors import events_of
from apps.audit.timeline import Words, lines_of
from apps.connections.forms import AccountForm
from apps.connections.models import CloudAccount
from apps.connections.permissions import can_manage_account
from apps.connections.selectors import account_for, account_sentence, accounts_visible_to
from apps.connections.services import account_connect, account_pause
from apps.connections.states import AccountPhase
from apps.core.errors import Refusal
from apps.core.filters import ChoicesFilter, TextFilter
from apps.core.forms import is_htmx, posted_version
from apps.core.lists import listing
from apps.core.pages import Page, once

WORDS: Words = {
    "AccountConnected": lambda e: (
        "good",
        _("AWS knows us: %(what)s") % {"what": e.text.removeprefix("connected as ")},
    ),
    "AccountFailed": lambda e: ("bad", _("AWS could not be reached: %(error)s") % {"error": e.text}),
    "OrphanRemoved": lambda e: (
        "warn",
        _("Sweep: removed %(kind)s %(id)s, which belonged to no fleet")
        % {"kind": e.data.get("kind", "–"), "id": e.data.get("provider_id", "–")},
    ),
    "SweepStopped": lambda e: ("bad", _("Sweep stopped, a person must look: %(what)s") % {"what": e.text}),
}


class AccountFilter(FilterSet):  # type: ignore[misc]
    """By phase and text."""

    phase = ChoicesFilter("phase", values=[c.value for c in AccountPhase])
    q = TextFilter("name", "region", "observed_account_id")

    class Meta:
        model = CloudAccount
        fields: list[str] = []


class AccountList(Page):
    """All cloud accounts."""

    right = "connections.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, or with htmx its rows. Raises BadQuery."""
        found = listing(
            request,
            accounts_visible_to(self.actor),
            AccountFilter,
            sorts={
                "name": "name",
                "-name": "-name",
                "-created_at": "-created_at",
                "created_at": "created_at",
                "region": "region",
                "-region": "-region",
            },
            labels={"phase": gettext_lazy("State"), "q": gettext_lazy("Text")},
            words={"phase": lambda v: str(AccountPhase(v).label)},
        )
        context = {
            "list": found,
            "phases": AccountPhase.choices,
            "may_manage": can_manage_account(self.actor),
            "is_settling": any(a.phase == AccountPhase.PENDING for a in found.rows),
        }
        template = "connections/connections.html"
        return render(request, f"{template}#rows" if is_htmx(request) else template, context)


class AccountNew(Page):
    """Connect an account."""

    right = "connections.manage"

    def get(self, request: HttpRequest) -> HttpResponse:
        """An empty form."""
        form = AccountForm(initial={"key": uuid.uuid4().hex, "region": "us-east-1"})
        return render(request, "connections/connection_new.html", {"form": form})

    def post(self, request: HttpRequest) -> HttpResponse:
        """Connect it; a refusal shows at its fields."""
        form = AccountForm(request.POST)
        if form.is_valid():

            def effect() -> str:
                account = account_connect(actor=self.actor, **form.values())
                return reverse("connection", args=[account.uid])

            try:
                return HttpResponseRedirect(once(request, form.cleaned_data["key"], effect))
            except Refusal as refusal:
                form.show(refusal)
        return render(request, "connections/connection_new.html", {"form": form}, status=422)


class AccountPage(Page):
    """One account: who we are there, the pause switch, what the sweep found."""

    right = "connections.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page, or with htmx its live part."""
        account = account_for(actor=self.actor, may="connections.view", uid=uid)
        context: dict[str, Any] = {
            "account": account,
            "sentence": account_sentence(account),
            "lines": lines_of(events_of([account.uid], 100), WORDS),
            "is_settling": account.phase == AccountPhase.PENDING or account.observed_at is None,
            "may_manage": can_manage_account(self.actor),
        }
        template = "connections/connection.html"
        return render(request, f"{template}#live" if is_htmx(request) else template, context)


class AccountPause(Page):
    """Stop or resume every changing call in an account."""

    right = "connections.manage"
    is_paused = True

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Set the switch; the version guards against someone else's change."""
        account = account_for(actor=self.actor, may="connections.manage", uid=uid)
        account_pause(
            actor=self.actor, account=account, is_paused=self.is_paused, expected_version=posted_version(request)
        )
        if self.is_paused:
            self.say(_("%(name)s is paused: the worker changes nothing there.") % {"name": account.name})
        else:
            self.say(_("%(name)s is in use again.") % {"name": account.name})
        return HttpResponseRedirect(reverse("connection", args=[account.uid]))
