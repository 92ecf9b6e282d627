"""Sentences of providers as the house stores them."""

from __future__ import annotations

from apps.core.said import Said, said
from worker.providers import values as v


def said_text(text: v.Text) -> Said:
    """A provider's sentence as one to store."""
    return said(text.template, **{k: said_text(f) if isinstance(f, v.Text) else f for k, f in text.facts.items()})
