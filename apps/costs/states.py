"""Words of the ledger: units, kinds of accounts, kinds of postings."""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class Unit(TextChoices):
    """What an account counts."""

    USD = "USD", _("US dollars")
    GPU_HOURS = "GPU_H", _("GPU-hours")
    GPUS = "GPU", _("GPUs at once")


class AccountKind(TextChoices):
    """Where an amount is.

    ISSUER gives and takes limits (its balance is minus everything given); FREE is what a team may
    still hold; HELD is set aside for jobs; SPENT is gone.
    """

    ISSUER = "ISSUER", _("Issuer")
    FREE = "FREE", _("Free")
    HELD = "HELD", _("Held")
    SPENT = "SPENT", _("Spent")


class PostingKind(TextChoices):
    """Why an amount moved: GRANT ISSUER→FREE (or back), HOLD FREE→HELD, CHARGE HELD→SPENT (or FREE→SPENT beyond
    the hold), RELEASE HELD→FREE."""

    GRANT = "GRANT", _("Grant")
    HOLD = "HOLD", _("Hold")
    CHARGE = "CHARGE", _("Charge")
    RELEASE = "RELEASE", _("Release")
