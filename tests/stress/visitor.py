"""One process of the stress test: a visitor that claims and visits, or a writer that asks. Run by test_intents.py."""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from pathlib import Path

import django

django.setup()

from django.db import transaction  # noqa: E402
from django.db.models import F  # noqa: E402

from apps.clusters.models import Cluster  # noqa: E402
from apps.intents import services as intents  # noqa: E402
from worker import engine  # noqa: E402

# One visit in ten breaks on purpose: a traceback each would bury what the test has to say.
logging.disable(logging.CRITICAL)
# A killed visitor's key must come back within the test's time.
intents.LEASE_S = 3
FOLDER = Path(sys.argv[2])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _enter(key: str) -> bool:
    """Take the key's mark; False when another living process has it: an overlap."""
    mark = FOLDER / f"{key}.mark"
    while True:
        try:
            with mark.open("x") as handle:
                handle.write(str(os.getpid()))
            return True
        except FileExistsError:
            try:
                holder = int(mark.read_text() or 0)
            except (FileNotFoundError, ValueError):
                continue
            if holder and not _alive(holder):
                mark.unlink(missing_ok=True)
                continue
            if holder:
                return False


def visit(key: str) -> engine.Outcome:
    """Read, wait a little, write what was read; one visit in ten breaks."""
    if not _enter(key):
        (FOLDER / f"overlap-{key}-{os.getpid()}-{time.time_ns()}").touch()
        return engine.DONE
    try:
        seen = Cluster.objects.values_list("generation", flat=True).get(uid=key)
        time.sleep(random.uniform(0, 0.02))
        if random.random() < 0.1:
            raise RuntimeError("a visit in ten breaks")
        Cluster.objects.filter(uid=key).update(observed_generation=seen)
        (FOLDER / f"visits-{os.getpid()}").open("a").write(".")
    finally:
        (FOLDER / f"{key}.mark").unlink(missing_ok=True)
    return engine.DONE


def main() -> None:
    """``visit DIR`` until DIR/stop exists; ``write DIR SECONDS``."""
    if sys.argv[1] == "visit":
        while not (FOLDER / "stop").exists():
            if not engine.drain({"stress.visit": visit}, budget_s=2):
                time.sleep(0.01)
        return
    keys = list(Cluster.objects.values_list("uid", flat=True))
    ends = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < ends:
        key = random.choice(keys)
        with transaction.atomic():
            Cluster.objects.filter(uid=key).update(generation=F("generation") + 1)
            intents.intent_ask("stress.visit", key)
        time.sleep(random.uniform(0, 0.01))


if __name__ == "__main__":
    main()
