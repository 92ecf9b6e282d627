"""States of a checkpoint.

IN_PROGRESS ──▶ COMPLETE ──▶ TORN (a file was lost) ──▶ COMPLETE
     ├──▶ TORN ──▶ COMPLETE (a late writer finished)
     └──▶ UNKNOWN            any ──▶ GONE ──▶ IN_PROGRESS (written again)
"""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class CheckpointState(TextChoices):
    """Whether it can be resumed from."""

    IN_PROGRESS = "IN_PROGRESS", _("In progress")
    COMPLETE = "COMPLETE", _("Complete")
    TORN = "TORN", _("Torn")
    UNKNOWN = "UNKNOWN", _("Unknown")
    GONE = "GONE", _("Gone")


class Layout(TextChoices):
    """How the folder is laid out; decides when it is complete."""

    DCP = "dcp", "PyTorch DCP"
    HF_TRAINER = "hf_trainer", "HF Trainer"
    UNKNOWN = "unknown", _("Unknown")


S = CheckpointState
_ANY = frozenset(S)
TRANSITIONS: dict[str, frozenset[str]] = {
    S.IN_PROGRESS: _ANY - {S.IN_PROGRESS},
    S.COMPLETE: frozenset({S.TORN, S.IN_PROGRESS, S.GONE}),
    S.TORN: frozenset({S.COMPLETE, S.IN_PROGRESS, S.GONE}),
    S.UNKNOWN: frozenset({S.COMPLETE, S.TORN, S.IN_PROGRESS, S.GONE}),
    S.GONE: frozenset({S.IN_PROGRESS, S.COMPLETE, S.TORN}),
}
COLOURS: dict[str, str] = {
    S.IN_PROGRESS: "busy",
    S.COMPLETE: "good",
    S.TORN: "bad",
    S.UNKNOWN: "warn",
    S.GONE: "off",
}
