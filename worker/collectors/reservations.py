"""Reserved capacity of an account: one bulk read a tick, one more for training plans, written where it differs."""

from __future__ import annotations

import structlog

from apps.capacity.observations import reservations_observe, reservations_read
from apps.capacity.states import ReservationKind
from apps.connections.selectors import account_by_uid
from apps.connections.states import AccountPhase
from worker import doors
from worker.collectors import READ, WRITTEN
from worker.engine import DONE, Outcome, again
from worker.providers import values as v
from worker.providers.errors import ProviderError

log = structlog.get_logger(__name__)
KIND = "account.reservations"
PERIOD_S = 60.0
EC2_KINDS = (ReservationKind.ODCR, ReservationKind.CAPACITY_BLOCK, ReservationKind.ULTRASERVER_BLOCK)
PLAN_KINDS = (ReservationKind.TRAINING_PLAN,)


def read(uid: str) -> Outcome:
    """Read what the account has reserved. A paused account is not visited."""
    account = account_by_uid(uid)
    if account is None or account.phase != AccountPhase.CONNECTED:
        return DONE
    if account.is_paused or not account.is_trusted:
        return again(PERIOD_S)
    capacity = doors.capacity_for(account)
    looked, written = reservations_observe(account, capacity.reservations(), kinds=EC2_KINDS, uid_tag=v.TAG_UID)
    reservations_read(account, EC2_KINDS)
    try:
        plans = capacity.training_plans()
    except ProviderError as error:
        # An account may allow EC2 and not SageMaker.
        log.info("training plans not read", account=account.name, error=str(error))
    else:
        more, changed = reservations_observe(account, plans, kinds=PLAN_KINDS, uid_tag=v.TAG_UID)
        reservations_read(account, PLAN_KINDS)
        looked, written = looked + more, written + changed
    READ.labels("reservations").inc(looked)
    WRITTEN.labels("reservations").inc(written)
    return again(PERIOD_S)
