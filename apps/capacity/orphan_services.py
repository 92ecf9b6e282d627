"""What people decide about orphans."""

from __future__ import annotations

from django.db import transaction
from django.utils.translation import gettext as _

from apps.audit.services import record
from apps.capacity.orphan_models import Orphan
from apps.capacity.orphan_states import CLUSTERS, GROUPS, ORPHAN_TRANSITIONS, OrphanKind, OrphanPhase
from apps.core import clock
from apps.core.errors import FieldProblem, Forbidden, InvalidInput
from apps.core.states import move
from apps.intents.services import intent_ask
from apps.teams.permissions import Actor

SWEEP_INTENT = "account.sweep"


def _operate(actor: Actor) -> None:
    if not actor.everywhere("capacity.operate"):
        raise Forbidden(_("only operators and administrators do this"))


def orphan_remove(*, actor: Actor, orphan: Orphan) -> None:
    """Ask for its removal; the next sweep does it. Raises Forbidden, TransitionConflict."""
    _operate(actor)
    if orphan.kind == OrphanKind.FILE_SYSTEM and not actor.everywhere("storage.operate"):
        raise Forbidden(_("only who may delete file systems removes one with its data"))
    if orphan.kind in CLUSTERS | GROUPS and not actor.everywhere("clusters.operate"):
        raise Forbidden(_("only who may delete clusters removes one with its machines"))
    with transaction.atomic():
        move(
            orphan,
            ORPHAN_TRANSITIONS,
            OrphanPhase.REMOVAL_ASKED,
            removal_asked_at=clock.now(),
            removal_asked_by=actor.name[:150],
        )
        _record(actor, "orphan.remove", orphan)
        intent_ask(SWEEP_INTENT, orphan.account.uid)


def orphan_keep(*, actor: Actor, orphan: Orphan, reason: str) -> None:
    """Leave it alone, with a reason that others read. Raises Forbidden, InvalidInput, TransitionConflict."""
    _operate(actor)
    if not reason.strip():
        raise InvalidInput(_("say why"), problems=[FieldProblem("/reason", "required", _("say why"))])
    with transaction.atomic():
        move(
            orphan,
            ORPHAN_TRANSITIONS,
            OrphanPhase.KEPT,
            kept_reason=reason.strip()[:300],
            kept_by=actor.name[:150],
        )
        _record(actor, "orphan.keep", orphan, reason=reason.strip()[:300])


def orphan_release(*, actor: Actor, orphan: Orphan) -> None:
    """Take the word back that kept it. Raises Forbidden, TransitionConflict."""
    _operate(actor)
    with transaction.atomic():
        move(orphan, ORPHAN_TRANSITIONS, OrphanPhase.FOUND, kept_reason="", kept_by="")
        _record(actor, "orphan.release", orphan)


def _record(actor: Actor, verb: str, orphan: Orphan, **more: str) -> None:
    after = {"kind": orphan.kind, "provider_id": orphan.provider_id, "tagged_uid": orphan.tagged_uid, **more}
    record(actor, verb, "account", orphan.account.uid, after=after)
