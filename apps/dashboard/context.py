"""What the frame of every page needs: where one may go, what burns now, what wants attention."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_lazy as _

from apps.checkpoints.states import COLOURS as CHECKPOINT_COLOURS
from apps.clusters.selectors import burn_usd_per_hour
from apps.clusters.states import (
    CLUSTER_COLOURS,
    FLEET_COLOURS,
    GROUP_COLOURS,
    NODE_ACTION_COLOURS,
    NODE_COLOURS,
)
from apps.connections.states import COLOURS as CONNECTION_COLOURS
from apps.core.pages import SIGNED_IN
from apps.health.selectors import findings_visible_to
from apps.health.states import COLOURS as FINDING_COLOURS
from apps.health.states import FATAL, SEVERITY_COLOURS, FindingPhase
from apps.jobs.action_states import ACTION_COLOURS
from apps.jobs.states import ATTEMPT_COLOURS, JOB_COLOURS
from apps.storage.states import COLOURS as FILE_SYSTEM_COLOURS
from apps.teams.models import Team
from apps.teams.permissions import ANONYMOUS, Actor
from apps.teams.selectors import teams_visible_to

#: Colour tables for ``{% status value colours.job %}``.
COLOURS: dict[str, dict[str, str]] = {
    "job": JOB_COLOURS,
    "attempt": ATTEMPT_COLOURS,
    "job_action": ACTION_COLOURS,
    "cluster": CLUSTER_COLOURS,
    "fleet": FLEET_COLOURS,
    "group": GROUP_COLOURS,
    "node_action": NODE_ACTION_COLOURS,
    "file_system": FILE_SYSTEM_COLOURS,
    "node": NODE_COLOURS,
    "checkpoint": CHECKPOINT_COLOURS,
    "connection": CONNECTION_COLOURS,
    "finding": FINDING_COLOURS,
    "severity": SEVERITY_COLOURS,
}

#: Group → (label, URL name, icon, right). A page that has no address yet is not shown.
_MAP: tuple[tuple[Any, tuple[tuple[Any, str, str, str], ...]], ...] = (
    (
        _("Work"),
        (
            (_("Home"), "home", "house", SIGNED_IN),
            (_("Jobs"), "jobs", "layers", "jobs.view"),
            (_("Templates"), "templates", "layout-template", "templates.view"),
            (_("Checkpoints"), "checkpoints", "save", "checkpoints.view"),
        ),
    ),
    (
        _("Capacity"),
        (
            (_("Clusters"), "clusters", "server", "clusters.view"),
            (_("Calendar"), "calendar", "calendar-days", "capacity.view"),
            (_("Orphans"), "orphans", "ghost", "capacity.operate"),
            (_("Storage"), "storage", "hard-drive", "storage.view"),
            (_("Catalog"), "catalog", "table-2", "catalog.view"),
        ),
    ),
    (
        _("Health"),
        (
            (_("GPU health"), "health", "heart-pulse", "health.view"),
            (_("Findings"), "findings", "inbox", "health.view"),
        ),
    ),
    (
        _("Money"),
        (
            (_("Costs"), "costs", "receipt", "costs.view"),
            (_("Quotas"), "quotas", "gauge", "quotas.view"),
        ),
    ),
    (
        _("Admin"),
        (
            (_("Connections"), "connections", "plug", "connections.view"),
            (_("Audit"), "audit", "scroll-text", "audit.view"),
            (_("Admin console"), "admin:index", "wrench", "staff"),
        ),
    ),
)


@dataclass(frozen=True)
class NavItem:
    """One place in the sidebar."""

    label: str
    url: str
    icon: str
    is_here: bool
    name: str


@dataclass(frozen=True)
class NavGroup:
    """A heading of the sidebar with its places."""

    label: str
    items: tuple[NavItem, ...]


@lru_cache(maxsize=64)
def address(name: str) -> str:
    """The address of a page without parameters, or empty where there is no such page."""
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""


class Frame:
    """Read lazily: a fragment that draws no frame costs no query, a page at most three."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self.actor: Actor = getattr(request, "actor", ANONYMOUS)

    def _may(self, right: str) -> bool:
        if right == "staff":
            user = getattr(self._request, "user", None)
            return bool(user is not None and user.is_staff)
        return right == SIGNED_IN or self.actor.holds(right)

    def _is_here(self, url: str) -> bool:
        path = self._request.path
        return path == url or (url != "/" and path.startswith(url.rstrip("/") + "/"))

    @cached_property
    def groups(self) -> list[NavGroup]:
        """The sidebar: only groups that hold something for this person."""
        found = []
        for label, places in _MAP:
            items = tuple(
                NavItem(str(text), address(name), icon, self._is_here(address(name)), name)
                for text, name, icon, right in places
                if address(name) and self._may(right)
            )
            if items:
                found.append(NavGroup(str(label), items))
        return found

    @cached_property
    def teams(self) -> list[Team]:
        """Teams to choose from, at most 50."""
        return list(teams_visible_to(self.actor)[:50])

    @property
    def team(self) -> str:
        """The team the page is narrowed to, or empty."""
        return self._request.GET.get("team", "")

    @cached_property
    def burn(self) -> Decimal | None:
        """USD per hour of the fleets one may see the cost of; None for who may see none."""
        return burn_usd_per_hour(self.actor) if self.actor.holds("costs.view") else None

    @cached_property
    def alerts(self) -> int:
        """Open findings that call for someone."""
        if not self.actor.holds("health.view") or not address("findings"):
            return 0
        return findings_visible_to(self.actor).filter(phase=FindingPhase.OPEN, severity__in=sorted(FATAL)).count()

    @property
    def findings_url(self) -> str:
        """Where the alerts are, for who may see them."""
        return address("findings") if self.actor.holds("health.view") else ""

    @property
    def costs_url(self) -> str:
        """Where the money is explained."""
        return address("costs")

    @property
    def words(self) -> str:
        """What the page's script says by itself, as JSON: the same words the server uses for times."""
        words = {
            "dh": gettext("%(d)s d %(h)s h"),
            "d": gettext("%(d)s d"),
            "hm": gettext("%(h)s h %(m)s min"),
            "h": gettext("%(h)s h"),
            "ms": gettext("%(m)s min %(s)s s"),
            "m": gettext("%(m)s min"),
            "s": gettext("%(s)s s"),
            "ago": gettext("%(age)s ago"),
            "inn": gettext("in %(age)s"),
            "copied": gettext("Copied"),
            "newer": gettext("%(n)s new"),
            "uncopied": gettext("The browser did not allow copying"),
        }
        return json.dumps(words, ensure_ascii=False)

    @property
    def language(self) -> str:
        """The language in force, ``en`` or ``ko``."""
        return (get_language() or "en").split("-")[0]


def frame(request: HttpRequest) -> dict[str, Any]:
    """Context of the frame."""
    return {"frame": Frame(request), "colours": COLOURS, "actor": getattr(request, "actor", ANONYMOUS)}
