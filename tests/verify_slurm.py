"""make verify-slurm: prove what is said of Slurm, print the tables and figures, end with 1 where one falls short.

Real Slurm 22.05, 24.11 and 26.05 on this machine (root), in a fresh clone of what is committed (``--here``: in this
tree); ``--only`` takes stages by name. Where QD_WRITE_DOCS is set, the table of endpoints goes into docs/slurm-rest.md.
"""

from __future__ import annotations

import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.contract.endpoints import TABLE, table_of  # noqa: E402
from tests.proof import Proof, Stage, prove, run_tests  # noqa: E402

DOCS = "docs/slurm-rest.md"
_BEGIN, _END = "<!-- table: written by make verify-slurm -->\n", "<!-- end of the table -->\n"


def stage_contract(proof: Proof) -> None:
    """The whole contract on each release and each REST version, and on the sandbox."""
    table = proof.scratch / "endpoints.jsonl"
    run_tests(
        proof,
        "the scheduler contract on 22.05, 24.11, 26.05 and in AWS PCS's manner, by the newest REST version of each",
        "-n 2 --dist loadscope tests/contract/test_scheduler_real.py tests/contract/test_actions.py "
        "tests/contract/test_scheduler_sandbox.py",
        "every test on every release",
        1800,
        **{TABLE: str(table)},
    )
    run_tests(
        proof,
        "the same by every other REST version that they serve",
        "-n 2 --dist loadscope tests/contract/test_scheduler_versions.py",
        "every test by every version",
        1800,
        QD_EVERY_REST_VERSION="1",
        **{TABLE: str(table)},
    )
    calls = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
    found = table_of(calls)
    print("\n" + found)
    versions = {version for _endpoint, version in _marks(found)}
    proof.note("REST versions held", ", ".join(sorted(versions)), "seven: all but v0.0.39", len(versions) == 7)
    page = proof.tree / DOCS
    text = page.read_text() if page.exists() else ""
    head, _begin, rest = text.partition(_BEGIN)
    old, _end, tail = rest.partition(_END)
    if os.environ.get("QD_WRITE_DOCS"):
        (Path(__file__).resolve().parent.parent / DOCS).write_text(head + _BEGIN + found + _END + tail)
        old = found
    # How often an endpoint was called may change with the tests; which ones are, may not without being written down.
    proof.note(
        "the table in docs", DOCS, "the same endpoints by version as were called", _marks(old) == _marks(found) != set()
    )


def _marks(table: str) -> set[tuple[str, str]]:
    """(endpoint, version) pairs that a table says were called."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line]
    if len(lines) < 3:
        return set()
    versions = [cell.split(" ")[0] for cell in lines[0][1:]]
    rows = [(cells[0], list(zip(versions, cells[1:], strict=True))) for cells in lines[2:]]
    return {(endpoint, version) for endpoint, cells in rows for version, cell in cells if cell != "–"}


def stage_scripts(proof: Proof) -> None:
    """sbatch scripts: read whole, and judged as sbatch judges them."""
    report = proof.scratch / "scripts.xml"
    run_tests(
        proof,
        "own scripts of different styles on three releases: directives kept, verdict as sbatch --test-only",
        f"--junitxml={report} -n 2 --dist loadscope tests/contract/test_sbatch_scripts_real.py",
        "each line answered; the same verdict",
        900,
    )
    if report.exists():
        for case in ET.parse(report).getroot().iter("testcase"):
            told = {p.get("name"): p.get("value") for p in case.iter("property")}
            release, path = case.get("classname", "").rpartition(".")[2], case.get("name", "").partition("[")[2]
            sbatch, ours = told.get("sbatch") or "takes it", told.get("portal") or "takes it"
            print(f"      {release + ' ' + path.strip(']'):<58} sbatch: {sbatch}; portal: {ours}")
    run_tests(
        proof,
        "36 options of sbatch by REST, each compared with sbatch, on three releases; every option known",
        "-n 2 --dist loadscope tests/contract/test_options_real.py tests/rules/test_sbatch.py",
        "the same job, or refused by name",
        900,
    )


def stage_recovery(proof: Proof) -> None:
    """What breaks while jobs run."""
    run_tests(
        proof,
        "slurmctld killed, away for ten minutes, slurmdbd away, garbage, clocks 15 min off, a dead worker",
        "-s tests/contract/test_recovery_real.py",
        "no job lost, none doubled, right within two looks",
        2400,
        QD_DOWN_S="600",
    )
    code, text, took = proof.run("kill-worker", [proof.python, "-m", "tests.kill_worker"], 1200)
    told = re.findall(r'"(kills|attempts|scheduler_jobs)": (\d+)', text)
    figure = ", ".join(f"{name} {number}" for name, number in told)
    figure = f"{figure} ({took:.0f} s)"
    proof.note("kill -9 of the real worker all through a job", figure, "one attempt, one job", code == 0)


def stage_life(proof: Proof) -> None:
    """What people and automation do with jobs, and who they are to Slurm."""
    run_tests(
        proof,
        "actions, arrays, dependencies, retries, identities, jobs from outside, limits below the portal",
        "-n 2 tests/worker/test_job_actions.py tests/worker/test_arrays.py tests/worker/test_dependencies.py "
        "tests/worker/test_outside_jobs.py tests/worker/test_slurm_identity.py tests/worker/test_queue_mirror.py "
        "tests/worker/test_starts.py tests/worker/test_logs.py",
        "each once, whatever dies",
        1200,
    )
    run_tests(
        proof,
        "the same story on real Slurm; limits and who is who with slurmdbd",
        # The examples with PyTorch have a stage of their own in make test.
        f"-m real_slurm --ignore=tests/flows/test_torch.py tests/flows {' '.join(_real(proof))}",
        "as told",
        1800,
    )


def _real(proof: Proof) -> list[str]:
    """Further tests on real Slurm, by the mark in them."""
    shown = {"test_scheduler_real.py", "test_scheduler_versions.py", "test_options_real.py", "test_recovery_real.py"}
    shown |= {"test_sbatch_scripts_real.py", "test_actions.py"}
    found = sorted((proof.tree / "tests").glob("contract/test_*real*.py")) + sorted(
        path for path in (proof.tree / "tests").glob("worker/test_*real*.py")
    )
    return [str(path.relative_to(proof.tree)) for path in found if path.name not in shown]


def stage_bad_input(proof: Proof) -> None:
    """Each clear, kept and safe."""
    run_tests(
        proof,
        "a user unknown to Slurm, an account without association, a partition gone, CRLF, BOM, no shebang, "
        "10,000 tasks, names with quotes and Korean",
        "tests/contract/test_bad_input_real.py",
        "each named, nothing lost",
        900,
    )


def measured(proof: Proof, stage: str, words: list[str], limit_s: float) -> None:
    """One line for each bound of a measurement that prints its table as JSON."""
    code, text, took = proof.run(stage, [proof.python, *words], limit_s)
    print("\n".join("      " + line for line in text.splitlines()[-40:]))
    proof.note(stage, f"code {code} ({took:.0f} s)", "every bound holds", code == 0)


def stage_queue(proof: Proof) -> None:
    """20,000 jobs in the queue of a real 26.05."""
    measured(proof, "a queue of 20,000 jobs for ten minutes", ["-m", "bench.slurm_queue", "--minutes", "10"], 3600)


def stage_logs(proof: Proof) -> None:
    """A hundred ranks."""
    measured(proof, "100 ranks × 10 KB/s for ten minutes", ["-m", "bench.log_ingest", "--minutes", "10"], 1200)


def stage_starts(proof: Proof) -> None:
    """Expected starts on a replayed queue."""
    measured(proof, "2,000 jobs replayed: starts inside the range", ["-m", "bench.replay_starts"], 3600)


STAGES: dict[str, Stage] = {
    "contract": stage_contract,
    "scripts": stage_scripts,
    "life": stage_life,
    "bad-input": stage_bad_input,
    "starts": stage_starts,
    "queue": stage_queue,
    "logs": stage_logs,
    "recovery": stage_recovery,
}


def main() -> Any:
    """Run the stages."""
    return prove("Prove what is said of Slurm.", STAGES, need_tests=frozenset(STAGES))


if __name__ == "__main__":
    sys.exit(main())
