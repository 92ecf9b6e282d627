"""make verify-kubernetes: prove what is said of Kubernetes, print tables and figures, end with 1 where one falls short.

Everything runs against the sandbox, in a fresh clone of what is committed (``--here``: in this tree); ``--only`` takes
stages by name. With ``QD_TEST_KUBECONFIG`` the contract also runs against the API server that it names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.kubernetes_site import cluster  # noqa: E402
from tests.proof import Proof, Stage, prove, run_tests  # noqa: E402

KUBECONFIG = "QD_TEST_KUBECONFIG"
#: How long the API server is away in the proof, in seconds.
DOWN_S = "600"


def _all(proof: Proof, folder: str, pattern: str, *, without: str = "") -> str:
    """The test files of a folder by a pattern, as words for pytest."""
    found = sorted((proof.tree / "tests" / folder).glob(pattern))
    return " ".join(str(path.relative_to(proof.tree)) for path in found if path.name not in without.split())


def stage_contract(proof: Proof) -> None:
    """The port's contract on the sandbox, by a kubeconfig, and on a real API server where one is named."""
    wanted = "as the port says"
    paths = _all(proof, "contract", "test_kubernetes_*.py", without="test_kubernetes_sandbox.py")
    run_tests(proof, "the contract on the sandbox's API server", paths, wanted)
    with cluster(proof.scratch / "served") as served:
        path = proof.scratch / "kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(served.kubeconfig()))
        run_tests(proof, "the contract by a kubeconfig, as on any server", paths, wanted, **{KUBECONFIG: str(path)})
        made = [*served.store.scan("namespaces"), *served.store.scan("nodes")]
        left = [name for thing in made if not (name := thing["metadata"]["name"]).startswith(("kube-", "default"))]
        proof.note("namespaces and nodes that it left there", ", ".join(left) or "none", "none", not left)
    if named := os.environ.get(KUBECONFIG):
        run_tests(proof, f"the contract on {named}", paths, wanted, **{KUBECONFIG: named})


def stage_renderings(proof: Proof) -> None:
    """One spec of jobs, two schedulers."""
    run_tests(
        proof,
        "ten jobs as a submit to Slurm and as objects; every kind by its CRD",
        "tests/worker/test_golden_renderings.py tests/providers/kubernetes",
        "to the letter, in every kind that can hold the job",
    )


def stage_kinds(proof: Proof) -> None:
    """Jobs that really run, on the sandbox's whole cluster."""
    run_tests(
        proof,
        "every kind runs on two nodes and ends in every way",
        "tests/contract/test_kubernetes_sandbox.py tests/sandbox/test_kubernetes_workloads.py",
        "state, reason and exit code told, output and checkpoint there",
    )


def stage_story(proof: Proof) -> None:
    """The whole story."""
    run_tests(
        proof,
        "node group of EKS, job, checkpoint, lost node, resume, settled ledger",
        "tests/flows/test_kubernetes_story.py",
        "passes with real workers",
    )


def stage_worker(proof: Proof) -> None:
    """The worker killed, the API server away, watches cut, history lost, clocks wrong; Kueue, draining."""
    outage = "test_kubernetes_outage.py"
    paths = _all(proof, "worker", "test_kubernetes_*.py", without=outage)
    run_tests(
        proof,
        "a worker killed around every call; cut watches, storms of 410, clocks; Kueue's shares; draining",
        f"-n 2 {paths} tests/worker/test_kueue.py tests/worker/test_node_eviction.py",
        "one object each, no job lost, no event twice",
        1800,
    )
    code, text, took = proof.run("kill-kube-worker", [proof.python, "-m", "tests.kill_kube_worker"], 1200)
    told = ", ".join(line.strip(' ",').replace('"', "") for line in text.splitlines() if line.startswith(" "))
    stage = "kill -9 of the real worker all through a job on Kubernetes"
    proof.note(stage, f"{told} ({took:.0f} s)", "one attempt, one of each object, no event twice", code == 0)
    run_tests(
        proof,
        "the API server away for ten minutes under jobs that run, wait and are submitted",
        f"tests/worker/{outage}",
        "no job lost or doubled, no event twice",
        2400,
        QD_DOWN_S=DOWN_S,
    )


def stage_bad_input(proof: Proof) -> None:
    """Each clear, kept and safe."""
    run_tests(
        proof,
        "a tab, keys twice, 50 documents, unknown kinds, others' namespaces, the host, too large, bad images",
        "-n 2 " + _all(proof, "providers/kubernetes", "test_manifest*.py") + " " + _all(proof, "api", "*manifest*.py"),
        "each named with its place, nothing lost",
    )


def stage_sandbox(proof: Proof) -> None:
    """The sandbox itself."""
    run_tests(
        proof,
        "the sandbox's clusters: API, kubelets, Kueue, EKS, HyperPod, faults",
        "-n 2 " + _all(proof, "sandbox", "test_kubernetes_*.py", without="test_kubernetes_workloads.py"),
        "as the real ones do",
        1200,
    )


def stage_reads(proof: Proof) -> None:
    """5,000 pods on 500 nodes."""
    stage = "5,000 pods and 500 nodes: first list, a quiet minute, 50 changes, 410"
    for name, module in ((stage, "kubernetes_reads"), ("the rows that the worker's visits write", "kubernetes_rows")):
        code, text, took = proof.run(name, [proof.python, "-m", f"bench.{module}"], 900)
        print("\n".join("      " + line for line in text.splitlines()[-8:]))
        proof.note(name, f"code {code} ({took:.0f} s)", "every bound holds", code == 0)


STAGES: dict[str, Stage] = {
    "contract": stage_contract,
    "renderings": stage_renderings,
    "kinds": stage_kinds,
    "story": stage_story,
    "worker": stage_worker,
    "bad-input": stage_bad_input,
    "sandbox": stage_sandbox,
    "reads": stage_reads,
}


def main() -> int:
    """Run the stages."""
    return prove("Prove what is said of Kubernetes.", STAGES, need_tests=frozenset(STAGES))


if __name__ == "__main__":
    sys.exit(main())
