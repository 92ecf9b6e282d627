"""docs/tutorial.md is run as it stands, every command, on a portal of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.portal_stack import portal
from tests.stack import ROOT

pytestmark = pytest.mark.timeout(400)


def script() -> str:
    """All shell blocks of the tutorial in order, stopping at the first failure."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 8
    return "set -eu -o pipefail\n" + "\n".join(blocks)


def test_every_command_of_the_tutorial_runs(tmp_path: Path) -> None:
    with portal(tmp_path / "var") as running:
        done = subprocess.run(
            ["bash", "-c", script()],
            cwd=ROOT,
            env={
                **running.environment,
                "QD": running.url,
                "CLOUD": running.control_url,
                "SANDBOX": str(running.sandbox_json),
                "MANAGE": f"{sys.executable} manage.py",
                "WORK": str(tmp_path / "work"),
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said[-4000:]
        assert re.search(r"(\d+) of \1 checks passed", said), said[-4000:]
        for words in (
            "32 of 32 GPUs free",
            "110.080000 held at $6.880000 a GPU-hour",
            "XID 79 GPU_HAS_FALLEN_OFF_THE_BUS",
            "NODE_FAILED",
            "resumed from",
            "Succeeded",
        ):
            assert words in said, said[-4000:]
        ledger = [line.split() for line in done.stdout.splitlines() if re.match(r"^(HOLD|CHARGE|RELEASE) ", line)]
        usd = {
            kind: sum(float(r[1]) for r in ledger if r[0] == kind and r[2] == "USD")
            for kind in ("HOLD", "CHARGE", "RELEASE")
        }
        assert usd["HOLD"] == pytest.approx(usd["CHARGE"] + usd["RELEASE"], abs=1e-6)
        assert usd["CHARGE"] > 0
