"""A Decimal column that every database keeps exactly: millionths in a BIGINT."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any

from django.db import models

MICROS = 1_000_000


if TYPE_CHECKING:
    _Base = models.DecimalField[Decimal, Decimal]  # what it is to its users
else:
    _Base = models.BigIntegerField


class MicroField(_Base):
    """Decimal with six places, stored as a whole number of millionths.

    SQLite keeps Django's own DecimalField as a binary float, in which a thousand postings of a cent
    no longer sum to ten dollars; integers add up in every database, in triggers too. Range ±9.2e12.
    """

    description = "Decimal in millionths"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Decimal | None:
        """Millionths to Decimal; sums come as int or Decimal."""
        return None if value is None else Decimal(value) / MICROS

    def to_python(self, value: Any) -> Any:
        """Anything a Decimal can be made of."""
        return None if value is None else Decimal(value)

    def get_prep_value(self, value: Any) -> Any:
        """Decimal to millionths."""
        if value is None or hasattr(value, "resolve_expression"):
            return value
        return int((Decimal(value) * MICROS).to_integral_value(rounding=ROUND_HALF_UP))
