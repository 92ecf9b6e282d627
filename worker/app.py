"""The Celery app: queues, limits and transport; the broker is a doorbell, the database the truth."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

#: The ladder of time limits, each well under the next (seconds): provider call, soft, hard, lease, redelivery.
SOFT_LIMIT_S = 60
HARD_LIMIT_S = 90
VISIBILITY_TIMEOUT_S = 600

app = Celery("quarterdeck")


def _broker_url() -> str:
    from django.conf import settings

    return str(settings.CONFIG.redis_url)


app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_soft_time_limit=SOFT_LIMIT_S,
    task_time_limit=HARD_LIMIT_S,
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    task_default_queue="quarterdeck",
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": VISIBILITY_TIMEOUT_S,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "health_check_interval": 25,
        "socket_timeout": 30,
        "socket_connect_timeout": 1,
    },
    worker_soft_shutdown_timeout=5,
    worker_hijack_root_logger=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    imports=["worker.tasks"],
)


@app.on_configure.connect  # type: ignore[untyped-decorator]
def _configure(sender: Celery, **_: Any) -> None:
    """The broker's address and the beat table are read when the app is first used, once Django is set up."""
    from worker.schedule import beat_schedule

    sender.conf["broker_url"] = _broker_url()
    sender.conf.beat_schedule = beat_schedule()


@setup_logging.connect  # type: ignore[untyped-decorator]
def _logging(**_: Any) -> None:
    """Django's own logging settings are already in force: JSON lines with the request id."""
