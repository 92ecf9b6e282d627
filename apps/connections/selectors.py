"""Named reads of cloud accounts."""

from __future__ import annotations

from django.db.models import QuerySet

from apps.connections.models import CloudAccount
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
