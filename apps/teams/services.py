"""Verbs on teams and tokens."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _

from apps.audit.services import record
from apps.core import clock
from apps.core.errors import Forbidden, NotFound, field_refusal
from apps.teams.models import ApiToken, Membership, ServiceAccount, Team, User
from apps.teams.permissions import ALL_RIGHTS, TEAM_RIGHTS, Actor, can_manage_token
from apps.teams.selectors import token_digest

MAX_TOKEN_DAYS = 365


def grantable_scopes(actor: Actor) -> frozenset[str]:
    """The rights an actor may hand to a token: never more than it holds itself."""
    return frozenset(right for right in ALL_RIGHTS if actor.holds(right))


def token_create(
    *,
    actor: Actor,
    label: str,
    scopes: Sequence[str],
    days: int,
    service_account: ServiceAccount | None = None,
) -> tuple[ApiToken, str]:
    """Make a token and return it with its bearer text, which is never shown again.

    Raises InvalidInput for an unknown scope or a lifetime outside 1..365 days, Forbidden for a
    scope the actor does not hold.
    """
    if not label.strip():
        raise field_refusal("/label", _("say what the token is for"))
    if not 1 <= days <= MAX_TOKEN_DAYS:
        raise field_refusal("/days", _("must be from %(low)s to %(high)s") % {"low": 1, "high": MAX_TOKEN_DAYS})
    unknown = sorted(set(scopes) - ALL_RIGHTS)
    if unknown or not scopes:
        raise field_refusal(
            "/scopes",
            _("unknown scope %(names)s") % {"names": ", ".join(unknown)} if unknown else _("choose at least one"),
        )
    allowed = grantable_scopes(actor)
    if service_account is not None:
        if not actor.may("tokens.manage", service_account.team_id):
            raise NotFound(_("no such service account that you may manage"))
        allowed = frozenset(TEAM_RIGHTS[service_account.role])
    if actor.scopes is not None:
        # A token hands on no more than it has, and only when it may make tokens at all.
        if "tokens.manage" not in actor.scopes:
            raise Forbidden(_("this token may not make tokens"))
        allowed &= actor.scopes
    excess = sorted(set(scopes) - allowed)
    if excess:
        raise Forbidden(_("%(names)s: the owner of the token does not hold this") % {"names": ", ".join(excess)})
    if service_account is None and actor.user_id is None:
        raise Forbidden(_("a service account cannot make tokens for itself"))
    secret = secrets.token_urlsafe(32)
    pepper = settings.CONFIG.token_peppers[0].get_secret_value()
    token = ApiToken(
        key_id=secrets.token_hex(6),
        digest=token_digest(secret, pepper),
        label=label.strip()[:80],
        user_id=None if service_account else actor.user_id,
        service_account=service_account,
        scopes=sorted(set(scopes)),
        expires_at=clock.now() + timedelta(days=days),
    )
    with transaction.atomic():
        token.save()
        record(
            actor,
            "token.create",
            "token",
            token.uid,
            after={"label": token.label, "scopes": token.scopes, "days": days},
        )
    return token, f"qd_{token.key_id}.{secret}"


def token_revoke(*, actor: Actor, token: ApiToken) -> None:
    """End a token now; revoking twice changes nothing."""
    if not can_manage_token(actor, token):
        raise NotFound(_("no token %(uid)s that you may manage") % {"uid": token.uid})
    with transaction.atomic():
        changed = ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=clock.now())
        if changed:
            record(actor, "token.revoke", "token", token.uid, before={"label": token.label})


def team_ensure(slug: str, name: str) -> Team:
    """The team of this slug, made if missing."""
    team, _made = Team.objects.get_or_create(slug=slug, defaults={"name": name})
    return team


def membership_set(team: Team, user: User, role: str) -> Membership:
    """Give a person this role in a team."""
    membership, _made = Membership.objects.update_or_create(team=team, user=user, defaults={"role": role})
    return membership
