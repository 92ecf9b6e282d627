"""Named reads of orphans: what carries our tag in the cloud and belongs to nothing here."""

from __future__ import annotations

from decimal import Decimal

from django.db.models import QuerySet, Sum
from django.utils.translation import gettext as _

from apps.capacity.orphan_models import Orphan
from apps.capacity.orphan_states import ORPHAN_LIVE, OrphanPhase
from apps.core import clock, units
from apps.core.errors import NotFound
from apps.teams.permissions import Actor


def orphans_visible_to(actor: Actor) -> QuerySet[Orphan]:
    """All for operators, none for others."""
    if not actor.everywhere("capacity.operate"):
        return Orphan.objects.none()
    return Orphan.objects.select_related("account")


def orphan_for(*, actor: Actor, may: str, uid: str) -> Orphan:
    """The orphan of this uid. Raises NotFound."""
    rows = orphans_visible_to(actor) if actor.everywhere(may) else Orphan.objects.none()
    found = rows.filter(uid=uid).first()
    if found is None:
        raise NotFound(_("no orphan %(uid)s in which you may do this") % {"uid": uid})
    return found


def orphans_usd_per_hour(actor: Actor) -> Decimal:
    """What the live ones cost an hour, as far as prices are known."""
    rows = orphans_visible_to(actor).filter(phase__in=ORPHAN_LIVE)
    return rows.aggregate(usd=Sum("usd_per_hour"))["usd"] or Decimal(0)


def orphan_sentence(orphan: Orphan) -> str:
    """What it is, since when, what it costs and what happens next."""
    facts = {
        "kind": orphan.get_kind_display(),
        "since": units.duration(clock.now() - orphan.first_seen_at),
        "usd": units.usd(orphan.usd_per_hour),
        "why": orphan.kept_reason,
        "who": orphan.kept_by or orphan.removal_asked_by,
    }
    match orphan.phase:
        case OrphanPhase.KEPT:
            return _("%(kind)s, kept by %(who)s: %(why)s") % facts
        case OrphanPhase.REMOVAL_ASKED:
            return _("%(kind)s, being removed by the word of %(who)s.") % facts
        case OrphanPhase.GONE:
            return _("%(kind)s; AWS no longer lists it, or it found its owner again.") % facts
        case _:
            pass
    if orphan.has_row:
        return (
            _("%(kind)s of something that was deleted here, seen for %(since)s; removed after the grace period.")
            % facts
        )
    return _("%(kind)s with our tag that this portal never made, seen for %(since)s; only a person removes it.") % facts
