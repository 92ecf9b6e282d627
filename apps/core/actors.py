"""What core knows of whoever asks: only whether they hold a right. Teams supplies the real thing."""

from __future__ import annotations

from typing import Protocol, cast

from django.http import HttpRequest


class Actor(Protocol):
    """Whoever makes a request; see apps.teams.permissions.Actor."""

    @property
    def is_known(self) -> bool:
        """Whether someone signed in or sent a valid token."""
        ...

    @property
    def key(self) -> str:
        """A stable name for rate limits and idempotency, e.g. ``user:12``."""
        ...

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def request_id(self) -> str:
        """The request in hand, or empty."""
        ...

    @property
    def address(self) -> str:
        """Where the request came from, or empty."""
        ...

    @property
    def token_id(self) -> int | None:
        """The token used, or None for a browser session."""
        ...

    def holds(self, right: str) -> bool:
        """Whether the right is held anywhere, on any team or the platform."""
        ...

    def everywhere(self, right: str) -> bool:
        """Whether the right holds in every team and on the platform."""
        ...

    def team_ids(self, right: str) -> frozenset[int]:
        """The teams in which a membership gives the right."""
        ...

    def may(self, right: str, team_id: int | None) -> bool:
        """Whether the right holds in this team (None: something shared that no team owns)."""
        ...


def actor_of(request: HttpRequest) -> Actor:
    """The actor that ActorMiddleware or the API authentication put on the request."""
    return cast(Actor, request.actor)  # type: ignore[attr-defined]
