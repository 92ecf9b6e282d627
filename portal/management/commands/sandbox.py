"""manage.py sandbox …: the sandbox's own command line, beside the portal's."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Hands every word on to ``python -m sandbox``; the portal itself imports nothing of it."""

    help = "Inject faults into the sandbox and count what is in it (see manage.py sandbox --help)."
    requires_system_checks: list[str] = []

    def run_from_argv(self, argv: list[str]) -> None:
        """Replace this process, so that exit codes and signals are the sandbox's."""
        os.execv(sys.executable, [sys.executable, "-m", "sandbox", *argv[2:]])  # noqa: S606

    def handle(self, *args: Any, **options: Any) -> None:
        """Through call_command there is no argv to hand on."""
        raise SystemExit("use: python -m sandbox")
