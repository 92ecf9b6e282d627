"""What every proof needs: a fresh clone, commands with logs, lines that hold or fail, and the closing table."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Row:
    """One line of the closing table."""

    stage: str
    figure: str
    wanted: str
    holds: bool


@dataclass
class Proof:
    """The tree under proof and what was found."""

    tree: Path
    scratch: Path
    rows: list[Row] = field(default_factory=list)

    def note(self, stage: str, figure: str, wanted: str, holds: bool) -> None:
        """Keep and print one line."""
        self.rows.append(Row(stage, figure, wanted, holds))
        print(f"  {'ok  ' if holds else 'FAIL'} {stage}: {figure} (wanted: {wanted})", flush=True)

    @property
    def python(self) -> str:
        """The clone's own interpreter."""
        return str(self.tree / ".venv" / "bin" / "python")

    def run(self, name: str, words: list[str], limit_s: float, **environment: str) -> tuple[int, str, float]:
        """(return code, output, seconds) of a command in the tree; the output also goes to a log."""
        began = time.monotonic()
        try:
            done = subprocess.run(
                words,
                cwd=self.tree,
                env={**clean_environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=limit_s,
            )
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            code, text = 124, (late.stdout or b"").decode(errors="replace") + f"\nnot done after {limit_s:.0f} s"
        (self.scratch / (re.sub(r"[^\w ,.-]", "-", name) + ".log")).write_text(text)
        if code:
            print("\n".join("      " + line for line in text.splitlines()[-15:]))
        return code, text, time.monotonic() - began


def clean_environment() -> dict[str, str]:
    """This environment without what would point at another portal."""
    return {k: v for k, v in os.environ.items() if not k.startswith("QD_") or k in ("QD_TORCH_PYTHON", "QD_CHROMIUM")}


def run_tests(
    proof: Proof, stage: str, paths: str, wanted: str, limit_s: float = 900, figure: str = "", **environment: str
) -> None:
    """One line from the tests at ``paths`` (words for pytest); a skipped one does not hold.

    ``figure`` is a pattern of what a test prints and the line should show.
    """
    words = [proof.python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *shlex.split(paths)]
    # Its own, so that a proof and other test runs of one person keep out of each other's files.
    var = proof.scratch / "var"
    var.mkdir(exist_ok=True)
    environment = {"QD_VAR_DIR": str(var), **environment}
    code, text, took = proof.run(re.sub(r"\W+", "-", stage)[:80], words, limit_s, **environment)
    summary = next(
        (line for line in reversed(text.splitlines()) if " in " in line and "passed" in line), "nothing passed"
    )
    skipped = "skipped" in summary
    told = re.search(figure, text) if figure else None
    shown = f"{told[0]}; " if told else ""
    proof.note(stage, f"{shown}{summary.strip('= ')} ({took:.0f} s)", wanted, code == 0 and not skipped)


Stage = Callable[[Proof], None]


def prove(about: str, stages: Mapping[str, Stage], *, need_tests: frozenset[str] = frozenset()) -> int:
    """Run the stages asked for in a fresh clone of what is committed; 1 when one falls short.

    ``need_tests`` names stages that want the test dependencies set up before. ``--only`` takes stages by name,
    ``--here`` uses this tree instead of a clone.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--only", default=",".join(stages), help=f"stages, of {', '.join(stages)}")
    parser.add_argument("--here", action="store_true", help="this tree instead of a fresh clone")
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(stages)
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}")
    scratch = Path(tempfile.mkdtemp(prefix="quarterdeck-proof-"))
    tree = ROOT
    if not options.here:
        tree = scratch / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
    scratch.chmod(0o755)
    proof = Proof(tree, scratch)
    began = time.monotonic()
    print(f"Proof in {tree}; logs in {scratch}")
    for name in options.only.split(","):
        if name in need_tests and not (tree / ".venv" / "bin" / "pytest").exists():
            proof.run("setup-dev", ["make", "setup-dev"], 900)
        print(f"{name}: {(stages[name].__doc__ or '').strip()}", flush=True)
        stages[name](proof)
    width = max(len(r.stage) for r in proof.rows)
    print("\n" + "\n".join(f"{'ok  ' if r.holds else 'FAIL'}  {r.stage:<{width}}  {r.figure}" for r in proof.rows))
    failed = sum(1 for r in proof.rows if not r.holds)
    print(f"\n{len(proof.rows) - failed} of {len(proof.rows)} hold; {(time.monotonic() - began) / 60:.1f} min")
    if not failed and not options.here:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if failed else 0
