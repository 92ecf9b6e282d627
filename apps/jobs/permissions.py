"""Who may see, submit and stop jobs, and who keeps their templates."""

from __future__ import annotations

from collections.abc import Iterable

from apps.jobs.models import Job, JobTemplate
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


def can_keep_for(actor: Actor, teams: Iterable[Team]) -> bool:
    """Whether the actor may make or change a template of these teams: leads of all of them; administrators.

    One that names no team is for everyone and the administrators'.
    """
    if actor.everywhere("templates.manage"):
        return True
    named = {team.pk for team in teams}
    return bool(named) and named <= actor.team_ids("templates.manage")


def can_manage_template(actor: Actor, template: JobTemplate) -> bool:
    """As can_keep_for, for the teams that it has."""
    return can_keep_for(actor, template.teams.all())
