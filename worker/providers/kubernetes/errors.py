"""Refusals of an API server as the errors of all providers: the only place that reads Kubernetes' own reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from worker.providers import errors as e

SOURCE = "kubernetes"
#: Nothing can have reached the server: the connection was never there.
UNSENT = "connect"
#: An object of this name is there already.
EXISTS = "AlreadyExists"
#: The object changed since it was read.
STALE = "Conflict"


class HistoryGone(e.Conflict):
    """The server has forgotten the revision that was asked for: list again."""


class SlowDown(e.Throttled):
    """The server asks us to wait; ``retry_after_s`` is for how long, 0 where it does not say."""

    def __init__(self, message: str, *, code: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, source=SOURCE, code=code)
        self.retry_after_s = retry_after_s


def refusal(status: int, body: bytes, headers: Mapping[str, str], doing: str) -> e.ProviderError:
    """An answer that is no success, as an error; ``doing`` is the verb and the resource ("create jobs.batch a/b")."""
    told = _status(body)
    if told is None:
        return _bare(status, body, headers, doing)
    reason = str(told.get("reason") or "")
    message = str(told.get("message") or f"HTTP {status}")
    details = told.get("details") if isinstance(told.get("details"), dict) else {}
    causes = [row for row in (details or {}).get("causes") or () if isinstance(row, dict)]
    about = f"{doing}: {message}"
    if status == 401 or reason == "Unauthorized":
        return _made(e.AccessDenied, f"{doing}: the API server does not know who we are ({message})", "Unauthorized")
    if status == 403 or reason == "Forbidden":
        return _forbidden(about, message, causes)
    if reason == EXISTS:
        return _made(e.Conflict, about, EXISTS)
    if status == 410 or reason in ("Gone", "Expired"):
        return HistoryGone(about, source=SOURCE, code=reason or "Gone")
    if status == 409:
        return _made(e.Conflict, about, reason or STALE)
    if status == 404:
        return _made(e.NotFound, about, reason or "NotFound")
    if status == 429:
        if any(row.get("reason") == "DisruptionBudget" for row in causes):
            return _made(e.Conflict, about, "DisruptionBudget")
        return SlowDown(about, code=reason, retry_after_s=_seconds(headers, details or {}))
    if status == 405:
        return _made(e.Unsupported, about, reason)
    if status in (400, 406, 413, 415, 422):
        return _made(e.InvalidRequest, _with_fields(doing, message, causes), reason)
    if status >= 500:
        return _made(e.Unavailable, about, reason or str(status))
    return _made(e.Unknown, about, reason or str(status))


def of_watch(told: Mapping[str, Any], doing: str) -> e.ProviderError:
    """The Status that ends a watch, as an error."""
    code = told.get("code")
    status = code if isinstance(code, int) else 500
    return refusal(status, json.dumps({**told, "kind": "Status"}).encode(), {}, doing)


def unsent(doing: str, error: Exception) -> e.Unavailable:
    """The connection could not be made."""
    return e.Unavailable(f"{doing}: {_plain(error)}", source=SOURCE, code=UNSENT)


def cut(doing: str, error: Exception) -> e.Unavailable:
    """The connection ended before the answer: whether the call took effect is unknown."""
    return e.Unavailable(f"{doing}: {_plain(error)}", source=SOURCE, code="cut")


def _plain(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _made(kind: type[e.ProviderError], message: str, code: str) -> e.ProviderError:
    return kind(message, source=SOURCE, code=code)


def _status(body: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(body)
    except ValueError:
        return None
    return told if isinstance(told, dict) and told.get("kind") == "Status" else None


def _forbidden(about: str, message: str, causes: list[dict[str, Any]]) -> e.ProviderError:
    if "exceeded quota" in message:
        return _made(e.QuotaExceeded, about, "ExceededQuota")
    if any(row.get("reason") == "NamespaceTerminating" for row in causes) or "is being terminated" in message:
        return _made(e.Conflict, about, "NamespaceTerminating")
    # What may be done at all is a matter of rights; what this very object may hold is the object's fault.
    if "cannot " in message and "User " in message:
        return _made(e.AccessDenied, about, "Forbidden")
    return _made(e.InvalidRequest, _with_fields(about, "", causes), "Forbidden")


def _with_fields(doing: str, message: str, causes: list[dict[str, Any]]) -> str:
    named = [f"{row['field']}: {row.get('message') or ''}" for row in causes if row.get("field")]
    missing = [text for text in named if text.split(":", 1)[0] not in message]
    return ": ".join(part for part in (doing, message) if part) + (f" ({'; '.join(missing)})" if missing else "")


def _seconds(headers: Mapping[str, str], details: Mapping[str, Any]) -> float:
    for value in (headers.get("Retry-After"), details.get("retryAfterSeconds")):
        try:
            return max(0.0, float(value)) if value is not None else 0.0
        except (TypeError, ValueError):
            continue
    return 0.0


def _bare(status: int, body: bytes, headers: Mapping[str, str], doing: str) -> e.ProviderError:
    """No Status: something between us and the server answered."""
    text = body[:200].decode("utf-8", "replace").strip()
    about = f"{doing}: HTTP {status}" + (f" ({text})" if text else "")
    if status == 401:
        return _made(e.AccessDenied, about, "401")
    if status == 403:
        return _made(e.AccessDenied, about, "403")
    if status == 404:
        return _made(e.NotFound, about, "404")
    if status == 429:
        return SlowDown(about, code="429", retry_after_s=_seconds(headers, {}))
    return _made(e.Unavailable, about, str(status))
