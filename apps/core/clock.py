"""The one clock: aware UTC now, replaceable in tests by time-machine."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """This instant, aware, in UTC."""
    return datetime.now(tz=UTC)


def iso(instant: datetime | None) -> str | None:
    """RFC 3339 with a Z, or None."""
    if instant is None:
        return None
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
