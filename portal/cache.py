"""A Redis cache that a dead Redis turns into no cache: the broker is a doorbell, never the truth."""

from __future__ import annotations

import logging
from typing import Any

from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

log = logging.getLogger(__name__)


class FallbackRedisCache(RedisCache):
    """Redis when it answers; otherwise every read is a miss and every write is dropped."""

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        """The value, or ``default`` also when Redis is away."""
        try:
            return super().get(key, default, version)
        except (RedisError, OSError) as error:
            log.debug("cache get: %s", error)
            return default

    def set(self, key: Any, value: Any, timeout: Any = 300, version: int | None = None) -> None:
        """Store, or drop when Redis is away."""
        try:
            super().set(key, value, timeout, version)
        except (RedisError, OSError) as error:
            log.debug("cache set: %s", error)

    def add(self, key: Any, value: Any, timeout: Any = 300, version: int | None = None) -> bool:
        """Store if absent; False when Redis is away."""
        try:
            return bool(super().add(key, value, timeout, version))
        except (RedisError, OSError) as error:
            log.debug("cache add: %s", error)
            return False

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Count up; ``delta`` when Redis is away."""
        try:
            return int(super().incr(key, delta, version))
        except (RedisError, OSError) as error:
            log.debug("cache incr: %s", error)
            return delta
