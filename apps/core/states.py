"""State machines: a transition table, and a move that is one conditional UPDATE whose row count must be 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import models

from apps.core import clock
from apps.core.errors import TransitionConflict

Table = Mapping[str, frozenset[str]]


def may_move(table: Table, old: str, new: str) -> bool:
    """Whether the table allows old → new."""
    return new in table.get(old, frozenset())


def move(obj: models.Model, table: Table, new: str, *, field: str = "phase", **columns: Any) -> None:
    """Take ``obj`` to ``new`` if it still is where we think it is, writing ``columns`` in the same UPDATE.

    Sets ``phase_since`` where the model has it. On success the instance carries the new values.
    Raises TransitionConflict when the table forbids the move or another writer was first.
    """
    old = str(getattr(obj, field))
    model = type(obj)
    if not may_move(table, old, new):
        raise TransitionConflict(f"{model._meta.verbose_name} is {old} and cannot become {new}")
    names = {f.name for f in model._meta.get_fields()}
    if "phase_since" in names and field == "phase":
        columns.setdefault("phase_since", clock.now())
    changed = model._default_manager.filter(pk=obj.pk, **{field: old}).update(**{field: new}, **columns)
    if changed != 1:
        raise TransitionConflict(f"{model._meta.verbose_name} changed while we looked; it was {old}")
    setattr(obj, field, new)
    for name, value in columns.items():
        setattr(obj, name, value)
