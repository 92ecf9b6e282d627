"""Pages of cloud accounts: list, connecting, correcting and removing one, its pause switch and its sweep."""

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
from apps.connections.permissions import can_allow_purchases, can_manage_account
from apps.connections.selectors import (
    account_for,
    account_holders,
    account_sentence,
    accounts_removed,
    accounts_visible_to,
    live_fleets,
)
from apps.connections.services import (
    EDITABLE,
    AccountInUse,
    account_allow_purchases,
    account_connect,
    account_pause,
    account_remove,
    account_update,
)
from apps.connections.states import AccountPhase
from apps.core.errors import InvalidInput, Refusal
from apps.core.filters import ChoicesFilter, TextFilter
from apps.core.forms import is_htmx, posted_version, typed_name
from apps.core.lists import listing
from apps.core.pages import Page, once

WORDS: Words = {
    "AccountConnected": lambda e: (
        "good",
        _("AWS knows us: %(what)s") % {"what": e.text.removeprefix("connected as ")},
    ),
    "AccountFailed": lambda e: ("bad", _("AWS could not be reached: %(error)s") % {"error": e.text}),
    "OrphanFound": lambda e: (
        "warn",
        _("Sweep: %(kind)s %(id)s carries our tag and belongs to nothing here")
        % {"kind": e.data.get("kind", "–"), "id": e.data.get("provider_id", "–")},
    ),
    "OrphanRemoved": lambda e: (
        "warn",
        _("Sweep: %(kind)s %(id)s, which belonged to nothing, is gone")
        % {"kind": e.data.get("kind", "–"), "id": e.data.get("provider_id", "–")},
    ),
    "AccountChanged": lambda e: (
        "wait",
        _("Changed: %(fields)s") % {"fields": ", ".join(field_label(name) for name in e.data.get("fields", []))},
    ),
    "AccountRemoveRequested": lambda e: (
        "wait",
        _("Removal asked for by %(who)s") % {"who": e.text.removeprefix("removal asked for by ")},
    ),
    "AccountRemoved": lambda e: ("off", _("Out of the portal")),
    "SweepStopped": lambda e: ("bad", _("Sweep stopped, a person must look: %(what)s") % {"what": e.text}),
}


def field_label(name: str) -> str:
    """What the form calls a column."""
    return str(AccountForm.base_fields[name].label) if name in AccountForm.base_fields else name


class AccountFilter(FilterSet):  # type: ignore[misc]
    """By phase and text."""

    phase = ChoicesFilter("phase", values=AccountPhase.choices)
    q = TextFilter("name", "region", "observed_account_id")

    class Meta:
        model = CloudAccount
        fields: list[str] = []


class AccountList(Page):
    """All cloud accounts."""

    right = "connections.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, or with htmx its rows. Raises BadQuery."""
        shows_removed = request.GET.get("phase") == AccountPhase.REMOVED
        found = listing(
            request,
            accounts_removed(self.actor) if shows_removed else accounts_visible_to(self.actor),
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
            "is_settling": not shows_removed and not all(a.is_settled or a.is_paused for a in found.rows),
        }
        template = "connections/connections.html"
        return render(request, f"{template}#rows" if is_htmx(request) else template, context)


def _is_being_asked(account: CloudAccount) -> bool:
    """Whether AWS's answer about an account is awaited; a paused one is not asked."""
    return not account.is_paused and (account.observed_at is None or not account.is_settled)


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
        is_leaving = account.delete_requested_at is not None
        is_removed = account.phase == AccountPhase.REMOVED
        context: dict[str, Any] = {
            "account": account,
            "sentence": account_sentence(account),
            "lines": lines_of(events_of([account.uid], 100), WORDS),
            "is_settling": not is_removed and (is_leaving or _is_being_asked(account)),
            "is_removed": is_removed,
            "may_allow_purchases": can_allow_purchases(self.actor),
            "may_manage": can_manage_account(self.actor) and not is_leaving,
            "holders": account_holders(account),
        }
        template = "connections/connection.html"
        return render(request, f"{template}#live" if is_htmx(request) else template, context)


class AccountEdit(Page):
    """Correct how an account is reached."""

    right = "connections.manage"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The form as the account is now."""
        account = account_for(actor=self.actor, may="connections.manage", uid=uid)
        initial = {name: getattr(account, name) for name in EDITABLE}
        form = AccountForm(initial=initial | {"key": uuid.uuid4().hex})
        return self._page(request, account, form, account.version)

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Change it; a refusal shows at its fields, the version guards against someone else's change."""
        account = account_for(actor=self.actor, may="connections.manage", uid=uid)
        version = posted_version(request)
        form = AccountForm(request.POST)
        if form.is_valid():
            try:
                account_update(actor=self.actor, account=account, expected_version=version, **form.values())
            except (InvalidInput, AccountInUse) as refusal:
                form.show(refusal)
            else:
                self.say(_("%(name)s was changed; the worker checks it again.") % {"name": account.name})
                return HttpResponseRedirect(reverse("connection", args=[account.uid]))
        account.refresh_from_db()
        return self._page(request, account, form, version, status=422)

    def _page(
        self, request: HttpRequest, account: CloudAccount, form: AccountForm, version: int, status: int = 200
    ) -> HttpResponse:
        context = {"form": form, "account": account, "version": version, "fleets": live_fleets(account)}
        return render(request, "connections/connection_new.html", context, status=status)


class AccountRemove(Page):
    """Take an account out of the portal."""

    right = "connections.manage"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it; the name must have been typed."""
        account = account_for(actor=self.actor, may="connections.manage", uid=uid)
        typed_name(request, account.name)
        account_remove(actor=self.actor, account=account, expected_version=posted_version(request))
        self.say(_("%(name)s is being removed from the portal.") % {"name": account.name})
        return HttpResponseRedirect(reverse("connections"))


class AccountPurchases(Page):
    """Let reserved capacity be bought in an account, or stop it."""

    right = "purchases.allow"
    allowed = True

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Set the switch; the version guards against someone else's change."""
        account = account_for(actor=self.actor, may="purchases.allow", uid=uid)
        account_allow_purchases(
            actor=self.actor, account=account, allowed=self.allowed, expected_version=posted_version(request)
        )
        facts = {"name": account.name}
        if self.allowed:
            self.say(_("Capacity may be bought in %(name)s, each time with a second person's approval.") % facts)
        else:
            self.say(_("Nothing is bought in %(name)s any more.") % facts)
        return HttpResponseRedirect(reverse("connection", args=[account.uid]))


class AccountPause(Page):
    """Stop or resume every call to an account."""

    right = "connections.manage"
    is_paused = True

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Set the switch; the version guards against someone else's change."""
        account = account_for(actor=self.actor, may="connections.manage", uid=uid)
        account_pause(
            actor=self.actor, account=account, is_paused=self.is_paused, expected_version=posted_version(request)
        )
        if self.is_paused:
            self.say(_("%(name)s is paused: the worker reads and changes nothing there.") % {"name": account.name})
        else:
            self.say(_("%(name)s is in use again.") % {"name": account.name})
        return HttpResponseRedirect(reverse("connection", args=[account.uid]))
