"""The page of orphans: what nobody here owns, what it costs, and what a person decides about it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django_filters import FilterSet

from apps.capacity.orphan_models import Orphan
from apps.capacity.orphan_selectors import orphan_for, orphan_sentence, orphans_usd_per_hour, orphans_visible_to
from apps.capacity.orphan_services import orphan_keep, orphan_release, orphan_remove
from apps.capacity.orphan_states import ORPHAN_COLOURS, ORPHAN_LIVE, OrphanKind, OrphanPhase
from apps.connections.selectors import accounts_paused
from apps.core.filters import ChoicesFilter, TextFilter
from apps.core.forms import is_htmx, typed_name
from apps.core.lists import listing
from apps.core.pages import Page


class OrphanFilter(FilterSet):  # type: ignore[misc]
    """By phase, kind and text."""

    phase = ChoicesFilter("phase", values=OrphanPhase.choices)
    kind = ChoicesFilter("kind", values=OrphanKind.choices)
    q = TextFilter("provider_id", "tagged_uid", "instance_type", "account__name")

    class Meta:
        model = Orphan
        fields: list[str] = []


class OrphanList(Page):
    """Everything with our tag that belongs to nothing here."""

    right = "capacity.operate"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, or with htmx its rows. Raises BadQuery."""
        rows = orphans_visible_to(self.actor)
        if "phase" not in request.GET:
            rows = rows.filter(phase__in=ORPHAN_LIVE)
        found = listing(
            request,
            rows,
            OrphanFilter,
            sorts={"-first_seen_at": "-first_seen_at", "first_seen_at": "first_seen_at"},
            labels={"phase": gettext_lazy("State"), "kind": gettext_lazy("Kind"), "q": gettext_lazy("Text")},
            words={
                "phase": lambda v: str(OrphanPhase(v).label),
                "kind": lambda v: str(OrphanKind(v).label),
            },
        )
        context = {
            "list": found,
            "paused": accounts_paused(),
            "rows": [(orphan, orphan_sentence(orphan)) for orphan in found.rows],
            "phases": OrphanPhase.choices,
            "kinds": OrphanKind.choices,
            "orphan_colours": ORPHAN_COLOURS,
            "usd_per_hour": orphans_usd_per_hour(self.actor),
        }
        template = "capacity/orphans.html"
        return render(request, f"{template}#rows" if is_htmx(request) else template, context)


class _Decide(Page):
    abstract = True
    right = "capacity.operate"

    def back(self, words: str) -> HttpResponse:
        """To the list, with a word."""
        self.say(words)
        return HttpResponseRedirect(reverse("orphans"))


class OrphanRemove(_Decide):
    """Remove one; its id must be typed."""

    right = "capacity.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it. Raises InvalidInput, TransitionConflict."""
        orphan = orphan_for(actor=self.actor, may="capacity.operate", uid=uid)
        typed_name(request, orphan.provider_id)
        orphan_remove(actor=self.actor, orphan=orphan)
        return self.back(_("%(id)s is being removed.") % {"id": orphan.provider_id})


class OrphanKeep(_Decide):
    """Keep one, with a reason."""

    right = "capacity.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Note it. Raises InvalidInput, TransitionConflict."""
        orphan = orphan_for(actor=self.actor, may="capacity.operate", uid=uid)
        orphan_keep(actor=self.actor, orphan=orphan, reason=request.POST.get("reason", ""))
        return self.back(_("%(id)s is kept.") % {"id": orphan.provider_id})


class OrphanRelease(_Decide):
    """Take back the word that kept one."""

    right = "capacity.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Note it. Raises TransitionConflict."""
        orphan = orphan_for(actor=self.actor, may="capacity.operate", uid=uid)
        orphan_release(actor=self.actor, orphan=orphan)
        return self.back(_("%(id)s is no longer kept.") % {"id": orphan.provider_id})
