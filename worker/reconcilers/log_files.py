"""Output of jobs that no runner reports: read from the shared file system, where the worker sees it."""

from __future__ import annotations

from django.conf import settings

from apps.jobs.log_services import file_read, file_unreadable, needs_its_file
from apps.jobs.selectors import attempt_by_uid
from apps.jobs.states import ATTEMPT_ENDED, JobOrigin
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.jobscript import working_directory
from worker.providers.errors import AccessDenied, NotFound
from worker.providers.shared_files import read_part, seen_from_here

PART_BYTES = 256 * 1024
#: A visit takes so many parts at most: a file that grew for hours is caught up with over several.
PARTS = 16
PERIOD_S = 5.0


def read(uid: str) -> Outcome:
    """Take what has come to the file since the last look."""
    attempt = attempt_by_uid(uid)
    if attempt is None or not attempt.scheduler_id or not needs_its_file(attempt):
        return DONE
    is_over = attempt.phase in ATTEMPT_ENDED
    try:
        output = doors.scheduler_for(attempt.job.cluster).output_of(attempt.scheduler_id)
    except NotFound:
        if is_over:
            file_unreadable(attempt, "", "the scheduler forgot the job before all of it was read")
        return DONE
    # Of a job of the portal Slurm knows the first lines' file only; the script goes on in its own folder.
    is_ours = attempt.job.origin == JobOrigin.PORTAL
    path = f"{working_directory(attempt.job)}/attempt-{attempt.number}.out" if is_ours else output.path
    place = seen_from_here(path, settings.CONFIG.shared_folders)
    if place is None:
        file_unreadable(attempt, path, "no folder of QD_SHARED_FOLDERS holds it")
        return DONE
    try:
        for _ in range(PARTS):
            start = file_read(attempt, b"", is_whole=False)
            part = read_part(*place, start, PART_BYTES, output.user_id)
            if not part or file_read(attempt, part, is_whole=is_over or len(part) == PART_BYTES) == start:
                return DONE if is_over else again(PERIOD_S)
    except NotFound as error:
        if is_over:
            file_unreadable(attempt, path, str(error))
            return DONE
        return again(PERIOD_S)
    except AccessDenied as error:
        file_unreadable(attempt, path, str(error))
        return DONE
    return again(0)
