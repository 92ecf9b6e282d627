"""The page of one reservation: its sentence, price and history; its owner, its extension, its cancellation."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from apps.audit.selectors import events_of
from apps.audit.timeline import lines_of
from apps.capacity import rules
from apps.capacity.forms import AssignForm, ExtendForm, PriceForm
from apps.capacity.models import Reservation
from apps.capacity.permissions import can_operate_capacity
from apps.capacity.price_services import ENTERED, may_be_priced, reservation_price
from apps.capacity.selectors import (
    purchases_visible_to,
    reservation_for,
    reservation_sentence,
    unused_usd_per_hour,
)
from apps.capacity.services import extension_search, reservation_assign, reservation_cancel
from apps.capacity.states import BLOCKS, COLOURS, LIVE, ReservationKind, ReservationPhase
from apps.capacity.words import WORDS
from apps.core.errors import Refusal
from apps.core.forms import is_htmx, posted_version, typed_name
from apps.core.pages import Page
from apps.teams.selectors import teams_visible_to


class ReservationPage(Page):
    """One reservation."""

    right = "capacity.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page, or with htmx its live part."""
        row = reservation_for(actor=self.actor, may="capacity.view", uid=uid)
        template = "capacity/reservation.html"
        return render(request, f"{template}#live" if is_htmx(request) else template, self.context(row))

    def context(self, row: Reservation, **more: Any) -> dict[str, Any]:
        """What the page shows; forms that were refused come in ``more``."""
        # By the relation's name: clusters live on a higher floor.
        fleets = getattr(row, "fleets", None)
        live = row.phase in LIVE
        marks = rules.end_marks(row.kind, row.end_at) if row.kind in BLOCKS and row.end_at is not None else None
        may_operate = can_operate_capacity(self.actor)
        return {
            "rsv": row,
            "sentence": reservation_sentence(row),
            "usd_gpu": rules.usd_per_gpu_hour(row.usd_per_hour, row.instance_type),
            "unused": unused_usd_per_hour(row),
            "marks": marks,
            "colours_here": COLOURS,
            "fleets": list(fleets.select_related("cluster")[:20]) if fleets is not None else [],
            "purchases": list(purchases_visible_to(self.actor).filter(reservation=row)[:10]),
            "lines": lines_of(events_of([row.uid], 100), WORDS),
            "is_live": live,
            "may_operate": may_operate,
            "may_cancel": may_operate and live and row.kind == ReservationKind.ODCR and not row.is_adopted,
            "may_extend": may_operate
            and row.kind in BLOCKS
            and row.phase in (ReservationPhase.ACTIVE, ReservationPhase.SCHEDULED),
            "assign_form": AssignForm(
                teams=list(teams_visible_to(self.actor)), initial={"team": row.team.slug if row.team else ""}
            ),
            "extend_form": ExtendForm(),
            "may_price": may_operate and may_be_priced(row),
            "is_entered": row.price_source == ENTERED,
            "price_form": PriceForm(initial={"usd_upfront": row.usd_upfront}),
            **more,
        }


class ReservationChange(ReservationPage):
    """Assign, price, extend or cancel."""

    right = "capacity.operate"
    verb = ""

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A reload leads back to the page."""
        return HttpResponseRedirect(reverse("reservation", args=[uid]))

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Do it; a refusal of a field opens its form again."""
        row = reservation_for(actor=self.actor, may="capacity.operate", uid=uid)
        if self.verb == "cancel":
            typed_name(request, str(row))
            reservation_cancel(actor=self.actor, reservation=row, expected_version=posted_version(request))
            self.say(_("%(name)s is being cancelled.") % {"name": row})
            return HttpResponseRedirect(reverse("reservation", args=[uid]))
        if self.verb == "assign":
            form = AssignForm(request.POST, teams=list(teams_visible_to(self.actor)))
            if form.is_valid():
                team = form.teams.get(form.cleaned_data["team"])
                version = posted_version(request)
                reservation_assign(actor=self.actor, reservation=row, team=team, expected_version=version)
                return HttpResponseRedirect(reverse("reservation", args=[uid]))
            return self._refused(request, row, assign_form=form, open_dialog="ask-assign")
        if self.verb == "price":
            return self._price(request, row)
        longer = ExtendForm(request.POST)
        if longer.is_valid():
            try:
                found = extension_search(actor=self.actor, reservation=row, days=longer.cleaned_data["days"])
                return HttpResponseRedirect(reverse("offering-search", args=[found.uid]))
            except Refusal as refusal:
                longer.show(refusal)
        return self._refused(request, row, extend_form=longer, open_dialog="ask-extend")

    def _price(self, request: HttpRequest, row: Reservation) -> HttpResponse:
        form = PriceForm(request.POST)
        if form.is_valid():
            try:
                version = posted_version(request)
                reservation_price(actor=self.actor, reservation=row, expected_version=version, **form.cleaned_data)
                return HttpResponseRedirect(reverse("reservation", args=[row.uid]))
            except Refusal as refusal:
                form.show(refusal)
        return self._refused(request, row, price_form=form, open_dialog="ask-price")

    def _refused(self, request: HttpRequest, row: Reservation, **forms: Any) -> HttpResponse:
        return render(request, "capacity/reservation.html", self.context(row, **forms), status=422)
