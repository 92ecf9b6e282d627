"""The calendar page: reservations on a time axis, and the same as a table."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.dateparse import parse_date
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.capacity.filters import ReservationFilter
from apps.capacity.permissions import can_operate_capacity
from apps.capacity.selectors import purchases_waiting_for, reservations_visible_to
from apps.capacity.states import COLOURS, ReservationKind, ReservationPhase
from apps.core import clock
from apps.core.errors import BadQuery
from apps.core.forms import is_htmx
from apps.core.lists import filtered_rows
from apps.core.pages import Page
from apps.dashboard.calendar import SPANS, calendar_of

DEFAULT_DAYS = 28


class CalendarPage(Page):
    """Reserved capacity over time."""

    right = "capacity.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, or with htmx its live part. Raises BadQuery."""
        labels = {"phase": gettext_lazy("State"), "kind": gettext_lazy("Kind"), "q": gettext_lazy("Text")}
        rows, values = filtered_rows(
            request, reservations_visible_to(self.actor), ReservationFilter, ("days", "from"), labels
        )
        days = self._days(request)
        start = self._start(request)
        calendar = calendar_of(self.actor, rows, start, days)
        shift = timedelta(days=max(1, days // 2))
        context = {
            "calendar": calendar,
            "spans": list(SPANS),
            "values": values,
            "kinds": ReservationKind.choices,
            "phases": ReservationPhase.choices,
            "rsv_colours": COLOURS,
            "earlier": (start - shift).date().isoformat(),
            "later": (start + shift).date().isoformat(),
            "may_operate": can_operate_capacity(self.actor),
            "paused": {lane.reservation.account for lane in calendar.lanes if lane.reservation.account.is_paused},
            "waiting": purchases_waiting_for(self.actor),
        }
        template = "dashboard/calendar.html"
        return render(request, f"{template}#live" if is_htmx(request) else template, context)

    @staticmethod
    def _days(request: HttpRequest) -> int:
        text = request.GET.get("days", str(DEFAULT_DAYS))
        if text not in {str(d) for d in SPANS}:
            known = ", ".join(str(d) for d in SPANS)
            raise BadQuery(_("%(name)s: must be one of %(known)s") % {"name": "days", "known": known})
        return int(text)

    @staticmethod
    def _start(request: HttpRequest) -> datetime:
        text = request.GET.get("from", "")
        if not text:
            return datetime.combine(clock.now().date() - timedelta(days=2), time(), UTC)
        try:
            day = parse_date(text)
        except ValueError:
            day = None
        if day is None or not 2000 <= day.year <= 2100:
            raise BadQuery(_("%(name)s: a day such as 2026-12-01") % {"name": "from"})
        return datetime.combine(day, time(), UTC)
