"""Named reads of who people and teams are in a cluster's Slurm."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from apps.clusters.models import Cluster
from apps.clusters.slurm_models import SlurmAccount, SlurmUser
from apps.core.errors import NotFound
from apps.teams.models import Team, User
from apps.teams.permissions import Actor
from apps.teams.states import PlatformRole

#: As Linux takes them, and as they stand in a path and a command line without quotes.
USER_NAME: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9._@-]{0,59}$")
#: Users who are more than a person: the machine's own, and by its usual name that of Slurm's daemons.
PRIVILEGED: Final = frozenset({"root", "slurm"})


@dataclass(frozen=True)
class Identity:
    """Who acts in Slurm. Ids are None where no mapping tells them."""

    user_name: str
    uid_number: int | None = None
    gid_number: int | None = None
    gids: tuple[int, ...] = ()
    gecos: str = ""


def slurm_users_of(cluster: Cluster) -> QuerySet[SlurmUser]:
    """The users of a cluster's Slurm that are known, by name."""
    return SlurmUser.objects.filter(cluster=cluster).select_related("user", "service_account__team", "team")


def slurm_accounts_of(cluster: Cluster) -> QuerySet[SlurmAccount]:
    """The accounts of a cluster's Slurm that belong to teams, by name."""
    return SlurmAccount.objects.filter(cluster=cluster).select_related("team")


def slurm_user_for(*, actor: Actor, may: str, uid: str) -> SlurmUser:
    """The row of this uid. Raises NotFound."""
    rows = SlurmUser.objects.select_related("cluster__account", "user", "service_account__team", "team")
    found = rows.filter(uid=uid).first() if actor.everywhere(may) else None
    if found is None:
        raise NotFound(_("no Slurm user %(uid)s in which you may do this") % {"uid": uid})
    return found


def slurm_account_for(*, actor: Actor, may: str, uid: str) -> SlurmAccount:
    """The row of this uid. Raises NotFound."""
    rows = SlurmAccount.objects.select_related("cluster__account", "team")
    found = rows.filter(uid=uid).first() if actor.everywhere(may) else None
    if found is None:
        raise NotFound(_("no Slurm account %(uid)s in which you may do this") % {"uid": uid})
    return found


def may_stand_for(cluster: Cluster, name: str) -> bool:
    """Whether a name of the portal may be taken for the same name in Slurm: not for one that has rights of its own."""
    return bool(USER_NAME.fullmatch(name)) and name.lower() not in PRIVILEGED and name != cluster.user_name


def slurm_user_of(cluster: Cluster, actor: Actor) -> str:
    """The actor's user in the cluster's Slurm; "" where nobody knows one."""
    rows = SlurmUser.objects.filter(cluster=cluster)
    if actor.user_id is not None:
        known = rows.filter(user_id=actor.user_id).values_list("user_name", flat=True).first()
        if known or not cluster.same_names or not may_stand_for(cluster, actor.name):
            return known or ""
        # Whoever is named in a mapping is the person it names, or nobody's.
        return "" if rows.filter(user_name=actor.name).exists() else actor.name
    kind, _sep, pk = actor.key.partition(":")
    if kind != "service" or not pk.isdigit():
        return ""
    return rows.filter(service_account_id=int(pk)).values_list("user_name", flat=True).first() or ""


def slurm_identity(cluster: Cluster, user_name: str) -> Identity:
    """What is known of a user of the cluster's Slurm."""
    row = SlurmUser.objects.filter(cluster=cluster, user_name=user_name).select_related("user").first()
    if row is None:
        return Identity(user_name)
    gecos = row.user.get_full_name() if row.user is not None else ""
    gids = tuple(int(gid) for gid in row.gids)
    return Identity(user_name, row.uid_number, row.gid_number, gids, gecos)


def slurm_account_of(cluster: Cluster, team: Team) -> str:
    """The account a team's jobs are submitted with: its default, or its only one; "" leaves it to Slurm."""
    rows = list(SlurmAccount.objects.filter(cluster=cluster, team=team)[:50])
    chosen = [row for row in rows if row.is_default] or (rows if len(rows) == 1 else [])
    return chosen[0].account if chosen else ""


def team_of_account(cluster: Cluster, account: str) -> Team | None:
    """Whose account it is; None for nobody's."""
    row = SlurmAccount.objects.filter(cluster=cluster, account=account).select_related("team").first()
    return row.team if row is not None else None


def who_can_help() -> str:
    """Up to three people who may edit mappings, by name; never empty."""
    roles = [PlatformRole.OPERATOR, PlatformRole.ADMIN]
    rows = User.objects.filter(is_active=True, platform_role__in=roles).order_by("-platform_role", "username")
    names = list(rows.values_list("username", flat=True)[:3])
    return ", ".join(names) or _("an administrator of the portal")
