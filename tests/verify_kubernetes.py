"""make verify-kubernetes: prove what is said of Kubernetes, print tables and figures, end with 1 where one falls short.

Everything runs against the sandbox, in a fresh clone of what is committed (``--here``: in this tree); ``--only`` takes
stages by name. With ``QD_TEST_KUBECONFIG`` the contract also runs against the API server that it names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.proof import Proof, Stage, prove, run_tests  # noqa: E402

KUBECONFIG = "QD_TEST_KUBECONFIG"


def _all(proof: Proof, folder: str, pattern: str, *, without: str = "") -> str:
    """The test files of a folder by a pattern, as words for pytest."""
    found = sorted((proof.tree / "tests" / folder).glob(pattern))
    return " ".join(str(path.relative_to(proof.tree)) for path in found if path.name != without)


def stage_renderings(proof: Proof) -> None:
    """One spec of jobs, two schedulers."""
    run_tests(
        proof,
        "ten jobs rendered as four kinds, objects valid by their CRDs",
        "tests/providers/kubernetes",
        "to the letter, in every kind that can hold the job",
    )


def stage_contract(proof: Proof) -> None:
    """The port's contract on the sandbox, and on a real API server where one is named."""
    wanted = "as the port says"
    paths = _all(proof, "contract", "test_kubernetes_*.py", without="test_kubernetes_sandbox.py")
    run_tests(proof, "the contract on the sandbox's API server", paths, wanted)
    if named := os.environ.get(KUBECONFIG):
        run_tests(proof, f"the contract on {named}", paths, wanted, **{KUBECONFIG: named})


def stage_kinds(proof: Proof) -> None:
    """Jobs that really run, on the sandbox's whole cluster."""
    run_tests(
        proof,
        "every kind runs on two nodes and ends in every way",
        "tests/contract/test_kubernetes_sandbox.py tests/sandbox/test_kubernetes_workloads.py",
        "state, reason and exit code told, output and checkpoint there",
    )


def stage_worker(proof: Proof) -> None:
    """The worker killed, the API server away, watches cut, history lost, clocks wrong."""
    run_tests(
        proof,
        "a killed worker, an API server away, watches cut, 410 storms, clock skew",
        _all(proof, "worker", "test_kubernetes_*.py"),
        "one object each, no job lost, no event twice",
        1800,
    )


def stage_sandbox(proof: Proof) -> None:
    """The sandbox itself."""
    run_tests(
        proof,
        "the sandbox's clusters: API, kubelets, Kueue, EKS, HyperPod, faults",
        _all(proof, "sandbox", "test_kubernetes_*.py", without="test_kubernetes_workloads.py"),
        "as the real ones do",
        1200,
    )


def stage_reads(proof: Proof) -> None:
    """5,000 pods on 500 nodes."""
    stage = "5,000 pods and 500 nodes: first list, a quiet minute, 50 changes, 410"
    code, text, took = proof.run(stage, [proof.python, "-m", "bench.kubernetes_reads"], 900)
    print("\n".join("      " + line for line in text.splitlines()[-8:]))
    proof.note(stage, f"code {code} ({took:.0f} s)", "every bound holds", code == 0)


STAGES: dict[str, Stage] = {
    "renderings": stage_renderings,
    "contract": stage_contract,
    "kinds": stage_kinds,
    "worker": stage_worker,
    "sandbox": stage_sandbox,
    "reads": stage_reads,
}


def main() -> int:
    """Run the stages."""
    return prove("Prove what is said of Kubernetes.", STAGES, need_tests=frozenset(STAGES))


if __name__ == "__main__":
    sys.exit(main())
