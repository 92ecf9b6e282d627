"""Whole scripts on real Slurm: every directive kept or answered, and the portal refuses what sbatch refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.models import Cluster, Node
from apps.jobs.models import Attempt
from apps.jobs.rules import check_script
from apps.jobs.sbatch import SbatchReading, read_sbatch
from apps.jobs.sbatch_shape import completed
from apps.jobs.services import JobSpec, job_preview, job_submit
from tests.conftest import actor_of
from tests.contract.test_scheduler_real import needs
from tests.labs import RealSlurm, real_slurm_lab
from worker.jobscript import submit_request
from worker.providers.errors import InvalidRequest

pytestmark = [pytest.mark.contract, pytest.mark.real_slurm, pytest.mark.django_db, pytest.mark.any_database]

SCRIPTS = sorted((Path(__file__).resolve().parents[1] / "data" / "sbatch").glob("*.sh"))


def sbatch_says(lab: RealSlurm, script: str) -> str:
    """Why sbatch refuses a script; empty where it takes it."""
    words = [*lab.description["sbatch"], f"--uid={lab.description['user']}", "--test-only"]
    work = Path(str(lab.description["work_dir"]), "tried.sh")
    work.write_text(script)
    done = subprocess.run(
        [*words, "-D", str(work.parent), str(work)], capture_output=True, text=True, timeout=30, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip() or f"code {done.returncode}"


def cluster_of(lab: RealSlurm) -> Cluster:
    """The lab as the collectors would write it."""
    scheduler = lab.scheduler()
    partitions = scheduler.partitions()
    cluster = Cluster.objects.create(
        name="lab",
        api_url=str(lab.description["slurmrestd_url"]),
        user_name=str(lab.description["user"]),
        token_ref="env:TEST_TOKEN",
        working_root=str(lab.description["work_dir"]),
        phase="READY",
        observed_version=scheduler.info().version,
        partition=next(p.name for p in partitions if p.is_default),
        observed_partitions=[{"name": p.name, "max_time_min": p.max_time_min} for p in partitions],
        observed_max_time_min=max(p.max_time_min or 10**6 for p in partitions),
    )
    for node in scheduler.nodes():
        Node.objects.create(
            cluster=cluster,
            name=node.name,
            instance_type="p5.48xlarge",
            gpu_type=node.gpu_type,
            gpus=node.gpus,
            cpus=node.cpus,
            memory_mib=node.memory_mib,
            phase="READY",
            partitions=list(node.partitions),
        )
    return cluster


def portal_says(lab: RealSlurm, owner: Any, team: Any, script: str) -> str:
    """Why the portal, or Slurm when the portal submits, refuses a script; empty where the job was made."""
    text, problems = check_script(script)
    reading = read_sbatch(text)
    if problems or reading.problems:
        return "; ".join(p.detail for p in [*problems, *reading.problems])
    cluster = cluster_of(lab)
    reading = completed(reading)
    spec = JobSpec(script=text, slurm_options=reading.options, **reading.fields)
    preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
    if preview.problems:
        return "; ".join(f"{p.pointer}: {p.detail}" for p in preview.problems)
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
    attempt = Attempt.objects.get(job=job)
    scheduler = lab.scheduler()
    try:
        receipt = scheduler.submit(submit_request(job, attempt))
    except InvalidRequest as refusal:
        return str(refusal)
    scheduler.cancel(receipt.scheduler_id)
    return ""


def lines_answered(script: str, reading: SbatchReading) -> list[str]:
    """Directives that ended nowhere: no field, no kept option, no remark and no problem speaks of them."""
    fields = {
        "job-name": "name",
        "nodes": "nodes",
        "ntasks-per-node": "tasks_per_node",
        "cpus-per-task": "cpus_per_task",
        "partition": "partition",
        "time": "time_limit_min",
        "mem": "memory_per_node_mib",
        "gpus-per-node": "gpus_per_node",
        "gpus-per-task": "gpus_per_node",
        "gres": "gpus_per_node",
        "gpus": "gpus_per_node",
        "ntasks": "tasks_per_node",
        "array": "array",
        "export": "environment",
    }
    from apps.jobs.sbatch import options_of, words_of

    lost = []
    kept = [option for part in reading.fields.get("parts", ()) for option in part["slurm_options"]]
    said = "\n".join([*reading.options, *kept, *reading.remarks, *(p.detail for p in reading.problems)])
    for line in script.splitlines():
        if not line.startswith("#SBATCH "):
            if line.strip() and not line.startswith("#"):
                break
            continue
        try:
            options = options_of(words_of(line[len("#SBATCH") :]))
        except ValueError:
            continue
        for option in options:
            name = fields.get(option.name, "-")
            in_a_part = any(part.get(name) for part in reading.fields.get("parts", ()))
            if not (name in reading.fields or in_a_part or f"--{option.name}" in said):
                lost.append(option.words)
    return lost


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
class ScriptsContract:
    """The same scripts on each release."""

    def test_a_script_is_read_and_judged_as_sbatch_does(
        self, lab: RealSlurm, owner: Any, team: Any, path: Path, record_property: Any
    ) -> None:
        from apps.quotas.services import quota_set
        from apps.teams.permissions import system_actor

        quota_set(actor=system_actor("test"), team=team, gpus=100_000)
        script = path.read_text()
        refused, ours = sbatch_says(lab, script), portal_says(lab, owner, team, script)
        print(f"\n{path.stem}: sbatch {refused or 'takes it'}; portal {ours or 'takes it'}")
        record_property("sbatch", refused)
        record_property("portal", ours)
        assert bool(refused) == bool(ours), f"sbatch: {refused or 'takes it'}; portal: {ours or 'takes it'}"
        assert lines_answered(script, read_sbatch(script)) == []


@needs("22.05")
class TestScripts2205(ScriptsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def lab(cls) -> Iterator[RealSlurm]:
        with real_slurm_lab() as lab:
            yield lab


@needs("24.11")
class TestScripts2411(ScriptsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def lab(cls) -> Iterator[RealSlurm]:
        with real_slurm_lab(release="24.11") as lab:
            yield lab


@needs("26.05")
class TestScripts2605(ScriptsContract):
    @pytest.fixture(scope="class")
    @classmethod
    def lab(cls) -> Iterator[RealSlurm]:
        with real_slurm_lab(release="26.05", user="games") as lab:
            yield lab
