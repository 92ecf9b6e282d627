"""Identifiers: prefixed ULIDs outside, sortable by time; deterministic UUIDs for idempotency tokens."""

from __future__ import annotations

import uuid

from ulid import ULID

_NAMESPACE = uuid.UUID("6f0d4b0e-2a1c-5c55-9a53-0a8b7f0f7c11")


def new_uid(prefix: str) -> str:
    """A fresh identifier such as ``job_01J9ZK…`` (prefix, underscore, 26 characters)."""
    return f"{prefix}_{ULID()}".lower()


def idempotency_token(uid: str, attempt: int, purpose: str = "") -> str:
    """The client token of one attempt at one thing: the same inputs give the same 36 characters."""
    return str(uuid.uuid5(_NAMESPACE, f"{uid}/{attempt}/{purpose}"))
