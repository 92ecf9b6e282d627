"""Who may see, submit and stop jobs."""

from __future__ import annotations

from apps.jobs.models import Job
from apps.teams.models import Team
from apps.teams.permissions import Actor


def can_submit_job(actor: Actor, team: Team) -> bool:
    """Researchers and leads of the team; administrators."""
    return actor.may("jobs.submit", team.pk)


def can_cancel_job(actor: Actor, job: Job) -> bool:
    """The owner while still allowed in the team, leads of the team, operators and administrators."""
    if actor.may("jobs.manage", job.team_id):
        return True
    is_owner = job.owner_id is not None and job.owner_id == actor.user_id
    is_own_robot = job.owner_id is None and job.owner_name == actor.name
    return (is_owner or is_own_robot) and actor.may("jobs.cancel", job.team_id)
