"""As whom a job is submitted and acted upon in Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from apps.clusters.models import Cluster
from apps.clusters.slurm_selectors import (
    slurm_account_of,
    slurm_identity,
    slurm_user_of,
    team_of_account,
    who_can_help,
)
from apps.core.errors import FieldProblem
from apps.jobs.models import Job
from apps.jobs.sbatch import check_options, value_of
from apps.teams.models import Team
from apps.teams.permissions import Actor


@dataclass(frozen=True)
class Submitter:
    """User and account in Slurm; an empty user is the cluster's own, an empty account Slurm's default for the user."""

    slurm_user: str = ""
    slurm_account: str = ""
    problems: tuple[FieldProblem, ...] = ()


def submitter_of(actor: Actor, team: Team, cluster: Cluster, options: Sequence[str] = ()) -> Submitter:
    """As whom a new job of the actor goes to Slurm, or why it cannot."""
    kept, _problems = check_options(list(options))
    account = value_of(kept, "account") or slurm_account_of(cluster, team)
    problems = []
    owner = team_of_account(cluster, account) if account else None
    if owner is not None and owner.pk != team.pk:
        text = _("account %(account)s of cluster %(cluster)s belongs to team %(team)s")
        text %= {"account": account, "cluster": cluster.name, "team": owner.slug}
        problems.append(FieldProblem("/slurm_options/0", "other-team", text))
    if not cluster.signing_key_ref:
        return Submitter("", account, tuple(problems))
    user = slurm_user_of(cluster, actor)
    facts = {"person": actor.name, "cluster": cluster.name, "who": who_can_help(), "user": user}
    if not user:
        text = _("%(person)s has no Slurm user on cluster %(cluster)s; ask for one: %(who)s") % facts
        problems.append(FieldProblem("/cluster", "no-slurm-user", text))
    elif cluster.tells_ids:
        known = slurm_identity(cluster, user)
        if known.uid_number is None or known.gid_number is None:
            text = _("Slurm user %(user)s of cluster %(cluster)s has no uid and gid yet; ask for them: %(who)s") % facts
            problems.append(FieldProblem("/cluster", "no-posix-ids", text))
    return Submitter(user, account, tuple(problems))


def acting_user(actor: Actor, job: Job) -> str:
    """As whom the actor's action on a job goes to Slurm: its own user where it is the actor's job.

    "" is the cluster's own user: whoever acts on another's job does so by right, as operators do.
    """
    if actor.user_id is not None:
        return job.slurm_user if actor.user_id == job.owner_id else ""
    # A robot has no row of its own in the jobs: its name tells.
    return job.slurm_user if job.owner_id is None and actor.name == job.owner_name else ""
