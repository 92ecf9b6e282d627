"""Claim, visit, settle: the one loop through which everything the portal does outside happens.

A visit is: observe, compare, do ONE idempotent step, say when to look again. A reconciler returns
an ``Outcome``; anything it raises leaves the intent in place with a back-off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from prometheus_client import Counter, Histogram

from apps.core.errors import Refusal
from apps.core.middleware import request_id_var
from apps.intents import services as intents
from worker.providers.errors import ProviderError

log = structlog.get_logger(__name__)

VISITS = Counter("qd_visits_total", "Visits of intents by how they ended.", ["kind", "outcome"])
VISIT_SECONDS = Histogram("qd_visit_duration_seconds", "Time of one visit.", ["kind"])
QUIET = frozenset(
    {
        "cluster.queue",
        "cluster.nodes",
        "cluster.outside",
        "limits.reconcile",
        "cluster.exporters",
        "cluster.starts",
        "cluster.happenings",
        "cluster.pod_logs",
        "cluster.sweep",
        "cluster.reconcile",
        "account.check",
        "account.sweep",
        "account.reservations",
    }
)


@dataclass(frozen=True)
class Outcome:
    """How a visit ended: ``again_in_s`` None means nothing more to do until someone asks."""

    again_in_s: float | None = None


DONE = Outcome()


def again(seconds: float) -> Outcome:
    """Look again after so many seconds."""
    return Outcome(seconds)


Reconciler = Callable[[str], Outcome]


def visit(claim: intents.Claim, reconcilers: Mapping[str, Reconciler]) -> str:
    """Make one visit and settle it; the outcome's name.

    Catches Exception, not BaseException: a killed worker settles nothing, its lease runs out and
    the intent is visited again.
    """
    token = request_id_var.set(claim.request_id)
    structlog.contextvars.bind_contextvars(request_id=claim.request_id, intent=claim.kind, key=claim.key)
    began = time.monotonic()
    outcome = "killed"
    try:
        reconciler = reconcilers.get(claim.kind)
        if reconciler is None:
            intents.intent_fail(claim, f"no reconciler for {claim.kind}")
            outcome = "unknown"
        else:
            outcome = _run(claim, reconciler)
    finally:
        took = time.monotonic() - began
        VISIT_SECONDS.labels(claim.kind).observe(took)
        # Collectors come round all day; what someone asked for is worth a line.
        say = log.debug if claim.kind in QUIET else log.info
        say("visit", outcome=outcome, took_ms=round(took * 1000))
        structlog.contextvars.unbind_contextvars("request_id", "intent", "key")
        request_id_var.reset(token)
    VISITS.labels(claim.kind, outcome).inc()
    return outcome


def _run(claim: intents.Claim, reconciler: Reconciler) -> str:
    try:
        result = reconciler(claim.key)
    except SoftTimeLimitExceeded:
        log.warning("visit too long")
        intents.intent_fail(claim, "the visit took longer than its limit")
        return "timeout"
    except ProviderError as error:
        log.info("visit failed", error=str(error), retryable=error.retryable)
        intents.intent_fail(claim, str(error))
        return "provider-error"
    except Refusal as refusal:
        # Someone else moved the object meanwhile: look again at once, with fresh eyes.
        log.info("visit refused", code=refusal.code, detail=refusal.detail)
        intents.intent_fail(claim, refusal.detail, again_in_s=min(30.0, 0.5 * claim.attempts))
        return "refused"
    except Exception as error:
        log.exception("visit broke")
        intents.intent_fail(claim, f"{type(error).__name__}: {error}")
        return "error"
    intents.intent_settle(claim, again_in_s=result.again_in_s)
    return "again" if result.again_in_s is not None else "done"


def drain(reconcilers: Mapping[str, Reconciler], *, budget_s: float = 25.0, most: int = 200) -> int:
    """Visit due intents one after the other until none is due or the time is used; how many were visited."""
    deadline = time.monotonic() + budget_s
    visited = 0
    while visited < most and time.monotonic() < deadline:
        claims = intents.intents_claim(limit=1, kinds=list(reconcilers))
        if not claims:
            break
        visit(claims[0], reconcilers)
        visited += 1
    return visited
