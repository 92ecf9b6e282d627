"""Named reads of teams and tokens."""

from __future__ import annotations

import hashlib
import hmac
from datetime import timedelta

from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from apps.core import clock
from apps.core.errors import NotFound
from apps.teams.models import ApiToken, ServiceAccount, Team
from apps.teams.permissions import Actor, can_manage_token


def teams_visible_to(actor: Actor, right: str = "teams.view") -> QuerySet[Team]:
    """Teams in which the actor holds the right."""
    if actor.everywhere(right):
        return Team.objects.all()
    return Team.objects.filter(pk__in=actor.team_ids(right))


def team_for(*, actor: Actor, may: str, slug: str) -> Team:
    """The team of this slug in which the actor holds the right. Raises NotFound."""
    team = Team.objects.filter(slug=slug).first()
    if team is None or not actor.may(may, team.pk):
        raise NotFound(_("no team %(slug)s in which you may do this") % {"slug": slug})
    return team


def token_digest(secret: str, pepper: str) -> str:
    """HMAC-SHA256 of a token's secret."""
    return hmac.new(pepper.encode(), secret.encode(), hashlib.sha256).hexdigest()


def token_by_bearer(bearer: str) -> ApiToken | None:
    """The live token of ``qd_<key id>.<secret>``, or None; comparison takes the same time for any wrong secret."""
    head, _sep, secret = bearer.partition(".")
    if not head.startswith("qd_") or not secret:
        return None
    token = (
        ApiToken.objects.select_related("user", "service_account__team").filter(key_id=head.removeprefix("qd_")).first()
    )
    known = token.digest if token is not None else "0" * 64
    fits = False
    for pepper in settings.CONFIG.token_peppers:
        fits |= hmac.compare_digest(known, token_digest(secret, pepper.get_secret_value()))
    if token is None or not fits or not token.is_live:
        return None
    # Written at most once a minute: a poll must not become a write load.
    now = clock.now()
    if token.last_used_at is None or now - token.last_used_at > timedelta(minutes=1):
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def tokens_visible_to(actor: Actor) -> QuerySet[ApiToken]:
    """One's own tokens, and those of service accounts one manages."""
    rows = ApiToken.objects.select_related("user", "service_account__team")
    if actor.everywhere("tokens.manage"):
        return rows
    query = Q(service_account__team__in=actor.team_ids("tokens.manage"))
    if actor.user_id is not None:
        query |= Q(user_id=actor.user_id)
    return rows.filter(query)


def token_for(*, actor: Actor, uid: str) -> ApiToken:
    """A token the actor may manage. Raises NotFound."""
    token = tokens_visible_to(actor).filter(uid=uid).first()
    if token is None or not can_manage_token(actor, token):
        raise NotFound(_("no token %(uid)s that you may manage") % {"uid": uid})
    return token


def service_accounts_visible_to(actor: Actor) -> QuerySet[ServiceAccount]:
    """Service accounts for which the actor may make tokens."""
    rows = ServiceAccount.objects.select_related("team").filter(is_enabled=True)
    if actor.everywhere("tokens.manage"):
        return rows
    return rows.filter(team__in=actor.team_ids("tokens.manage"))
