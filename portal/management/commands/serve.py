"""manage.py serve web|worker|beat: become one of the portal's processes, as a container or a systemd unit runs it."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal import processes


class Command(BaseCommand):
    """Replaces itself by the process, so that signals and exit codes are the process's own."""

    help = "Become the web server, the worker or beat; one process, no supervisor."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """What to be, and how large."""
        parser.add_argument("what", choices=["web", "worker", "beat"])
        parser.add_argument("--host", default="127.0.0.1", help="web: where to listen")
        parser.add_argument("--port", type=int, default=8000, help="web: where to listen")
        parser.add_argument("--processes", type=int, default=2, help="web, worker: how many")
        parser.add_argument("--name", default=socket.gethostname(), help="worker: its name, one of its own a machine")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make the folders and become the process. Raises CommandError when the var folder cannot be written."""
        what, var = str(options["what"]), Path(settings.CONFIG.var_dir).resolve()
        # Figures of an earlier life of this very process would be counted twice.
        metrics = var / "metrics" / f"{what}-{options['name']}"
        try:
            shutil.rmtree(metrics, ignore_errors=True)
            metrics.mkdir(parents=True)
        except OSError as error:
            raise CommandError(f"QD_VAR_DIR={var} cannot be written: {error.strerror}") from error
        if what == "web":
            command = processes.web(options["host"], options["port"], processes=options["processes"])
        elif what == "worker":
            command = processes.worker(name=options["name"], processes=options["processes"])
        else:
            command = processes.beat(var / "beat-schedule")
        os.chdir(settings.BASE_DIR)
        os.execve(command[0], command, {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics)})  # noqa: S606
