"""A portal whose Redis is gone still signs people in and answers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.test import override_settings

from portal.cache import FallbackRedisCache

DEAD = {
    "default": {
        "BACKEND": "portal.cache.FallbackRedisCache",
        "LOCATION": "unix:///nonexistent/valkey.sock",
        "OPTIONS": {"socket_connect_timeout": 0.2},
    }
}


def test_every_call_answers_without_redis() -> None:
    cache = FallbackRedisCache("unix:///nonexistent/valkey.sock", {})
    assert cache.get("a", 5) == 5
    cache.set("a", 1)
    assert cache.add("a", 1) is True
    assert cache.incr("a", 3) == 3
    assert cache.delete("a") is False
    assert cache.touch("a") is False


@pytest.mark.django_db
@override_settings(CACHES=DEAD)
def test_signing_in_and_the_api_work_without_redis(client: Any, owner: Any) -> None:
    began = time.monotonic()
    answer = client.post("/accounts/login/", {"login": "owner", "password": "correct horse battery"})
    assert answer.status_code == 302
    assert client.get("/").status_code == 200
    assert client.get("/api/v1/whoami").status_code == 200
    assert time.monotonic() - began < 5
