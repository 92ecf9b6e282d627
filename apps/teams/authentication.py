"""API authentication: a bearer token, or the browser's session with its CSRF check."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from apps.teams.permissions import actor_for_token
from apps.teams.selectors import token_by_bearer


class TokenOrSession(SessionAuthentication):
    """``Authorization: Bearer qd_…`` wins; without it the session counts, CSRF enforced."""

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        """Set ``request.actor``; a bad token is an error, never a fall-back to the session."""
        plain = request._request
        header = request.headers.get("Authorization", "")
        if not header:
            found = super().authenticate(request)
            request.actor = plain.actor  # type: ignore[attr-defined]
            return found
        kind, _sep, bearer = header.partition(" ")
        token = token_by_bearer(bearer.strip()) if kind.lower() == "bearer" else None
        if token is None:
            raise AuthenticationFailed("the bearer token is unknown, expired or revoked")
        actor = actor_for_token(
            token,
            request_id=getattr(plain, "request_id", ""),
            address=plain.META.get("REMOTE_ADDR", ""),
        )
        if not actor.is_known:
            raise AuthenticationFailed("the owner of this token is disabled")
        plain.actor = actor  # type: ignore[attr-defined]
        request.actor = actor  # type: ignore[attr-defined]
        return token.user or _Robot(), token

    def authenticate_header(self, request: Request) -> str:
        """What a 401 answers."""
        return 'Bearer realm="quarterdeck"'


class _Robot:
    """Stands where DRF wants a user for a service account."""

    is_authenticated = True
    is_active = True
    is_anonymous = False
    pk = None


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[misc, no-untyped-call]
    """How OpenAPI names it."""

    target_class = "apps.teams.authentication.TokenOrSession"
    name = "bearerToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """A plain HTTP bearer scheme."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "qd_<key id>.<secret>"}
