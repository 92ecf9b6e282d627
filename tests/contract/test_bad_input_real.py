"""What people send that is wrong, to a real Slurm with accounting: each refused in clear words, kept, and safe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from apps.clusters.models import Cluster
from apps.core.errors import InvalidInput
from apps.jobs.models import Attempt, Job
from apps.jobs.rules import check_script
from apps.jobs.sbatch import read_sbatch
from apps.jobs.sentences import job_sentence
from apps.jobs.services import JobSpec, job_submit
from apps.quotas.services import quota_set
from apps.teams.permissions import system_actor
from tests.conftest import actor_of
from tests.contract.broken_rest import BrokenRest
from tests.contract.test_recovery_real import Site
from tests.contract.test_scheduler_real import needs
from tests.labs import RealSlurm, real_slurm_lab
from worker import doors
from worker.providers import errors as e
from worker.providers import values as v

pytestmark = [pytest.mark.contract, pytest.mark.real_slurm, pytest.mark.django_db, pytest.mark.any_database]

SPEC = JobSpec(name="odd", script="#!/bin/bash\nsleep 300\n", nodes=1, gpus_per_node=8, time_limit_min=10)


@pytest.fixture(scope="module")
def lab() -> Iterator[RealSlurm]:
    with real_slurm_lab(nodes=2, release="26.05", user="games", accounting=True, enforce=True) as lab:
        yield lab


@pytest.fixture
def site(lab: RealSlurm, owner: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    quota_set(actor=system_actor("test"), team=team, gpus=1_000_000)
    proxy = BrokenRest(str(lab.description["slurmrestd_url"]))
    site = Site(lab, proxy, owner, team)
    monkeypatch.setattr(doors, "scheduler_for", lambda cluster, as_user="": site.scheduler)
    yield site
    proxy.close()
    clean = lab.scheduler()
    for job in clean.queue().jobs or ():
        clean.cancel(job.scheduler_id)


def submit(site: Site, **changes: Any) -> Job:
    spec = replace(SPEC, **changes)
    return job_submit(actor=actor_of(site.owner), team=site.team, cluster=site.cluster, spec=spec)


def told(site: Site, job: Job) -> str:
    """The job's sentence once the worker has tried to submit it."""
    site.look()
    return job_sentence(Job.objects.get(pk=job.pk))


@needs("26.05")
def test_a_partition_that_went_between_accepting_and_submitting(site: Site) -> None:
    Cluster.objects.filter(pk=site.cluster.pk).update(
        partition="gone", observed_partitions=[{"name": "gone", "max_time_min": 100}]
    )
    site.cluster.refresh_from_db()
    job = submit(site)
    words = told(site, job)
    assert Job.objects.get(pk=job.pk).phase == "FAILED"
    assert "partition" in words.lower()
    with pytest.raises(InvalidInput, match="no partition nowhere; there are gone"):
        submit(site, partition="nowhere")


@needs("26.05")
def test_an_account_without_association(site: Site) -> None:
    job = submit(site, slurm_options=["--account=nobodys"])
    words = told(site, job)
    assert Job.objects.get(pk=job.pk).phase == "FAILED"
    assert "account" in words.lower()


@needs("26.05")
def test_a_user_unknown_to_slurm(lab: RealSlurm) -> None:
    from worker.providers.slurm import mint_jwt

    key = lab.directory / "jwt.key"
    stranger = lab.scheduler(user_name="nosuchperson", token=mint_jwt(key.read_bytes(), "nosuchperson", 60))
    request = v.SubmitRequest(
        script="#!/bin/bash\ntrue\n",
        name="odd",
        comment="",
        partition="",
        nodes=1,
        gpus_per_node=1,
        gpu_type="",
        tasks_per_node=1,
        cpus_per_task=1,
        memory_per_node_mib=0,
        time_limit_min=1,
        working_directory="/tmp",
        environment={},
    )
    with pytest.raises((e.AccessDenied, e.InvalidRequest), match="(?i)user"):
        stranger.submit(request)


@needs("26.05")
@pytest.mark.parametrize(
    "name",
    [
        "two words",
        "'; rm -rf /; '",
        '"quoted" $(id) `id`',
        "학습 2단계 – 야간",
        "--wrap=id",
        "a/../../b",
        "%j%x",
        "<b>&amp;",
    ],
)
def test_a_name_is_only_a_name(site: Site, lab: RealSlurm, name: str) -> None:
    job = submit(site, name=name)
    site.until("the job to be queued", lambda: site.phases()[name] in ("QUEUED", "RUNNING"))
    found = lab.scheduler().job(Attempt.objects.get(job=job).scheduler_id)
    assert found.name == name
    lab.scheduler().cancel(found.scheduler_id)


@pytest.mark.parametrize("name", ["two\nlines", "tab\there", "bell\x07", "", "x" * 101, "\u2028"])
def test_a_name_that_is_none_is_refused(site: Site, name: str) -> None:
    with pytest.raises(InvalidInput, match="/name: one line of text"):
        submit(site, name=name)
    assert Job.objects.count() == 0


@needs("26.05")
def test_a_script_from_another_system_runs(site: Site) -> None:
    """CRLF and a byte order mark are an editor's; both go, and the script runs."""
    text, problems = check_script(b"\xef\xbb\xbf#!/bin/bash\r\n#SBATCH -N 1\r\nexit 7\r\n")
    assert (text, problems) == ("#!/bin/bash\n#SBATCH -N 1\nexit 7\n", [])
    assert read_sbatch(text).fields["nodes"] == 1
    job = submit(site, script=text, name="crlf")
    Job.objects.filter(pk=job.pk).update(environment={"QD_FLUSH_S": "0.2"})
    site.until("the script to end", lambda: site.phases()["crlf"] == "FAILED")
    assert Attempt.objects.get(job=job).exit_code == 7


@needs("26.05")
def test_a_script_without_a_shebang_runs_as_bash(site: Site) -> None:
    job = submit(site, script="[[ 1 == 1 ]] && exit 9\n", name="bare")
    Job.objects.filter(pk=job.pk).update(environment={"QD_FLUSH_S": "0.2"})
    site.until("the script to end", lambda: site.phases()["bare"] == "FAILED")
    assert Attempt.objects.get(job=job).exit_code == 9


@needs("26.05")
def test_ten_thousand_tasks(site: Site, lab: RealSlurm) -> None:
    """More than the site's MaxArraySize: Slurm's refusal in words; as many as it takes: one job."""
    job = submit(site, name="many", array="0-9999", nodes=1, gpus_per_node=1, time_limit_min=1)
    words = told(site, job)
    assert Job.objects.get(pk=job.pk).phase == "FAILED"
    assert "array" in words.lower()
    fits = submit(site, name="fewer", array="0-999%2", nodes=1, gpus_per_node=1, time_limit_min=1)
    site.until("the array to be queued", lambda: site.phases()["fewer"] in ("QUEUED", "RUNNING"))
    assert fits.attempts.count() == 1
    lab.scheduler().cancel(Attempt.objects.get(job=fits).scheduler_id)
