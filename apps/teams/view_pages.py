"""Pages of saved views: the menu of a list page, saving, choosing columns, and the page where one tidies them."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from apps.core.errors import BadQuery
from apps.core.pages import SIGNED_IN, Page
from apps.teams.models import Team
from apps.teams.saved_views import (
    can_change_view,
    columns_hide,
    view_delete,
    view_for,
    view_make_default,
    view_rename,
    view_save,
    views_visible_to,
)
from apps.teams.selectors import team_for


def _hidden(request: HttpRequest) -> list[str]:
    """The columns of the form that were not ticked."""
    shown = set(request.POST.getlist("shown"))
    return [name for name in request.POST.getlist("column") if name not in shown]


class ViewMenu(Page):
    """The saved views of one list page, for its menu."""

    right = SIGNED_IN

    def get(self, request: HttpRequest) -> HttpResponse:
        """A fragment of links."""
        unknown = sorted(set(request.GET) - {"page"})
        if unknown:
            raise BadQuery(
                _("unknown query parameter %(unknown)s; known here: %(known)s")
                % {"unknown": ", ".join(unknown), "known": "page"}
            )
        rows = list(views_visible_to(self.actor).filter(page=request.GET.get("page", ""))[:100])
        teams = Team.objects.filter(pk__in=[t for t in self.actor.roles if self.actor.may("jobs.manage", t)])
        return render(request, "teams/views.html#menu", {"views": rows, "teams": list(teams.order_by("slug"))})


class ViewSave(Page):
    """Keeping a list as it is under a name."""

    right = SIGNED_IN

    def post(self, request: HttpRequest) -> HttpResponse:
        """Save and show it. Raises InvalidInput, Forbidden, NotFound."""
        slug = request.POST.get("team", "")
        view = view_save(
            actor=self.actor,
            page=request.POST.get("page", ""),
            name=request.POST.get("name", ""),
            query=request.POST.get("query", ""),
            hidden=request.POST.getlist("hidden"),
            team=team_for(actor=self.actor, may="jobs.manage", slug=slug) if slug else None,
            is_default=request.POST.get("is_default") == "1",
        )
        self.say(_("View %(name)s is saved.") % {"name": view.name})
        return HttpResponseRedirect(view.address)


class ColumnsChoose(Page):
    """Which columns one sees on a list page."""

    right = SIGNED_IN

    def post(self, request: HttpRequest) -> HttpResponse:
        """Keep it and go back to the list. Raises InvalidInput."""
        page, query = request.POST.get("page", ""), request.POST.get("query", "")
        columns_hide(actor=self.actor, page=page, hidden=_hidden(request))
        return HttpResponseRedirect(f"{page}?{query or 'view=all'}")


class ViewList(Page):
    """All the views one sees, to rename, share no longer, make default or delete."""

    right = SIGNED_IN

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page."""
        if request.GET:
            raise BadQuery(
                _("unknown query parameter %(names)s; this page takes none") % {"names": ", ".join(sorted(request.GET))}
            )
        rows = [
            {"view": v, "may_change": can_change_view(self.actor, v), "is_mine": v.owner_id == self.actor.user_id}
            for v in views_visible_to(self.actor)[:300]
        ]
        return render(request, "teams/views.html", {"rows": rows})


class ViewChange(Page):
    """One change of one view: ``rename``, ``default``, ``undefault`` or ``delete``."""

    right = SIGNED_IN

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Do it and go back to the views. Raises NotFound, InvalidInput, Forbidden, BadQuery."""
        view = view_for(actor=self.actor, uid=uid)
        match request.POST.get("what", ""):
            case "rename":
                view_rename(actor=self.actor, view=view, name=request.POST.get("name", ""))
            case "default" | "undefault" as what:
                view_make_default(actor=self.actor, view=view, is_default=what == "default")
            case "delete":
                view_delete(actor=self.actor, view=view)
            case other:
                raise BadQuery(
                    _("%(name)s: must be one of %(known)s")
                    % {"name": f"what={other}", "known": "rename, default, undefault, delete"}
                )
        return HttpResponseRedirect(reverse("views"))
