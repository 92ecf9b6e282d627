"""A Redis cache that a dead Redis turns into no cache: the broker is a doorbell, never the truth."""

from __future__ import annotations

import logging
from typing import Any

from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


class FallbackRedisCache(RedisCache):
    """Redis when it answers; otherwise every read is a miss and every write is dropped.

    ``add`` then says True: whoever asks for a lock or a first count gets it, so a dead Redis locks
    nobody out of signing in.
    """

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        """The value, or ``default`` also when Redis is away."""
        try:
            return super().get(key, default, version)
        except (RedisError, OSError) as error:
            return self._away("get", error, default)

    def set(self, key: Any, value: Any, timeout: Any = 300, version: int | None = None) -> None:
        """Store, or drop when Redis is away."""
        try:
            super().set(key, value, timeout, version)
        except (RedisError, OSError) as error:
            self._away("set", error, None)

    def add(self, key: Any, value: Any, timeout: Any = 300, version: int | None = None) -> bool:
        """Store if absent; True when Redis is away."""
        try:
            return bool(super().add(key, value, timeout, version))
        except (RedisError, OSError) as error:
            return bool(self._away("add", error, True))

    def delete(self, key: Any, version: int | None = None) -> bool:
        """Drop; False when Redis is away."""
        try:
            return bool(super().delete(key, version))
        except (RedisError, OSError) as error:
            return bool(self._away("delete", error, False))

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Count up; ``delta`` when Redis is away."""
        try:
            return int(super().incr(key, delta, version))
        except (RedisError, OSError) as error:
            return int(self._away("incr", error, delta))

    def touch(self, key: Any, timeout: Any = 300, version: int | None = None) -> bool:
        """Keep longer; False when Redis is away."""
        try:
            return bool(super().touch(key, timeout, version))
        except (RedisError, OSError) as error:
            return bool(self._away("touch", error, False))

    @staticmethod
    def _away(call: str, error: Exception, answer: Any) -> Any:
        log.debug("cache %s without Redis: %s", call, error)
        return answer
