"""make verify-aws: prove what is said of AWS, print the tables and figures, end with 1 where one falls short.

Everything runs against the sandbox, in a fresh clone of what is committed (``--here``: in this tree); ``--only`` takes
stages by name.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.proof import Proof, Stage, prove, run_tests  # noqa: E402

#: How a point of the chaos table may end: what was asked for while it was wanted, nothing after.
HOLDS = re.compile(r"^(one|as asked|bought once|unknown, then resolved)", re.IGNORECASE)


def stage_chaos(proof: Proof) -> None:
    """kill -9 of the worker before each changing call, after it and before the save, for every kind."""
    table = proof.scratch / "chaos.jsonl"
    run_tests(
        proof,
        "a worker killed at every point",
        "-m chaos -n 2 --dist loadfile tests/worker",
        "exactly what was asked, then nothing",
        3600,
        QD_CHAOS_TABLE=str(table),
    )
    points = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
    width = max((len(f"{p['noun']} {p['call']}") for p in points), default=0)
    for p in points:
        name = f"{p['noun']} {p['call']}"
        print(f"      {name:<{width}}  {p['when']:<16}  {p['outcome']}")
    wrong = [p for p in points if not HOLDS.match(p["outcome"])]
    by_noun = Counter(p["noun"] for p in points)
    figure = ", ".join(f"{noun} {n}" for noun, n in sorted(by_noun.items())) or "no point was tried"
    proof.note("points tried", f"{len(points)} ({figure})", "every point ends as asked", bool(points) and not wrong)


def stage_purchases(proof: Proof) -> None:
    """Capacity that cannot be given back."""
    run_tests(
        proof,
        "a purchase under redelivery, time-out after success and double click",
        "tests/worker/test_purchases.py",
        "bought once in all three, never without another person's approval",
    )


def stage_requests(proof: Proof) -> None:
    """What is sent to AWS, to the letter."""
    run_tests(
        proof,
        "64 nodes from every source, p6-b300 and p6e-gb200",
        "tests/worker/test_golden_requests.py",
        "equal to the golden files",
    )


def stage_capacity(proof: Proof) -> None:
    """Reservations, blocks, plans: the port's contract, the clock of a block, what is paid and by whom."""
    run_tests(
        proof,
        "reservations, blocks and training plans through one port",
        "tests/contract/test_capacity_sandbox.py",
        "every request and answer as AWS's models have them",
    )
    run_tests(
        proof,
        "the end of a block, jobs that wait beside it, an extension that is not paid yet, a paused account",
        "tests/worker/test_block_clock.py tests/worker/test_block_waits.py "
        "tests/worker/test_extension_payment.py tests/worker/test_paused_account.py",
        "each mark once and in time; no job starts that cannot end; no call to a paused account",
    )


def stage_reads(proof: Proof) -> None:
    """A large fleet with few calls."""
    figure = r"512 nodes: \d+ reads"
    run_tests(
        proof, "512 nodes to ready", "-s tests/worker/test_fleet_512.py", "fewer than 60 read calls", figure=figure
    )


def stage_owned(proof: Proof) -> None:
    """Nothing unowned, nothing said before AWS says it."""
    run_tests(
        proof,
        "orphans, and terminated only when AWS says so",
        "tests/worker/test_orphans.py",
        "on the page within one sweep, with its hourly cost; removed only after grace or by a person",
    )


def stage_storage(proof: Proof) -> None:
    """File systems and their ties to S3."""
    run_tests(
        proof,
        "FSx and EFS on the sandbox",
        "tests/contract/test_storage_sandbox.py tests/worker/test_file_systems.py",
        "made once, refused by field, deleted to nothing",
    )


def stage_clusters(proof: Proof) -> None:
    """The kinds of clusters that AWS keeps: their services' contract, their lives, their nodes."""
    run_tests(
        proof,
        "PCS, EKS, HyperPod and ParallelCluster through one port",
        "tests/contract/test_clusters_sandbox.py tests/contract/test_hyperpod_sandbox.py "
        "tests/contract/test_parallelcluster_sandbox.py",
        "every request and answer as AWS's models have them",
    )
    run_tests(
        proof,
        "made, adopted, resized, deleted; nodes by two sources of truth",
        "tests/worker/test_managed_clusters.py tests/worker/test_managed_nodes.py",
        "a node is its machine, whatever name a replacement bears",
    )


#: By the names of their tests: what a person typed, what AWS refuses, what is no longer there.
BAD_INPUT = (
    "bad_input",
    "refused_by_field",
    "that_aws_refuses",
    "without_permission",
    "expired_reservation",
)


def stage_bad_input(proof: Proof) -> None:
    """Each refused by name, in the form or as a condition with what to do."""
    words = " or ".join(BAD_INPUT)
    run_tests(proof, "bad input", f'tests/worker tests/contract tests/api -k "{words}"', "each named")
    run_tests(proof, "bad input of clusters and node groups", "tests/rules/test_managed_rules.py", "each named")


def stage_account(proof: Proof) -> None:
    """What the worker may do."""
    run_tests(
        proof,
        "least-privilege policy and live-check",
        "tests/tooling/test_iam_policy.py tests/tooling/test_live_check.py",
        "every call allowed, purchases denied, nothing made",
    )


STAGES: dict[str, Stage] = {
    "requests": stage_requests,
    "reads": stage_reads,
    "purchases": stage_purchases,
    "capacity": stage_capacity,
    "owned": stage_owned,
    "clusters": stage_clusters,
    "storage": stage_storage,
    "bad-input": stage_bad_input,
    "account": stage_account,
    "chaos": stage_chaos,
}


def main() -> int:
    """Prove what was asked."""
    return prove(__doc__ or "", STAGES, need_tests=frozenset(STAGES))


if __name__ == "__main__":
    sys.exit(main())
