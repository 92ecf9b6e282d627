"""Wiring of the composition root: rings the worker's doorbell after a commit that asked for work."""

from __future__ import annotations

import logging

from django.apps import AppConfig

log = logging.getLogger(__name__)


def ring_worker() -> None:
    """Ask the worker to drain intents now; a silent broker is no error, the sweep comes every two seconds."""
    from worker.app import app

    try:
        app.send_task("worker.tasks.drain", kwargs={}, retry=False, ignore_result=True, expires=30)
    except Exception as error:  # any broker trouble: the intent row is already committed
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
