"""Pages of reserved capacity: a search with its offers, purchases with their decision, a reservation."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django_filters import FilterSet

from apps.audit.selectors import events_of
from apps.audit.timeline import lines_of
from apps.capacity.forms import DecisionForm, OdcrForm, RequestForm, ResolveForm, SearchForm
from apps.capacity.models import OfferingSearch, Purchase
from apps.capacity.permissions import can_approve_purchase, can_operate_capacity
from apps.capacity.selectors import (
    price_of,
    purchase_for,
    purchase_sentence,
    purchases_visible_to,
    search_for,
    searches_visible_to,
)
from apps.capacity.services import (
    odcr_request,
    offering_search,
    purchase_approve,
    purchase_reject,
    purchase_request,
    purchase_resolve,
    purchase_withdraw,
)
from apps.capacity.states import (
    PURCHASE_COLOURS,
    PURCHASE_OPEN,
    PurchaseKind,
    PurchasePhase,
    SearchPhase,
)
from apps.capacity.words import WORDS
from apps.connections.selectors import accounts_visible_to
from apps.connections.states import AccountPhase
from apps.core.errors import Refusal
from apps.core.filters import ChoicesFilter, TextFilter
from apps.core.forms import is_htmx, posted_version
from apps.core.lists import listing
from apps.core.pages import Page, once
from apps.costs.selectors import standing_of
from apps.costs.states import Unit
from apps.teams.permissions import Actor
from apps.teams.selectors import teams_visible_to


def accounts_to_buy_in(actor: Actor) -> list[Any]:
    """Connected accounts."""
    return list(accounts_visible_to(actor).filter(phase=AccountPhase.CONNECTED))


def offers_of(search: OfferingSearch) -> list[dict[str, Any]]:
    """Offers as a page shows them: instants and amounts in place of text."""
    from decimal import Decimal

    return [
        {
            **o,
            "start": parse_datetime(o["start_at"]),
            "end": parse_datetime(o["end_at"]),
            "usd": Decimal(o["usd_upfront"]),
            "usd_gpu": Decimal(o["usd_per_gpu_hour"]) if o.get("usd_per_gpu_hour") else None,
        }
        for o in search.offers
    ]


class SearchNew(Page):
    """What to look for, and what was looked for lately."""

    right = "capacity.operate"

    def _page(self, request: HttpRequest, form: SearchForm, status: int = 200) -> HttpResponse:
        context = {"form": form, "searches": searches_visible_to(self.actor)[:8]}
        return render(request, "capacity/search.html", context, status=status)

    def get(self, request: HttpRequest) -> HttpResponse:
        """A form with sensible values."""
        initial = {"kind": PurchaseKind.CAPACITY_BLOCK, "instance_type": "p5en.48xlarge"}
        return self._page(request, SearchForm(initial=initial, accounts=accounts_to_buy_in(self.actor)))

    def post(self, request: HttpRequest) -> HttpResponse:
        """Ask AWS through the worker."""
        form = SearchForm(request.POST, accounts=accounts_to_buy_in(self.actor))
        if form.is_valid():
            try:
                search = offering_search(actor=self.actor, **form.values())
                return HttpResponseRedirect(reverse("offering-search", args=[search.uid]))
            except Refusal as refusal:
                form.show(refusal)
        return self._page(request, form, 422)


class SearchPage(Page):
    """Offers side by side; one may be asked for."""

    right = "capacity.operate"

    def _context(self, search: OfferingSearch, form: RequestForm) -> dict[str, Any]:
        return {
            "search": search,
            "offers": offers_of(search),
            "form": form,
            "is_waiting": search.phase == SearchPhase.PENDING,
            "is_extension": search.kind == PurchaseKind.EXTENSION,
        }

    def _form(self, *args: Any, **kwargs: Any) -> RequestForm:
        return RequestForm(*args, teams=list(teams_visible_to(self.actor)), **kwargs)

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page, or with htmx its offers."""
        search = search_for(actor=self.actor, may="capacity.operate", uid=uid)
        initial: dict[str, Any] = {"key": uuid.uuid4().hex}
        if search.reservation is not None:
            initial["name"] = search.reservation.name
        template = "capacity/offers.html"
        name = f"{template}#offers" if is_htmx(request) else template
        return render(request, name, self._context(search, self._form(initial=initial)))

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for one offer; a double click asks once."""
        search = search_for(actor=self.actor, may="capacity.operate", uid=uid)
        form = self._form(request.POST)
        if form.is_valid():

            def effect() -> str:
                made = purchase_request(actor=self.actor, search=search, **form.values())
                return reverse("purchase", args=[made.uid])

            try:
                return HttpResponseRedirect(once(request, form.cleaned_data["key"], effect))
            except Refusal as refusal:
                form.show(refusal)
        return render(request, "capacity/offers.html", self._context(search, form), status=422)


class OdcrNew(Page):
    """Ask for an ODCR."""

    right = "capacity.operate"

    def _form(self, *args: Any, **kwargs: Any) -> OdcrForm:
        teams = list(teams_visible_to(self.actor))
        return OdcrForm(*args, accounts=accounts_to_buy_in(self.actor), teams=teams, **kwargs)

    def get(self, request: HttpRequest) -> HttpResponse:
        """A form."""
        form = self._form(initial={"key": uuid.uuid4().hex, "instance_type": "p5en.48xlarge"})
        return render(request, "capacity/odcr_new.html", {"form": form})

    def post(self, request: HttpRequest) -> HttpResponse:
        """Ask for it; a refusal shows at its fields."""
        form = self._form(request.POST)
        if form.is_valid():

            def effect() -> str:
                return reverse("purchase", args=[odcr_request(actor=self.actor, **form.values()).uid])

            try:
                return HttpResponseRedirect(once(request, form.cleaned_data["key"], effect))
            except Refusal as refusal:
                form.show(refusal)
        return render(request, "capacity/odcr_new.html", {"form": form}, status=422)


class PurchaseFilter(FilterSet):  # type: ignore[misc]
    """By phase, kind and text."""

    phase = ChoicesFilter("phase", values=[c.value for c in PurchasePhase])
    kind = ChoicesFilter("kind", values=[c.value for c in PurchaseKind])
    q = TextFilter("name", "offering_id", "account__name")

    class Meta:
        model = Purchase
        fields: list[str] = []


class PurchaseList(Page):
    """What was asked for and what became of it."""

    right = "capacity.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page. Raises BadQuery."""
        found = listing(
            request,
            purchases_visible_to(self.actor),
            PurchaseFilter,
            sorts={"-created_at": "-created_at", "created_at": "created_at", "name": "name", "-name": "-name"},
            labels={"phase": gettext_lazy("State"), "kind": gettext_lazy("Kind"), "q": gettext_lazy("Text")},
            words={"phase": lambda v: str(PurchasePhase(v).label), "kind": lambda v: str(PurchaseKind(v).label)},
        )
        context = {
            "list": found,
            "rows": [(p, price_of(p)) for p in found.rows],
            "phases": PurchasePhase.choices,
            "kinds": PurchaseKind.choices,
            "purchase_colours": PURCHASE_COLOURS,
            "may_operate": can_operate_capacity(self.actor),
        }
        return render(request, "capacity/purchases.html", context)


class PurchasePage(Page):
    """One purchase: exactly what and what it costs, who asked, who decided, and the evidence of a doubt."""

    right = "capacity.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page, or with htmx its live part."""
        purchase = purchase_for(actor=self.actor, may="capacity.view", uid=uid)
        template = "capacity/purchase.html"
        name = f"{template}#live" if is_htmx(request) else template
        return render(request, name, self.context(purchase))

    def context(self, purchase: Purchase, **more: Any) -> dict[str, Any]:
        """What the page shows."""
        is_own = purchase.requested_by == self.actor.key
        may_decide = self.actor.everywhere("capacity.approve")
        return {
            "purchase": purchase,
            "sentence": purchase_sentence(purchase),
            "usd_gpu": price_of(purchase),
            "budget": standing_of(purchase.team, Unit.USD) if purchase.team is not None else None,
            "purchase_colours": PURCHASE_COLOURS,
            "is_open": purchase.phase in PURCHASE_OPEN,
            "is_unknown": purchase.phase == PurchasePhase.UNKNOWN,
            "is_own": is_own,
            "may_approve": purchase.phase == PurchasePhase.REQUESTED
            and can_approve_purchase(self.actor, purchase.requested_by),
            "waits_for_another": purchase.phase == PurchasePhase.REQUESTED and may_decide and is_own,
            "may_withdraw": purchase.phase in (PurchasePhase.REQUESTED, PurchasePhase.APPROVED)
            and (is_own or may_decide),
            "may_resolve": purchase.phase == PurchasePhase.UNKNOWN and may_decide,
            "decision_form": DecisionForm(),
            "resolve_form": ResolveForm(),
            "lines": lines_of(events_of([purchase.uid], 50), WORDS),
            **more,
        }


class PurchaseDecide(PurchasePage):
    """Approve, reject or withdraw."""

    right = "capacity.view"
    verb = ""

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A reload leads back to the page."""
        return HttpResponseRedirect(reverse("purchase", args=[uid]))

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Decide; a refusal shows on the page."""
        purchase = purchase_for(actor=self.actor, may="capacity.view", uid=uid)
        form = DecisionForm(request.POST)
        form.is_valid()
        reason, version = form.cleaned_data.get("reason", ""), posted_version(request)
        try:
            if self.verb == "approve":
                purchase_approve(actor=self.actor, purchase=purchase, expected_version=version, reason=reason)
                self.say(_("%(name)s is approved and bought once.") % {"name": purchase.name})
            elif self.verb == "reject":
                purchase_reject(actor=self.actor, purchase=purchase, expected_version=version, reason=reason)
                self.say(_("%(name)s is rejected.") % {"name": purchase.name})
            else:
                purchase_withdraw(actor=self.actor, purchase=purchase, expected_version=version)
                self.say(_("%(name)s is withdrawn.") % {"name": purchase.name})
        except Refusal as refusal:
            if refusal.status != 422:
                raise
            form.show(refusal)
            context = self.context(purchase, decision_form=form, open_dialog=f"ask-{self.verb}")
            return render(request, "capacity/purchase.html", context, status=422)
        return HttpResponseRedirect(reverse("purchase", args=[uid]))


class PurchaseResolve(PurchasePage):
    """A person's word on a doubt."""

    right = "capacity.approve"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A reload leads back to the page."""
        return HttpResponseRedirect(reverse("purchase", args=[uid]))

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Write it down; nothing is tried again."""
        purchase = purchase_for(actor=self.actor, may="capacity.approve", uid=uid)
        form = ResolveForm(request.POST)
        form.is_valid()
        try:
            purchase_resolve(
                actor=self.actor,
                purchase=purchase,
                expected_version=posted_version(request),
                provider_id=form.cleaned_data.get("provider_id", ""),
                reason=form.cleaned_data.get("reason", ""),
            )
        except Refusal as refusal:
            if refusal.status != 422:
                raise
            form.show(refusal)
            context = self.context(purchase, resolve_form=form)
            return render(request, "capacity/purchase.html", context, status=422)
        self.say(_("The doubt about %(name)s is settled.") % {"name": purchase.name})
        return HttpResponseRedirect(reverse("purchase", args=[uid]))
