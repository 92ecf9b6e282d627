"""allauth's account rules: nobody signs up by themselves."""

from __future__ import annotations

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest


class ClosedAccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Accounts come from an administrator or the identity provider."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Never."""
        return False
