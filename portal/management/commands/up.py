"""manage.py up: run the whole portal on this machine until Ctrl-C."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from portal import local
from portal.supervisor import SetupProblem, Supervisor, lock


class Command(BaseCommand):
    """Starts broker, sandbox, worker, beat and web, shows a line each, stops all within 10 s of Ctrl-C."""

    help = "Run the whole portal on this machine until Ctrl-C."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Options."""
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")))
        parser.add_argument("--cloud-port", type=int, default=int(os.environ.get("CLOUD_PORT", "5600")))
        parser.add_argument("--slurm", choices=["sandbox", "real", "none"], default="sandbox")
        parser.add_argument("--workers", type=int, default=3)
        parser.add_argument("--no-demo", action="store_true", help="seed no demo people and teams")
        parser.add_argument("--sandbox-option", action="append", default=[], help="passed to the sandbox as it is")

    def handle(self, *args: Any, **options: Any) -> None:
        """Set up, start, watch."""
        layout = local.Layout(
            var=Path(settings.CONFIG.var_dir).resolve(),
            host=options["host"],
            port=options["port"],
            cloud_port=options["cloud_port"],
            slurm=options["slurm"],
            workers=options["workers"],
            sandbox_options=tuple(options["sandbox_option"]),
        )
        try:
            handle = lock(layout.var / "up.lock")
            local.check_ports(layout)
            local.ensure_secrets(layout.var)
        except SetupProblem as problem:
            self.stderr.write(f"Quarterdeck: {problem}")
            sys.exit(2)
        began = time.monotonic()
        local.export(layout)
        self.stdout.write("Quarterdeck")
        supervisor = Supervisor(
            [], logs=layout.var / "logs", say=lambda text: self.stdout.write(text), cwd=settings.BASE_DIR
        )
        code = 1
        try:
            call_command("migrate", verbosity=0, interactive=False)
            if not options["no_demo"]:
                call_command("seed_demo", verbosity=0)
            supervisor.services = local.services(layout)
            supervisor._names = max(len(s.name) for s in supervisor.services)
            supervisor.start_all()
            if layout.slurm == "real":
                os.environ.update(local.environment(layout))
            self._welcome(layout, time.monotonic() - began, demo=not options["no_demo"])
            code = supervisor.watch()
        except SetupProblem as problem:
            self.stderr.write(f"Quarterdeck: {problem}")
        except KeyboardInterrupt:
            supervisor.stop_all()
            code = 0
        finally:
            handle.close()
        self.stdout.write("Quarterdeck has stopped.")
        sys.exit(code)

    def _welcome(self, layout: local.Layout, took_s: float, *, demo: bool) -> None:
        lines = ["", f"  Open {layout.url}   (ready after {took_s:.1f} s; Ctrl-C stops everything)"]
        if demo:
            from portal.management.commands.seed_demo import PASSWORD, PEOPLE

            lines.append("  Demo sign-ins, password for all of them: " + PASSWORD)
            lines += [f"    {name:<12} {what}" for name, what in PEOPLE.items()]
        if layout.slurm != "none":
            lines += [
                *local.sandbox_values(layout),
                f"  Break things at {layout.control_url} or with manage.py sandbox fault --help",
            ]
        self.stdout.write("\n".join([*lines, ""]))
