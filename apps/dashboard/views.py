"""Home, the palette's search, and the language button."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from apps.core.errors import BadQuery
from apps.core.pages import PUBLIC, SIGNED_IN, Page
from apps.dashboard.context import Frame
from apps.dashboard.selectors import Hit, capacity_segments, home_for, jobs_matching, nodes_matching, page_address
from apps.jobs.selectors import job_costs


class HomePage(Page):
    """What waits for the person, then what is theirs."""

    right = SIGNED_IN

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, or with htmx its live part."""
        home = home_for(self.actor)
        context = {
            "home": home,
            "bars": [(c, capacity_segments(c)) for c in home.capacities],
            "costs": job_costs(home.jobs),
            "may_submit": self.actor.holds("jobs.submit"),
            "may_connect": self.actor.everywhere("connections.manage"),
        }
        template = "dashboard/home.html#live" if getattr(request, "htmx", False) else "dashboard/home.html"
        return render(request, template, context)


class Search(Page):
    """The palette: pages, jobs, nodes and actions that match."""

    right = SIGNED_IN

    def get(self, request: HttpRequest) -> HttpResponse:
        """A fragment."""
        text = request.GET.get("q", "").strip()[:80]
        folded = text.casefold()
        places = [
            Hit(item.label, group.label, item.url, item.icon)
            for group in Frame(request).groups
            for item in group.items
            if not folded or folded in item.label.casefold() or folded in item.name
        ]
        if self.actor.holds("jobs.submit"):
            label = _("Submit a job")
            if not folded or folded in label.casefold():
                places.insert(0, Hit(label, _("Action"), page_address("job-new"), "plus"))
        jobs = jobs_matching(self.actor, text) if self.actor.holds("jobs.view") else []
        nodes = nodes_matching(self.actor, text)
        hits = [*jobs, *nodes, *places] if text else [*places[:1], *jobs[:5], *places[1:]]
        return render(request, "dashboard/search.html", {"hits": hits[:20], "text": text})


class Language(Page):
    """Sets the cookie of the language button and goes back."""

    right = PUBLIC

    def post(self, request: HttpRequest) -> HttpResponse:
        """Remember the choice for a year. Raises BadQuery for a language the portal does not speak."""
        chosen = request.POST.get("language", "")
        if chosen not in dict(settings.LANGUAGES):
            raise BadQuery(
                _("%(name)s: must be one of %(known)s")
                % {"name": "language", "known": ", ".join(dict(settings.LANGUAGES))}
            )
        back = request.POST.get("next", "/")
        if not url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure()):
            back = "/"
        response = HttpResponseRedirect(back)
        response.set_cookie(
            settings.LANGUAGE_COOKIE_NAME,
            chosen,
            max_age=timedelta(days=365),
            samesite="Lax",
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
        )
        return response
