"""Puts the signed-in person's Actor on every request."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

from apps.teams.permissions import ANONYMOUS, actor_for_user
from apps.teams.saved_views import list_setup


class ActorMiddleware:
    """Runs after AuthenticationMiddleware; one query for the memberships."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer with ``request.actor`` set."""
        request_id = getattr(request, "request_id", "")
        if request.user.is_authenticated:
            request.actor = actor_for_user(  # type: ignore[attr-defined]
                request.user, request_id=request_id, address=request.META.get("REMOTE_ADDR", "")
            )
            request.list_setup = list_setup  # type: ignore[attr-defined]
        else:
            request.actor = ANONYMOUS  # type: ignore[attr-defined]
        return self.get_response(request)
