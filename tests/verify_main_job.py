"""make verify-main-job: prove the main job end to end, print the figures, end with 1 where one falls short.

Everything happens in a fresh clone of what is committed (``--here``: in this tree); ``--only`` takes stages by name.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.proof import Proof, Stage, clean_environment, prove, run_tests  # noqa: E402

FIRST_PAGE_LIMIT_S = 180.0
NEXT_PAGE_LIMIT_S = 10.0
STOP_LIMIT_S = 10.0


def free_ports(count: int) -> int:
    """The first of so many neighbouring free ports."""
    for base in range(31_000, 60_000, count + 1):
        try:
            for port in range(base, base + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise RuntimeError("no free ports")


def first_page(proof: Proof, stage: str, limit_s: float) -> None:
    """make run until a page answers, then Ctrl-C; the seconds of both, and the processes left."""
    base = free_ports(5)
    url = f"http://127.0.0.1:{base}/accounts/login/"
    log = (proof.scratch / f"{stage}.log").open("wb")
    began = time.monotonic()
    process = subprocess.Popen(
        ["make", "run", f"PORT={base}", f"CLOUD_PORT={base + 1}"],
        cwd=proof.tree,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answered = False
    while time.monotonic() - began < limit_s * 1.5 and process.poll() is None:
        try:
            with opener.open(url, timeout=2) as answer:
                answered = answer.status == 200
                break
        except OSError:
            time.sleep(0.1)
    took = time.monotonic() - began
    proof.note(
        stage,
        f"first page after {took:.1f} s" if answered else "no page",
        f"≤ {limit_s:.0f} s",
        answered and took <= limit_s,
    )
    time.sleep(2)
    session = in_session(process.pid)
    asked = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    while time.monotonic() - asked < 20 and any(alive(pid) for pid in session):
        time.sleep(0.1)
    stopped = time.monotonic() - asked
    left = [pid for pid in session if alive(pid)]
    proof.note(
        f"{stage}, Ctrl-C",
        f"stopped in {stopped:.1f} s, {len(left)} of {len(session)} processes left",
        f"≤ {STOP_LIMIT_S:.0f} s and 0 left",
        stopped <= STOP_LIMIT_S and not left,
    )
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    log.close()


def in_session(leader: int) -> list[int]:
    """The leader and everything that descends from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found, frontier = {leader}, {leader}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return sorted(found)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def stage_run(proof: Proof) -> None:
    """make run, first and again."""
    first_page(proof, "make run, first time", FIRST_PAGE_LIMIT_S)
    first_page(proof, "make run, again", NEXT_PAGE_LIMIT_S)


def stage_test(proof: Proof) -> None:
    """make test."""
    code, text, took = proof.run("make-test", ["make", "test"], 3600)
    closing = next((line for line in reversed(text.splitlines()) if re.match(r"^\d+ passed, \d+ failed", line)), "none")
    proof.note("make test", f"{closing} in {took / 60:.1f} min", "0 failed", code == 0)


def stage_story(proof: Proof) -> None:
    """The main story: by curl, in the browser, on real Slurm; pages without the cloud."""
    run_tests(proof, "the story by curl on the sandbox", "tests/flows/test_tutorial.py", "every command runs")
    run_tests(
        proof, "the story in the browser", "tests/browser/test_story.py", "passes, pages answer without the cloud"
    )
    run_tests(proof, "the story on real Slurm 22.05", "tests/flows/test_real_slurm.py", "passes")


def stage_crash(proof: Proof) -> None:
    """Workers killed at every call and at random."""
    run_tests(
        proof, "a worker killed around every call of a fleet", "tests/worker/test_fleets.py", "one fleet, zero orphans"
    )
    run_tests(proof, "a worker killed between submit and save", "tests/worker/test_jobs.py", "one job")
    code, text, took = proof.run("kill", [proof.python, "-m", "tests.kill_worker"], 2400)
    print("\n".join("      " + line for line in text.splitlines() if not line.startswith('{"')))
    proof.note(
        "kill -9 of the real worker all through the story",
        f"{'as wanted' if code == 0 else 'not as wanted'} ({took:.0f} s)",
        "one fleet, one job, zero orphans, nothing on hold",
        code == 0,
    )


def stage_pictures(proof: Proof) -> None:
    """Every page, both themes, languages and widths; axe, console and sideways scroll."""
    code, text, took = proof.run("screenshots", ["make", "screenshots"], 2400)
    closing = next((line for line in reversed(text.splitlines()) if "pictures in" in line), "no pictures")
    closing = closing.replace(str(proof.tree), ".")
    proof.note("make screenshots", f"{closing} ({took:.0f} s)", "0 problems", code == 0)


def stage_lint(proof: Proof) -> None:
    """Contracts, types, style."""
    code, _text, took = proof.run("lint", ["make", "lint"], 900)
    proof.note("lint-imports, mypy --strict, ruff, djlint", f"exit {code} ({took:.0f} s)", "clean", code == 0)


STAGES: dict[str, Stage] = {
    "run": stage_run,
    "lint": stage_lint,
    "story": stage_story,
    "crash": stage_crash,
    "pictures": stage_pictures,
    "test": stage_test,
}


def main() -> int:
    """Prove what was asked."""
    return prove(__doc__ or "", STAGES, need_tests=frozenset({"story", "crash"}))


if __name__ == "__main__":
    sys.exit(main())
