"""The check of the books in the background: what is new every round, everything once a day."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db.models import Max

from apps.core import clock
from apps.costs.models import LedgerMark, Posting
from apps.costs.selectors import Books, books

log = structlog.get_logger(__name__)
WHOLE_EVERY = timedelta(days=1)
#: How soon everything is summed again while something is off.
DOUBT_EVERY = timedelta(minutes=10)
#: The mark moves once this many postings came after it.
STEP = 1000
#: Postings younger than this stay behind the mark: a transaction with a smaller id may still commit.
SETTLED_AFTER = timedelta(minutes=10)


def ledger_observe() -> None:
    """One round; a difference in what is new is only believed after everything was summed again."""
    mark, _made = LedgerMark.objects.get_or_create(pk=1)
    now = clock.now()
    found = books(mark.posting_id, mark.sums)
    age = None if mark.whole_at is None else now - mark.whole_at
    in_doubt = not found.is_balanced or mark.whole_off > 0
    if age is None or age >= WHOLE_EVERY or (in_doubt and age >= DOUBT_EVERY):
        whole = books(0, {})
        if whole.is_balanced and (not found.is_balanced or whole.postings != mark.postings + found.postings):
            mark.posting_id, mark.postings, mark.sums = 0, 0, {}
            found = whole
        mark.whole_at, mark.whole_postings, mark.whole_off = now, whole.postings, whole.accounts_off
        if not whole.is_balanced:
            log.error("ledger does not balance", accounts_off=whole.accounts_off, sum=str(whole.sum_of_balances))
    mark.checked_at, mark.checked_postings = now, mark.postings + found.postings
    mark.sum_of_balances, mark.accounts_off = found.sum_of_balances, found.accounts_off
    if found.is_balanced and found.postings >= STEP:
        _advance(mark)
    mark.save()


def _advance(mark: LedgerMark) -> None:
    upto = Posting.objects.filter(at__lt=clock.now() - SETTLED_AFTER).aggregate(m=Max("id"))["m"] or 0
    if upto > mark.posting_id:
        passed: Books = books(mark.posting_id, mark.sums, upto)
        mark.posting_id, mark.sums = upto, passed.sums
        mark.postings += passed.postings
