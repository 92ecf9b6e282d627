"""Cursor pages over (created_at, id): stable while rows arrive; a cursor works only in the list that made it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar

from django.core import signing
from django.db.models import Model, Q, QuerySet
from django.utils.translation import gettext as _

from apps.core.errors import BadQuery

M = TypeVar("M", bound=Model)
MAX_LIMIT = 500
_SALT = "quarterdeck.cursor"


@dataclass(frozen=True)
class Window(Generic[M]):
    """One page of rows with the cursors of its neighbours (None where there is none)."""

    rows: list[M]
    next: str | None
    previous: str | None


def list_digest(*parts: Any) -> str:
    """What identifies a list: its name, filters and order."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _encode(digest: str, back: bool, values: list[Any]) -> str:
    plain = [v.isoformat() if isinstance(v, datetime) else str(v) if isinstance(v, Decimal) else v for v in values]
    return signing.dumps([digest, back, plain], salt=_SALT, compress=False)


def _decode(cursor: str, digest: str) -> tuple[bool, list[Any]]:
    try:
        found, back, values = signing.loads(cursor, salt=_SALT)
    except (signing.BadSignature, ValueError, TypeError):
        raise BadQuery(_("cursor: not a cursor of this portal; start again without it")) from None
    if found != digest:
        raise BadQuery(_("cursor: it belongs to another list or another filter; start again without it"))
    return bool(back), list(values)


def _beyond(order: list[str], values: list[Any], back: bool) -> Q:
    """Rows strictly after ``values`` in ``order`` (before, when ``back``)."""
    query = Q()
    fixed: dict[str, Any] = {}
    for name, value in zip(order, values, strict=True):
        descending = name.startswith("-")
        field = name.lstrip("-")
        lookup = "lt" if descending != back else "gt"
        query |= Q(**fixed, **{f"{field}__{lookup}": value})
        fixed[field] = value
    return query


def window(rows: QuerySet[M], *, order: list[str], limit: int, cursor: str | None, digest: str) -> Window[M]:
    """Cut one page out of ``rows``; ``order`` must end with a unique non-null column such as ``-id``.

    Raises BadQuery for a limit outside 1..500 and for a cursor that this list did not make.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise BadQuery(_("limit: must be from 1 to %(most)s, not %(limit)s") % {"most": MAX_LIMIT, "limit": limit})
    back = False
    query = rows
    if cursor:
        back, values = _decode(cursor, digest)
        if len(values) != len(order):
            raise BadQuery(_("cursor: it belongs to another list or another filter; start again without it"))
        query = query.filter(_beyond(order, values, back))
    effective = [n[1:] if n.startswith("-") else f"-{n}" for n in order] if back else order
    found = list(query.order_by(*effective)[: limit + 1])
    more = len(found) > limit
    found = found[:limit]
    if back:
        found.reverse()

    def mark(row: M, to_previous: bool) -> str:
        return _encode(digest, to_previous, [getattr(row, n.lstrip("-")) for n in order])

    if not found:
        return Window([], None, None)
    has_next = more if not back else True
    has_previous = bool(cursor) if not back else more
    return Window(
        found,
        mark(found[-1], False) if has_next else None,
        mark(found[0], True) if has_previous else None,
    )
