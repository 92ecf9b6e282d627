"""Default deny for the API: what DRF asks before any endpoint runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from apps.core.actors import actor_of
from apps.core.pages import PUBLIC, SIGNED_IN


class HasDeclaredRight(BasePermission):
    """Default deny: an endpoint that declares no right for this method refuses everyone."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether the actor holds the declared right anywhere; objects are checked by selectors."""
        rights: Mapping[str, str] = getattr(view, "rights", {})
        method = "GET" if request.method in ("HEAD", "OPTIONS") else request.method or ""
        right = rights.get(method, "")
        if not right:
            return False
        if right == PUBLIC:
            return True
        actor = actor_of(request)
        if not actor.is_known:
            return False
        return right == SIGNED_IN or actor.holds(right)
