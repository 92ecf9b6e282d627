"""Wiring of the composition root: rings the worker's doorbell after a commit that asked for work."""

from __future__ import annotations

import logging
import threading
import time
from functools import lru_cache
from typing import Any

from django.apps import AppConfig

log = logging.getLogger(__name__)

#: After a ring that failed, none is tried for this long: a dead broker must not slow every request down.
QUIET_AFTER_FAILURE_S = 5.0
_quiet_until = 0.0
#: Requests run in threads, and a broker connection is not made for several at once.
_ringing = threading.Lock()


@lru_cache(maxsize=1)
def _connection() -> Any:
    """A connection of our own that gives up at once instead of Celery's patient one."""
    from worker.app import app

    options = {
        **app.conf.broker_transport_options,
        "max_retries": 0,
        "socket_connect_timeout": 0.3,
        "socket_timeout": 1,
    }
    return app.connection_for_write(connect_timeout=0.3, transport_options=options)


def ring_worker() -> None:
    """Ask the worker to drain intents now; a silent broker is no error, the sweep comes every second."""
    global _quiet_until
    if time.monotonic() < _quiet_until:
        return
    from worker.app import app

    try:
        with _ringing:
            connection = _connection()
            if not connection.connected:
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=0.5)
            with connection.Producer(auto_declare=False) as producer:
                app.send_task("worker.tasks.drain", producer=producer, retry=False, ignore_result=True, expires=30)
    except Exception as error:  # any broker trouble: the intent row is already committed
        _quiet_until = time.monotonic() + QUIET_AFTER_FAILURE_S
        _connection.cache_clear()
        log.info("doorbell not rung: %s", error.__class__.__name__)


class PortalConfig(AppConfig):
    name = "portal"
    label = "portal"

    def ready(self) -> None:
        """Hand the doorbell to the intents app, which may not know Celery."""
        from django.conf import settings

        from apps.intents import services

        if settings.ENV != "test":
            services.set_doorbell(ring_worker)
