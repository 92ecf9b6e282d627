"""manage.py live-check ACCOUNT: hands on to the worker, which alone may call AWS."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """The portal itself imports nothing of the worker."""

    help = "Ask AWS, by describes and dry runs only, what a connected account lets the worker do."
    requires_system_checks: list[str] = []

    def run_from_argv(self, argv: list[str]) -> None:
        """Replace this process, so that exit codes and signals are the worker's."""
        os.execv(sys.executable, [sys.executable, "-m", "worker.live_check", *argv[2:]])  # noqa: S606

    def handle(self, *args: Any, **options: Any) -> None:
        """Through call_command there is no argv to hand on."""
        raise SystemExit("use: python -m worker.live_check ACCOUNT")
