"""Named reads of cloud accounts."""

from __future__ import annotations

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from apps.connections.models import CloudAccount
from apps.connections.states import AccountPhase
from apps.core import clock, units
from apps.core.errors import NotFound
from apps.teams.permissions import Actor


def accounts_visible_to(actor: Actor) -> QuerySet[CloudAccount]:
    """All for operators, none for others."""
    return CloudAccount.objects.all() if actor.everywhere("connections.view") else CloudAccount.objects.none()


def account_for(*, actor: Actor, may: str, uid: str) -> CloudAccount:
    """The account of this uid or name. Raises NotFound."""
    rows = CloudAccount.objects.all() if actor.everywhere(may) else CloudAccount.objects.none()
    account = rows.filter(uid=uid).first() or rows.filter(name=uid).first()
    if account is None:
        raise NotFound(f"no cloud account {uid} in which you may do this")
    return account


def account_by_uid(uid: str) -> CloudAccount | None:
    """For the worker."""
    return CloudAccount.objects.filter(uid=uid).first()


def account_sentence(account: CloudAccount) -> str:
    """What is going on with an account, since when, and whether anyone must act."""
    facts = {
        "since": units.duration(clock.now() - account.phase_since),
        "id": account.observed_account_id,
        "region": account.region,
        "error": account.message.rstrip("."),
    }
    match account.phase:
        case AccountPhase.PENDING:
            return _("The worker is asking AWS who it is there, for %(since)s.") % facts
        case AccountPhase.FAILED:
            return _("Not usable for %(since)s: %(error)s. The worker asks again every 30 s.") % facts
        case _:
            pass
    if account.is_paused:
        return (
            _("Connected to account %(id)s in %(region)s, but paused: nothing is launched, changed or deleted.") % facts
        )
    return _("Connected to account %(id)s in %(region)s for %(since)s.") % facts
