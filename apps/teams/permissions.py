"""Rights, which roles hold them, and the Actor that every view, endpoint and selector asks.

A right is ``<noun>.<verb>``. Team rights hold in the teams of a membership; platform roles hold
theirs in every team. A token narrows its owner's rights to its scopes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from apps.teams.models import ApiToken, Team, User
from apps.teams.states import PlatformRole, TeamRole

_VIEW_TEAM = frozenset({"jobs.view", "checkpoints.view", "costs.view", "quotas.view", "teams.view", "templates.view"})
_VIEW_SHARED = frozenset({"clusters.view", "health.view", "catalog.view", "storage.view", "capacity.view"})
_SUBMIT = frozenset({"jobs.submit", "jobs.cancel"})

TEAM_RIGHTS: Mapping[str, frozenset[str]] = {
    TeamRole.VIEWER: _VIEW_TEAM | _VIEW_SHARED,
    TeamRole.RESEARCHER: _VIEW_TEAM | _VIEW_SHARED | _SUBMIT,
    TeamRole.LEAD: _VIEW_TEAM | _VIEW_SHARED | _SUBMIT | {"jobs.manage", "tokens.manage", "templates.manage"},
}
_OPERATE = frozenset(
    {
        "connections.view",
        "connections.manage",
        "clusters.operate",
        "health.operate",
        "jobs.cancel",
        "jobs.manage",
        "storage.operate",
        "capacity.operate",
        "capacity.approve",
    }
)
PLATFORM_RIGHTS: Mapping[str, frozenset[str]] = {
    PlatformRole.NONE: frozenset(),
    PlatformRole.OPERATOR: _VIEW_TEAM | _VIEW_SHARED | _OPERATE,
    PlatformRole.ADMIN: _VIEW_TEAM
    | _VIEW_SHARED
    | _OPERATE
    | _SUBMIT
    | {"purchases.allow", "quotas.manage", "teams.manage", "templates.manage", "tokens.manage", "audit.view"},
}
ALL_RIGHTS = frozenset().union(*TEAM_RIGHTS.values(), *PLATFORM_RIGHTS.values())


@dataclass(frozen=True)
class Actor:
    """Whoever asks: a person, a service account or nobody.

    ``roles`` maps team pk to team role; ``scopes`` is None for a browser session, else the token's
    rights. Reads no database: everything it needs was fetched once when it was made.
    """

    key: str
    name: str = ""
    user_id: int | None = None
    platform_role: str = ""
    roles: Mapping[int, str] = field(default_factory=dict)
    scopes: frozenset[str] | None = None
    token_id: int | None = None
    request_id: str = ""
    address: str = ""

    @property
    def is_known(self) -> bool:
        """Whether someone signed in or sent a valid token."""
        return self.key != "anonymous"

    def _scoped(self, right: str) -> bool:
        return self.scopes is None or right in self.scopes

    def everywhere(self, right: str) -> bool:
        """Whether the right holds in every team and on the platform."""
        return self._scoped(right) and right in PLATFORM_RIGHTS.get(self.platform_role, frozenset())

    def holds(self, right: str) -> bool:
        """Whether the right holds anywhere at all."""
        return self.everywhere(right) or bool(self.team_ids(right))

    def may(self, right: str, team_id: int | None) -> bool:
        """Whether the right holds in this team (None: something shared that no team owns)."""
        if self.everywhere(right):
            return True
        if team_id is None:
            return right in _VIEW_SHARED and self.holds(right)
        return team_id in self.team_ids(right)

    def team_ids(self, right: str) -> frozenset[int]:
        """The teams in which a membership gives the right."""
        if not self._scoped(right):
            return frozenset()
        return frozenset(t for t, role in self.roles.items() if right in TEAM_RIGHTS.get(role, frozenset()))


ANONYMOUS = Actor(key="anonymous")


def system_actor(name: str = "worker") -> Actor:
    """The portal itself, for what the worker does on its own account."""
    return Actor(key=f"system:{name}", name=name, platform_role=PlatformRole.ADMIN)


def actor_for_user(user: User, *, request_id: str = "", address: str = "", token: ApiToken | None = None) -> Actor:
    """The actor of a person, narrowed to a token's scopes when one is given."""
    if not user.is_active:
        return ANONYMOUS
    roles = dict(user.memberships.values_list("team_id", "role"))
    platform_role = user.platform_role or (PlatformRole.ADMIN if user.is_superuser else "")
    return Actor(
        key=f"user:{user.pk}",
        name=user.username,
        user_id=user.pk,
        platform_role=platform_role,
        roles=roles,
        scopes=None if token is None else frozenset(token.scopes),
        token_id=None if token is None else token.pk,
        request_id=request_id,
        address=address,
    )


def actor_for_token(token: ApiToken, *, request_id: str = "", address: str = "") -> Actor:
    """The actor of a live token; ANONYMOUS when its owner is disabled."""
    if token.user is not None:
        return actor_for_user(token.user, request_id=request_id, address=address, token=token)
    account = token.service_account
    if account is None or not account.is_enabled:
        return ANONYMOUS
    return Actor(
        key=f"service:{account.pk}",
        name=str(account),
        roles={account.team_id: account.role},
        scopes=frozenset(token.scopes),
        token_id=token.pk,
        request_id=request_id,
        address=address,
    )


def can_manage_token(actor: Actor, token: ApiToken) -> bool:
    """Owners revoke their own; leads those of their team's service accounts; admins all."""
    if token.user_id is not None and token.user_id == actor.user_id:
        return actor.scopes is None or "tokens.manage" in actor.scopes
    team_id = token.service_account.team_id if token.service_account else None
    return actor.may("tokens.manage", team_id) if team_id else actor.everywhere("tokens.manage")


def can_view_team(actor: Actor, team: Team) -> bool:
    """Members see their team."""
    return actor.may("teams.view", team.pk)
