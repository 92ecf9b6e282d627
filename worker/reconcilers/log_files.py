"""Output of jobs that no runner reports: read from the shared file system, where the worker sees it."""

from __future__ import annotations

from django.conf import settings

from apps.jobs.log_services import file_read, file_unreadable, needs_its_file
from apps.jobs.selectors import attempt_by_uid
from apps.jobs.states import ATTEMPT_ENDED
from worker import doors
from worker.engine import DONE, Outcome, again
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
    try:
        output = doors.scheduler_for(attempt.job.cluster).output_of(attempt.scheduler_id)
    except NotFound:
        return DONE
    place = seen_from_here(output.path, settings.CONFIG.shared_folders)
    if place is None:
        file_unreadable(attempt, output.path, "no folder of QD_SHARED_FOLDERS holds it")
        return DONE
    is_over = attempt.phase in ATTEMPT_ENDED
    try:
        for _ in range(PARTS):
            start = file_read(attempt, b"", is_whole=False)
            part = read_part(*place, start, PART_BYTES, output.user_id)
            if not part or file_read(attempt, part, is_whole=is_over or len(part) == PART_BYTES) == start:
                return DONE if is_over else again(PERIOD_S)
    except NotFound as error:
        if is_over:
            file_unreadable(attempt, output.path, str(error))
            return DONE
        return again(PERIOD_S)
    except AccessDenied as error:
        file_unreadable(attempt, output.path, str(error))
        return DONE
    return again(0)
