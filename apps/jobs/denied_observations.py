"""A stop that the scheduler does not let the cluster's own user make: the wish ends and says who must do what."""

from __future__ import annotations

from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.clusters.observations import operator_missing
from apps.core.said import Said, said
from apps.core.states import move
from apps.jobs.models import Attempt, Job
from apps.jobs.observations import job_event
from apps.jobs.states import JOB_TRANSITIONS, AttemptPhase, JobPhase

#: A job's reason while its last stop was denied.
STOP_DENIED = "StopDenied"


def denied_words(job: Job, acting: str, error: str) -> Said:
    """Who may not and what somebody has to run; ``acting`` is the user that was refused, "" the cluster's own."""
    own = job.cluster.user_name
    if acting not in ("", own) or not own:
        return said(_("Slurm does not let %(user)s do this: %(error)s."), user=acting or "–", error=error.rstrip("."))
    text = _(
        "Slurm does not let %(user)s, as whom the portal acts on others' jobs, do this. An administrator of Slurm has "
        "to run: sacctmgr modify user %(user)s set adminlevel=operator"
    )
    return said(text, user=own)


def stop_denied(attempt: Attempt, acting: str, error: str) -> bool:
    """Take a stop back that Slurm refused: the job goes on as it was. False where the stop had been taken before.

    What somebody asked for while that call was under way stays: only the attempt's stop is taken back then.
    """
    job = attempt.job
    words = denied_words(job, acting, error)
    with transaction.atomic():
        rows = Attempt.objects.filter(pk=attempt.pk, stop_reason=attempt.stop_reason, stop_sent_at__isnull=True)
        if not rows.exclude(phase=AttemptPhase.STOPPING).update(stop_reason="", stop_node="", stop_decided_at=None):
            return False
        spent = {"stop_requested_at": None, "stop_kind": "", "observed_generation": job.generation}
        asked = Job.objects.filter(pk=job.pk, generation=job.generation)
        if asked.update(**spent, reason=STOP_DENIED, message=words):
            job.stop_requested_at, job.stop_kind, job.reason, job.message = None, "", STOP_DENIED, words
            if job.phase == JobPhase.CANCELLING:
                runs = attempt.phase == AttemptPhase.RUNNING
                phase = JobPhase.RUNNING if runs else JobPhase.QUEUED
                move(job, JOB_TRANSITIONS, phase, reason=STOP_DENIED, message=words)
        if acting in ("", job.cluster.user_name):
            operator_missing(job.cluster)
        job_event(job, STOP_DENIED, words, attempt, by=job.stop_by)
    attempt.stop_reason, attempt.stop_node, attempt.stop_decided_at = "", "", None
    return True


def denial_over(job: Job) -> None:
    """A later stop was taken: the sentence of the denied one is past."""
    if job.reason == STOP_DENIED:
        Job.objects.filter(pk=job.pk, reason=STOP_DENIED).update(reason="", message="")
        job.reason, job.message = "", ""
