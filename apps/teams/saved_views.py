"""Saved views of list pages: named reads, and the verbs of people on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import Resolver404, resolve
from django.utils.translation import gettext as _

from apps.audit.services import record
from apps.core.actors import actor_of
from apps.core.errors import BadQuery, Forbidden, NotFound, field_refusal
from apps.core.lists import NO_VIEW, VIEW, ListSetup
from apps.core.pages import Page
from apps.teams.models import SavedView, Team
from apps.teams.permissions import Actor

#: Views one person may keep on one page; columns one may hide.
MAX_VIEWS = 50
MAX_COLUMNS = 40


def views_visible_to(actor: Actor) -> QuerySet[SavedView]:
    """One's own named views and those shared with one's teams."""
    if actor.user_id is None:
        return SavedView.objects.none()
    rows = SavedView.objects.exclude(name="").select_related("owner", "team")
    return rows.filter(Q(owner=actor.user_id) | Q(team__in=list(actor.roles))).order_by("page", "name", "id")


def can_change_view(actor: Actor, view: SavedView) -> bool:
    """Owners change their own; leads those shared with their team."""
    if view.owner_id == actor.user_id:
        return True
    return view.team_id is not None and view.team_id in actor.roles and actor.may("jobs.manage", view.team_id)


def view_for(*, actor: Actor, uid: str) -> SavedView:
    """The view of this uid, which the actor may change. Raises NotFound."""
    view = views_visible_to(actor).filter(uid=uid).first()
    if view is None or not can_change_view(actor, view):
        raise NotFound(_("no view %(uid)s that you may change") % {"uid": uid})
    return view


def list_setup(request: HttpRequest) -> ListSetup:
    """How the person has set up the list at the request's address; one query. Raises BadQuery for an unknown view."""
    actor: Any = actor_of(request)
    wanted = request.GET.get(VIEW, "")
    mine = Q(owner=actor.user_id, page=request.path) & (Q(name="") | Q(is_default=True))
    named = Q(uid=wanted, page=request.path) & (Q(owner=actor.user_id) | Q(team__in=list(actor.roles)))
    rows = list(SavedView.objects.filter(mine | named if wanted and wanted != NO_VIEW else mine))
    default = next((r for r in rows if r.is_default and r.owner_id == actor.user_id), None)
    chosen = next((r for r in rows if r.uid == wanted), None)
    if wanted and wanted != NO_VIEW and chosen is None:
        raise BadQuery(_("%(name)s: there is no %(value)s that you may see") % {"name": VIEW, "value": repr(wanted)})
    own = next((r for r in rows if r.name == "" and r.owner_id == actor.user_id), None)
    in_force = chosen or own
    return ListSetup(
        hidden=frozenset(in_force.hidden_columns if in_force else ()),
        view_name=chosen.name if chosen else "",
        default_address=default.address if default else "",
    )


def _page(path: str) -> str:
    """A path of one of the portal's own pages. Raises InvalidInput."""
    try:
        found = resolve(path)
    except Resolver404:
        raise field_refusal("/page", _("there is no such page")) from None
    view = getattr(found.func, "view_class", None)
    if found.kwargs or view is None or not issubclass(view, Page):
        raise field_refusal("/page", _("this page keeps no views"))
    return path


def _columns(names: Sequence[str]) -> list[str]:
    chosen = list(dict.fromkeys(names))
    if len(chosen) > MAX_COLUMNS or any(not name.isidentifier() or len(name) > 40 for name in chosen):
        raise field_refusal("/hidden", _("names of columns, at most %(most)s") % {"most": MAX_COLUMNS})
    return chosen


def columns_hide(*, actor: Actor, page: str, hidden: Sequence[str]) -> None:
    """Keep which columns the person hides on a page. Raises InvalidInput, Forbidden."""
    if actor.user_id is None:
        raise Forbidden(_("only people keep views"))
    SavedView.objects.update_or_create(
        owner_id=actor.user_id, page=_page(page), name="", defaults={"hidden_columns": _columns(hidden)}
    )


def view_save(
    *,
    actor: Actor,
    page: str,
    name: str,
    query: str,
    hidden: Sequence[str] = (),
    team: Team | None = None,
    is_default: bool = False,
) -> SavedView:
    """Keep a list as it is under a name; one's own view of that name on the page is replaced.

    Raises InvalidInput, Forbidden for a team one does not lead.
    """
    if actor.user_id is None:
        raise Forbidden(_("only people keep views"))
    title = name.strip()
    if not 1 <= len(title) <= 60:
        raise field_refusal("/name", _("a name of at most %(most)s characters") % {"most": 60})
    if team is not None and not (team.pk in actor.roles and actor.may("jobs.manage", team.pk)):
        raise Forbidden(_("only a lead of team %(team)s shares views with it") % {"team": team.slug})
    pairs = [(k, v) for k, v in parse_qsl(query, keep_blank_values=False) if k not in ("cursor", VIEW)]
    if len(query) > 1000 or len(pairs) > 50:
        raise field_refusal("/query", _("the filters are too long to keep"))
    with transaction.atomic():
        mine = SavedView.objects.filter(owner_id=actor.user_id, page=_page(page))
        if mine.exclude(name=title).exclude(name="").count() >= MAX_VIEWS:
            raise field_refusal("/name", _("at most %(most)s views on one page") % {"most": MAX_VIEWS})
        if is_default:
            mine.filter(is_default=True).update(is_default=False)
        what = {
            "query": urlencode(pairs),
            "hidden_columns": _columns(hidden),
            "team": team,
            "is_default": is_default,
        }
        view, _made = SavedView.objects.update_or_create(owner_id=actor.user_id, page=page, name=title, defaults=what)
        after = {"page": page, "name": title, "query": view.query, "team": team.slug if team else ""}
        record(actor, "view.save", "view", view.uid, team_id=team.pk if team else None, after=after)
    return view


def view_rename(*, actor: Actor, view: SavedView, name: str) -> None:
    """Another name; the caller fetched the view with view_for. Raises InvalidInput."""
    title = name.strip()
    if not 1 <= len(title) <= 60:
        raise field_refusal("/name", _("a name of at most %(most)s characters") % {"most": 60})
    with transaction.atomic():
        taken = SavedView.objects.filter(owner=view.owner, page=view.page, name=title).exclude(pk=view.pk)
        if taken.exists():
            raise field_refusal("/name", _("there is a view %(name)s already") % {"name": title})
        SavedView.objects.filter(pk=view.pk).update(name=title)
        record(
            actor,
            "view.rename",
            "view",
            view.uid,
            team_id=view.team_id,
            before={"name": view.name},
            after={"name": title},
        )


def view_make_default(*, actor: Actor, view: SavedView, is_default: bool) -> None:
    """Open the page with this view from now on, or no longer. Raises Forbidden for another's view."""
    if view.owner_id != actor.user_id:
        raise Forbidden(_("save it as your own view first"))
    with transaction.atomic():
        SavedView.objects.filter(owner=view.owner, page=view.page, is_default=True).update(is_default=False)
        SavedView.objects.filter(pk=view.pk).update(is_default=is_default)
        record(actor, "view.default", "view", view.uid, team_id=view.team_id, after={"is_default": is_default})


def view_delete(*, actor: Actor, view: SavedView) -> None:
    """Remove it for everyone who sees it."""
    with transaction.atomic():
        before = {"page": view.page, "name": view.name, "query": view.query}
        record(actor, "view.delete", "view", view.uid, team_id=view.team_id, before=before)
        view.delete()
