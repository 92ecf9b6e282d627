"""Six visitors, four writers, twenty keys, a visit in ten raising, one visitor killed: no overlap, nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.models import F

from apps.clusters.models import Cluster
from apps.core import clock
from apps.intents.models import Intent
from tests.stack import ROOT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.crash]


def environment() -> dict[str, str]:
    """What a process needs to use this test's own database."""
    database = connection.settings_dict
    found = {**os.environ, "QD_ENV": "test", "DJANGO_SETTINGS_MODULE": "portal.settings"}
    if connection.vendor == "postgresql":
        found["QD_DATABASE_URL"] = (
            f"postgresql://{database['USER']}@{database['HOST']}:{database['PORT']}/{database['NAME']}"
        )
    else:
        found["QD_SQLITE_FILE"] = str(database["NAME"])
    return found


def test_stress(tmp_path: Path) -> None:
    visitors_wanted, writers_wanted, seconds = (6, 4, 6.0) if connection.vendor == "postgresql" else (3, 2, 4.0)
    for number in range(20):
        Cluster.objects.create(
            name=f"c{number}", api_url="http://x", user_name="u", token_ref="env:X", working_root="/x"
        )
    script = [sys.executable, "-m", "tests.stress.visitor"]
    processes: list[subprocess.Popen[Any]] = []
    try:
        for _ in range(visitors_wanted):
            processes.append(subprocess.Popen([*script, "visit", str(tmp_path)], cwd=ROOT, env=environment()))
        writers = [
            subprocess.Popen([*script, "write", str(tmp_path), str(seconds)], cwd=ROOT, env=environment())
            for _ in range(writers_wanted)
        ]
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("visits-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(seconds / 3)
        os.kill(processes[0].pid, signal.SIGKILL)
        processes[0].wait()  # a zombie would still look alive to the others
        for writer in writers:
            assert writer.wait(60) == 0
        deadline = time.monotonic() + 45
        while Intent.objects.exists() and time.monotonic() < deadline:
            # Failed visits wait longer and longer; the test need not.
            Intent.objects.filter(leased_until__isnull=True).update(due_at=clock.now())
            time.sleep(0.2)
    finally:
        (tmp_path / "stop").touch()
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
    overlaps = len(list(tmp_path.glob("overlap-*")))
    stale = Cluster.objects.exclude(observed_generation=F("generation")).exclude(generation=1).count()
    visits = sum(p.stat().st_size for p in tmp_path.glob("visits-*"))
    asked = sum(Cluster.objects.values_list("generation", flat=True)) - 20
    print(f"asked {asked}, visited {visits}, overlaps {overlaps}, stale {stale}, left {Intent.objects.count()}")
    assert asked > 100
    assert (overlaps, stale, Intent.objects.count()) == (0, 0, 0)
