"""Named reads of cloud accounts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from apps.connections.models import CloudAccount
from apps.connections.states import AccountPhase
from apps.core import clock, units
from apps.core.errors import NotFound
from apps.teams.permissions import Actor


def accounts_visible_to(actor: Actor) -> QuerySet[CloudAccount]:
    """All that were not removed for operators, none for others."""
    return _rows(actor, "connections.view").exclude(phase=AccountPhase.REMOVED)


def accounts_removed(actor: Actor) -> QuerySet[CloudAccount]:
    """Removed ones, kept for their history."""
    return _rows(actor, "connections.view").filter(phase=AccountPhase.REMOVED)


def _rows(actor: Actor, may: str) -> QuerySet[CloudAccount]:
    return CloudAccount.objects.all() if actor.everywhere(may) else CloudAccount.objects.none()


def account_for(*, actor: Actor, may: str, uid: str) -> CloudAccount:
    """The account of this uid or name; a removed one can only be viewed. Raises NotFound."""
    rows = _rows(actor, may)
    if may != "connections.view":
        rows = rows.exclude(phase=AccountPhase.REMOVED)
    account = rows.filter(uid=uid).first() or rows.filter(name=uid).first()
    if account is None:
        raise NotFound(f"no cloud account {uid} in which you may do this")
    return account


def account_by_uid(uid: str) -> CloudAccount | None:
    """For the worker."""
    return CloudAccount.objects.filter(uid=uid).first()


@dataclass(frozen=True)
class Holder:
    """A cluster or fleet that still needs an account; ``uid`` of the cluster or fleet."""

    kind: str
    uid: str
    name: str


def account_holders(account: CloudAccount) -> list[Holder]:
    """What keeps an account from being removed: its clusters, file systems, reservations, purchases, fleets."""
    # By the relations' names: clusters live on a higher floor.
    found: list[Holder] = []
    for cluster in getattr(account, "clusters").exclude(phase="DELETED").order_by("name"):  # noqa: B009
        found.append(Holder("cluster", cluster.uid, cluster.name))
    for fs in getattr(account, "file_systems").exclude(phase="DELETED").order_by("name"):  # noqa: B009
        found.append(Holder("file-system", fs.uid, fs.name))
    # What was only found there goes on without the portal; what was reserved here is paid for and watched.
    ended = ("EXPIRED", "CANCELLED", "FAILED")
    for row in getattr(account, "reservations").exclude(phase__in=ended).filter(is_adopted=False):  # noqa: B009
        found.append(Holder("reservation", row.uid, row.name))
    for row in getattr(account, "purchases").filter(phase__in=("APPROVED", "BUYING", "UNKNOWN")):  # noqa: B009
        found.append(Holder("purchase", row.uid, row.name))
    return found + [Holder("fleet", fleet.uid, str(fleet)) for fleet in live_fleets(account)]


def things_in(account: CloudAccount) -> list[Holder]:
    """What AWS holds for us in an account: fleets, file systems, reservations and open purchases."""
    return [holder for holder in account_holders(account) if holder.kind != "cluster"]


def accounts_paused() -> list[CloudAccount]:
    """Accounts from which nothing is read now."""
    return list(CloudAccount.objects.filter(is_paused=True).exclude(phase=AccountPhase.REMOVED))


def live_fleets(account: CloudAccount) -> list[Any]:
    """Fleets of an account's clusters that are not deleted, by cluster and name."""
    clusters = getattr(account, "clusters").prefetch_related("fleets")  # noqa: B009
    rows = [fleet for cluster in clusters for fleet in cluster.fleets.all() if fleet.phase != "DELETED"]
    return sorted(rows, key=str)


def account_sentence(account: CloudAccount) -> str:
    """What is going on with an account, since when, and whether anyone must act."""
    facts = {
        "since": units.duration(clock.now() - account.phase_since),
        "id": account.observed_account_id,
        "region": account.region,
        "error": str(account.message).rstrip("."),
    }
    if account.phase == AccountPhase.REMOVED:
        return _("Removed %(since)s ago; what happened there stays readable.") % facts
    if account.delete_requested_at is not None:
        return _("Being removed from the portal; nothing in AWS is touched.")
    if account.is_paused:
        paused = units.duration(clock.now() - account.paused_at) if account.paused_at is not None else "–"
        return _(
            "Paused for %(paused)s: nothing is read, launched, changed or deleted in %(region)s; "
            "what the pages show of it is as of then."
        ) % {**facts, "paused": paused}
    if account.phase != AccountPhase.PENDING and not account.is_settled:
        return _("Changed: the worker is asking AWS again who it is there.")
    match account.phase:
        case AccountPhase.PENDING:
            return _("The worker is asking AWS who it is there, for %(since)s.") % facts
        case AccountPhase.FAILED:
            return _("Not usable for %(since)s: %(error)s. The worker asks again every 30 s.") % facts
        case _:
            pass
    return _("Connected to account %(id)s in %(region)s for %(since)s.") % facts
