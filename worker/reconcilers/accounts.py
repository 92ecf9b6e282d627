"""Cloud accounts: read who we are, and start the sweep for orphans; take an account out again."""

from __future__ import annotations

from apps.connections.selectors import account_by_uid
from apps.connections.services import account_observe, account_removed
from apps.connections.states import AccountPhase
from apps.intents.services import intent_ask
from worker import doors
from worker.collectors.reservations import KIND as RESERVATIONS
from worker.engine import DONE, Outcome, again
from worker.providers.errors import ProviderError

RECHECK_S = 300.0
RETRY_S = 30.0


def check(uid: str) -> Outcome:
    """One identity call; connected accounts are checked again every five minutes, failed ones every 30 s.

    A paused account is not asked; resuming it asks at once.
    """
    account = account_by_uid(uid)
    if account is None or account.phase == AccountPhase.REMOVED:
        return DONE
    if account.delete_requested_at is not None:
        account_removed(account)
        return DONE
    if account.is_paused:
        return again(RECHECK_S)
    try:
        who = doors.compute_for(account).identity()
    except ProviderError as error:
        account_observe(account, error=str(error))
        return again(RETRY_S)
    account_observe(account, account_id=who.account_id, arn=who.arn)
    intent_ask("account.sweep", account.uid, delay_s=60)
    intent_ask(RESERVATIONS, account.uid)
    return again(RECHECK_S)
