"""API clients of people, by bearer token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.teams.services import grantable_scopes, token_create
from tests.conftest import actor_of


class ApiClient(Client):
    """A client that sends JSON and a token."""

    def __init__(self, bearer: str = "") -> None:
        super().__init__(headers={"Authorization": f"Bearer {bearer}"} if bearer else {})

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """One request to /api/v1/…"""
        return self.generic(
            method,
            f"/api/v1/{path}",
            data="" if body is None else __import__("json").dumps(body),
            content_type="application/json",
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )


@pytest.fixture
def as_user() -> Callable[..., ApiClient]:
    """A client for a person, with all their rights or some scopes."""

    def make(user: Any = None, scopes: list[str] | None = None) -> ApiClient:
        if user is None:
            return ApiClient()
        actor = actor_of(user)
        chosen = sorted(grantable_scopes(actor)) if scopes is None else scopes
        _token, bearer = token_create(actor=actor, label="test", scopes=chosen, days=1)
        return ApiClient(bearer)

    return make
