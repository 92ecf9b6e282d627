"""The Celery tasks: drain intents, keep house; ten lines at most each."""

from __future__ import annotations

from typing import Any

import django
from celery.signals import worker_init, worker_process_init

from worker.app import app


@worker_init.connect  # type: ignore[untyped-decorator]
def _setup(**_: Any) -> None:
    """Django first: tasks import the apps."""
    django.setup()


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _fresh(**_: Any) -> None:
    """A forked worker must not share its parent's database connection."""
    from django.db import connections

    connections.close_all()


@app.task(name="worker.tasks.drain")  # type: ignore[untyped-decorator]
def drain(**_: Any) -> int:
    """Visit what is due."""
    from worker import engine
    from worker.reconcilers import RECONCILERS

    return engine.drain(RECONCILERS)


@app.task(name="worker.tasks.housekeeping")  # type: ignore[untyped-decorator]
def housekeeping(**_: Any) -> None:
    """Seal the audit chain, judge quiet checkpoints, drop old keys."""
    from worker.collectors.housekeeping import keep_house

    keep_house()
