"""People on a real Slurm 26.05: jobs run as themselves, sbatch is seen and billed, an empty budget holds both."""

from __future__ import annotations

import pwd
import subprocess
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.models import Cluster
from apps.clusters.slurm_services import slurm_account_put, slurm_settings_update, slurm_user_put
from apps.costs.models import Budget
from apps.costs.selectors import standing_of
from apps.costs.services import budget_set
from apps.costs.states import Unit
from apps.intents.models import Intent
from apps.jobs.models import Job
from apps.jobs.selectors import current_attempt
from apps.jobs.sentences import waiting_sentence
from apps.jobs.services import JobSpec, job_stop, job_submit
from tests.conftest import actor_of
from tests.labs import RealSlurm, real_slurm_lab, why_no_real_slurm
from worker import doors
from worker.collectors import outside
from worker.collectors import slurm as collector
from worker.reconcilers import clusters, jobs, limits

REASON = why_no_real_slurm("26.05")
pytestmark = [pytest.mark.real_slurm, pytest.mark.skipif(bool(REASON), reason=REASON or "it can run here")]
USER = "games"


@pytest.fixture(scope="module")
def lab() -> Iterator[RealSlurm]:
    with real_slurm_lab(release="26.05", user=USER, enforce=True, accounting=True, nodes=2) as found:
        yield found


@pytest.fixture
def place(
    lab: RealSlurm, team: Any, owner: Any, operator: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    """The lab as a cluster of the portal, with its signing key and a shared folder like /tmp."""
    root = lab.directory / "people"
    root.mkdir(exist_ok=True)
    root.chmod(0o1777)
    (tmp_path / "lab-key").write_bytes(Path(lab.description["jwt_key"]).read_bytes())
    changed = {"secrets_dir": tmp_path, "scontrol": "", "charge_every_s": 0.0}
    settings.CONFIG = settings.CONFIG.model_copy(update=changed)
    monkeypatch.setattr(doors, "_schedulers", {})
    monkeypatch.setattr(doors, "_mills", {})
    cluster = Cluster.objects.create(
        name="lab", api_url=lab.description["slurmrestd_url"], user_name="slurm", jwt_key_ref="file:lab-key",
        partition="gpu", working_root=str(root),
    )  # fmt: skip
    actor = actor_of(operator)
    slurm_user_put(actor=actor, cluster=cluster, user_name=USER, user=owner)
    slurm_account_put(actor=actor, cluster=cluster, account="default", team=team, is_default=True)
    clusters.connect(cluster.uid)
    collector.nodes(cluster.uid)
    cluster.refresh_from_db()
    assert cluster.phase == "READY", cluster.message
    return cluster


def turn(cluster: Cluster) -> None:
    """One round of everything that the worker does for the cluster."""
    Cluster.objects.filter(pk=cluster.pk).update(queue_read_at=None)
    collector.queue(cluster.uid)
    outside.follow(cluster.uid)
    for key in list(Intent.objects.filter(kind="job.reconcile").values_list("key", flat=True)):
        jobs.reconcile(key)


def until(what: str, cluster: Cluster, probe: Callable[[], Any], timeout_s: float = 90.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := probe()):
        seen = [(j.name, j.phase, str(j.message)) for j in Job.objects.all()]
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s; {seen}"
        turn(cluster)
        time.sleep(0.5)
    return found


def sbatch(lab: RealSlurm, *words: str) -> str:
    command = list(lab.description["sbatch"])
    account = pwd.getpwnam(USER)
    at = command.index("/usr/bin/env")
    command[at:at] = ["/usr/bin/setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    whole = [*command, "--parsable", "--chdir=/tmp", "--output=/dev/null", *words]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def spec(script: str, minutes: int = 10) -> JobSpec:
    text = f"#!/bin/bash\n{script}\n"
    return JobSpec(name="own", script=text, nodes=1, gpus_per_node=8, gpu_type="h100", time_limit_min=minutes)


def budget(team: Any, admin: Any, usd: int) -> None:
    had = Budget.objects.filter(team=team).first()
    version = had.version if had else None
    budget_set(actor=actor_of(admin), team=team, usd_per_month=Decimal(usd), expected_version=version)


def test_a_job_runs_as_its_owner_in_a_folder_of_its_owner(place: Cluster, team: Any, owner: Any) -> None:
    job = job_submit(actor=actor_of(owner), team=team, cluster=place, spec=spec("id -un > who"))
    until("its end", place, lambda: Job.objects.get(pk=job.pk).has_ended)
    job.refresh_from_db()
    assert job.phase == "SUCCEEDED", job.message
    folder = Path(place.working_root) / USER / team.slug / job.uid
    assert (folder / "who").read_text().strip() == USER
    assert folder.owner() == folder.parent.parent.owner() == USER
    assert not list(Path(place.working_root).glob(".quarterdeck-*.out")), "its early output was taken away"


def test_an_operator_cancels_another_s_job_with_the_cluster_s_own_user(
    place: Cluster, team: Any, owner: Any, operator: Any
) -> None:
    job = job_submit(actor=actor_of(owner), team=team, cluster=place, spec=spec("sleep 300"))
    until("it runs", place, lambda: Job.objects.get(pk=job.pk).phase == "RUNNING")
    job.refresh_from_db()
    job_stop(actor=actor_of(operator), job=job, kind="cancel")
    until("its end", place, lambda: Job.objects.get(pk=job.pk).has_ended)
    job.refresh_from_db()
    assert (job.phase, job.stop_as) == ("CANCELLED", "")


def test_sbatch_is_seen_billed_and_bound_by_the_budget(
    place: Cluster, lab: RealSlurm, team: Any, owner: Any, operator: Any, admin: Any
) -> None:
    budget(team, admin, 1000)
    number = sbatch(lab, "--job-name=ssh", "--gres=gpu:8", "-N1", "--time=10", "--wrap", "sleep 6")
    job = until("it is taken in", place, lambda: Job.objects.filter(origin="outside").first())
    assert (job.owner, job.team, job.slurm_user) == (owner, team, USER)
    assert job.attempts.get().scheduler_id == number
    until("its end", place, lambda: Job.objects.get(pk=job.pk).phase == "SUCCEEDED")
    for _n in range(2):
        turn(place)
    spent = standing_of(team, Unit.USD).spent
    row = job.attempts.get().entries.get()
    hours = Decimal((row.ended_at - row.started_at).total_seconds()) * 8 / 3600
    # Slurm tells whole seconds, and a job of six may be seen running a moment after its end.
    assert spent == pytest.approx(hours * job.usd_per_gpu_hour, rel=Decimal("0.35"))

    budget(team, admin, 0)
    place.refresh_from_db()
    actor = actor_of(operator)
    slurm_settings_update(actor=actor, cluster=place, expected_version=place.version, limits_mode="enforce")
    limits.reconcile(place.uid)
    sbatch(lab, "--job-name=poor", "--gres=gpu:8", "-N1", "--time=10", "--wrap", "sleep 1")
    poor = until("the second", place, lambda: Job.objects.filter(name="poor").first())
    until("its reason", place, lambda: current_attempt(poor).observed_reason == "AssocGrpGRESMinutes")  # type: ignore[union-attr]
    words = waiting_sentence(poor, current_attempt(poor))
    assert team.slug in words
    assert "admin" in words
    budget(team, admin, 1000)
    limits.reconcile(place.uid)
    until("its end", place, lambda: Job.objects.get(pk=poor.pk).phase == "SUCCEEDED")

    subprocess.run(
        [*lab.description["sacctmgr"], "-i", "modify", "account", "default", "set", "GrpTRES=gres/gpu=1"], check=True
    )
    limits.reconcile(place.uid)
    from apps.audit.models import Event

    assert Event.objects.filter(kind="LimitsRepaired").count() == 1
    found = doors.accounting_for(place).account_limits(["default"])["default"]
    assert found.gpus == int(standing_of(team, Unit.GPUS).limit)
