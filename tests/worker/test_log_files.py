"""Output of a job without a runner, from its file on a shared file system."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.audit.models import Event
from apps.clusters.models import Cluster
from apps.core import clock
from apps.intents.models import Intent
from apps.jobs.ingest import events_take
from apps.jobs.log_selectors import log_page
from apps.jobs.log_services import attempts_to_read
from apps.jobs.models import Attempt, Job
from worker.collectors.housekeeping import keep_house
from worker.jobscript import working_directory
from worker.providers import values as v
from worker.providers.errors import NotFound
from worker.reconcilers.log_files import read

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(job: Job, scheduler: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setattr(settings.CONFIG, "shared_folders", {"/fsx": str(tmp_path)})
    path = v.OutputFile("/fsx/lm/out.txt", os.getuid())
    scheduler.output_of = lambda scheduler_id: path
    found = job.attempts.get()
    Job.objects.filter(pk=job.pk).update(origin="outside")
    Attempt.objects.filter(pk=found.pk).update(
        phase="RUNNING", scheduler_id="100", started_at=clock.now() - timedelta(minutes=5)
    )
    found.refresh_from_db()
    (tmp_path / "lm").mkdir()
    return found


def shown(job: Job) -> str:
    return "".join(c.text for c in log_page(job, limit=500).chunks)


def test_a_file_that_grows_is_followed_to_its_end(job: Job, attempt: Attempt, tmp_path: Path) -> None:
    path = tmp_path / "lm" / "out.txt"
    assert attempts_to_read() == [attempt.uid]
    assert read(attempt.uid).again_in_s
    path.write_text("step 1 loss 4.0\nhalf a li")
    assert read(attempt.uid).again_in_s
    assert shown(job) == "step 1 loss 4.0\n"
    with path.open("a") as stream:
        stream.write("ne\nValueError: no data\nlast")
    read(attempt.uid)
    assert shown(job) == "step 1 loss 4.0\nhalf a line\nValueError: no data\n"
    Attempt.objects.filter(pk=attempt.pk).update(phase="FAILED", ended_at=clock.now())
    assert read(attempt.uid).again_in_s is None
    assert shown(job) == path.read_text()
    assert read(attempt.uid).again_in_s is None
    assert shown(job) == path.read_text()


def test_a_long_file_comes_in_parts(job: Job, attempt: Attempt, tmp_path: Path) -> None:
    text = "".join(f"line {n} of a very long file that was written before anybody looked\n" for n in range(90_000))
    (tmp_path / "lm" / "out.txt").write_text(text)
    for _ in range(4):
        read(attempt.uid)
    assert "".join(attempt.log_chunks.order_by("offset").values_list("text", flat=True)) == text


def test_with_a_runner_the_file_is_left_alone(job: Job, attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "lm" / "out.txt").write_text("twice?\n")
    events_take(attempt, {"id": "r1", "role": "batch"}, [])
    assert attempts_to_read() == []
    assert read(attempt.uid).again_in_s is None
    assert shown(job) == ""


def test_why_there_is_none_is_said_once(job: Job, attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("secret")
    (tmp_path / "lm" / "out.txt").symlink_to("/etc/hostname")
    for _ in range(3):
        assert read(attempt.uid).again_in_s is None
    told = Event.objects.filter(object_uid=job.uid, kind="OutputUnreadable")
    assert told.count() == 1
    assert "leads out of" in told.get().data["why"]


def test_the_housekeeping_asks_for_it(attempt: Attempt) -> None:
    keep_house()
    assert Intent.objects.filter(kind="log.read", key=attempt.uid).exists()


def test_a_job_of_the_portal_without_python_has_its_output_in_its_folder(
    job: Job, attempt: Attempt, tmp_path: Path
) -> None:
    Job.objects.filter(pk=job.pk).update(origin="portal")
    Cluster.objects.filter(pk=job.cluster_id).update(working_root="/fsx/qd")
    fresh = Attempt.objects.select_related("job__cluster", "job__team").get(pk=attempt.pk)
    folder = tmp_path / Path(working_directory(fresh.job)).relative_to("/fsx")
    folder.mkdir(parents=True)
    (folder / "attempt-1.out").write_text("quarterdeck: no python3 on this node\nstep 1\n")
    read(attempt.uid)
    assert shown(job).endswith("step 1\n")


def test_what_was_forgotten_unread_is_said(job: Job, attempt: Attempt, scheduler: Any) -> None:
    def forgotten(scheduler_id: str) -> v.OutputFile:
        raise NotFound("no such job", source="slurm")

    scheduler.output_of = forgotten
    Attempt.objects.filter(pk=attempt.pk).update(phase="FAILED", ended_at=clock.now())
    assert read(attempt.uid).again_in_s is None
    assert "forgot" in Event.objects.get(object_uid=job.uid, kind="OutputUnreadable").data["why"]
