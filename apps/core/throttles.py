"""Rate limits per actor: fixed windows of a minute, reads and writes apart, with headers on every answer."""

from __future__ import annotations

import time
from typing import Any

from django.core.cache import cache
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from apps.core.actors import actor_of

_WINDOWS = {"s": 1, "min": 60, "h": 3600}


def parse_rate(rate: str) -> tuple[int, int]:
    """``240/min`` as (240, 60). Raises ValueError for anything else."""
    number, _sep, unit = rate.partition("/")
    if unit not in _WINDOWS or not number.isdigit():
        raise ValueError(f"rate {rate!r} must look like 240/min")
    return int(number), _WINDOWS[unit]


class _Window(BaseThrottle):
    """Counts requests of one actor in the current window; a cache that is away limits nothing."""

    scope = ""
    safe = True

    def allow_request(self, request: Request, view: Any) -> bool:
        """Whether this request fits; sets the headers either way."""
        if (request.method in ("GET", "HEAD", "OPTIONS")) is not self.safe:
            return True
        limit, window_s = parse_rate(str(api_settings.DEFAULT_THROTTLE_RATES[self.scope]))
        slot, into = divmod(time.time(), window_s)
        actor = actor_of(request)
        name = actor.key if actor.is_known else f"ip:{request.META.get('REMOTE_ADDR', '')}"
        key = f"rate:{self.scope}:{name}:{int(slot)}"
        if cache.add(key, 1, timeout=window_s * 2):
            used = 1
        else:
            try:
                used = cache.incr(key)
            except ValueError:  # expired between the two calls, or the cache is away
                used = 1
        self._wait = window_s - into
        headers: dict[str, Any] = {
            "RateLimit-Limit": str(limit),
            "RateLimit-Remaining": str(max(0, limit - used)),
            "RateLimit-Reset": str(int(self._wait) + 1),
        }
        request.rate_limit_headers = headers  # type: ignore[attr-defined]
        return used <= limit

    def wait(self) -> float:
        """Seconds until the window ends."""
        return self._wait


class ReadThrottle(_Window):
    """Safe methods."""

    scope = "read"


class WriteThrottle(_Window):
    """Methods that change something."""

    scope = "write"
    safe = False
