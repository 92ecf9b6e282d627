"""Named reads of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db import connection
from django.db.models import Max, Q, QuerySet, Sum
from django.db.models.functions import TruncDate

from apps.core import clock
from apps.core.fields import MICROS
from apps.costs.models import Account, Budget, LedgerMark, Posting
from apps.costs.states import AccountKind, PostingKind, Unit
from apps.teams.models import Team
from apps.teams.permissions import Actor

ZERO = Decimal(0)


def month_of(instant: datetime | None = None) -> str:
    """The period an instant falls in, e.g. ``2026-11``."""
    return (instant or clock.now()).strftime("%Y-%m")


@dataclass(frozen=True)
class Standing:
    """One team in one unit: limit = free + held + spent (spent is zero for concurrent GPUs)."""

    team: Team
    unit: str
    free: Decimal
    held: Decimal
    spent: Decimal

    @property
    def limit(self) -> Decimal:
        """What was granted for the period."""
        return self.free + self.held + self.spent

    @property
    def used_percent(self) -> int:
        """Held and spent of the limit, 0–100."""
        if self.limit <= 0:
            return 100 if self.held + self.spent > 0 else 0
        return int(min(Decimal(100), (self.held + self.spent) * 100 / self.limit))


def standing_of(team: Team, unit: str, period: str | None = None) -> Standing:
    """A team's balances now, in money for this month unless ``period`` says otherwise."""
    when = "" if unit == Unit.GPUS else (period or month_of())
    found = dict(Account.objects.filter(team=team, unit=unit, period=when).values_list("kind", "balance"))
    return Standing(
        team,
        unit,
        found.get(AccountKind.FREE, ZERO),
        found.get(AccountKind.HELD, ZERO),
        found.get(AccountKind.SPENT, ZERO),
    )


def free_of(team: Team) -> Decimal:
    """What a team has free of this month's money, counting a budget that nobody has opened the month with yet."""
    now = standing_of(team, Unit.USD)
    if now.limit != 0 or (budget := budget_of(team)) is None:
        return now.free
    opened = Posting.objects.filter(key=month_key(team)).exists()
    return now.free if opened else now.free + budget.usd_per_month


def month_key(team: Team) -> str:
    """The key of the posting that grants this month's budget."""
    return f"grant:{team.uid}:{month_of()}:open"


def still_held(subject_uids: Iterable[str], unit: str) -> Decimal:
    """What these subjects have set aside now, in whatever month it was held; a query of uids goes in as it is."""
    rows = Posting.objects.filter(subject_uid__in=subject_uids, unit=unit)
    sums = rows.aggregate(
        came=Sum("amount", filter=Q(target__kind=AccountKind.HELD), default=ZERO),
        went=Sum("amount", filter=Q(source__kind=AccountKind.HELD), default=ZERO),
    )
    return max(ZERO, Decimal(sums["came"]) - Decimal(sums["went"]))


def standings_of(teams: Iterable[Team], unit: str) -> list[Standing]:
    """``standing_of`` for many teams in one query."""
    listed = list(teams)
    when = "" if unit == Unit.GPUS else month_of()
    balances: dict[tuple[int, str], Decimal] = {
        (team_id, kind): balance
        for team_id, kind, balance in Account.objects.filter(team__in=listed, unit=unit, period=when).values_list(
            "team_id", "kind", "balance"
        )
    }
    return [
        Standing(
            t,
            unit,
            balances.get((t.pk, AccountKind.FREE), ZERO),
            balances.get((t.pk, AccountKind.HELD), ZERO),
            balances.get((t.pk, AccountKind.SPENT), ZERO),
        )
        for t in listed
    ]


def postings_of(subject_uid: str, unit: str | None = None) -> QuerySet[Posting]:
    """All postings of one job, oldest first; the caller has checked the right to the job."""
    rows = Posting.objects.filter(subject_uid=subject_uid).select_related("source", "target").order_by("id")
    return rows.filter(unit=unit) if unit else rows


def postings_visible_to(actor: Actor) -> QuerySet[Posting]:
    """Postings of teams whose costs the actor may see, newest first."""
    rows = Posting.objects.select_related("source__team", "target__team").order_by("-id")
    if actor.everywhere("costs.view"):
        return rows
    return rows.filter(source__team__in=actor.team_ids("costs.view"))


@dataclass(frozen=True)
class Sums:
    """What one job moved in one unit."""

    held: Decimal
    charged: Decimal
    released: Decimal

    @property
    def open_hold(self) -> Decimal:
        """What is still set aside."""
        return self.held - self.released - self.charged


def sums_of(subject_uids: Iterable[str], unit: str = Unit.USD) -> dict[str, Sums]:
    """Held, charged and released by subject, in one query; subjects without postings are absent."""
    rows = (
        Posting.objects.filter(subject_uid__in=list(subject_uids), unit=unit)
        .values("subject_uid")
        .annotate(
            held=Sum("amount", filter=Q(kind=PostingKind.HOLD), default=ZERO),
            charged=Sum("amount", filter=Q(kind=PostingKind.CHARGE), default=ZERO),
            released=Sum("amount", filter=Q(kind=PostingKind.RELEASE), default=ZERO),
        )
    )
    return {r["subject_uid"]: Sums(r["held"], r["charged"], r["released"]) for r in rows}


def charged_by_day(team_ids: Iterable[int] | None, since: datetime) -> list[tuple[str, Decimal]]:
    """USD charged per UTC day since an instant, for some teams or (None) all; days without charges are absent."""
    rows = Posting.objects.filter(kind=PostingKind.CHARGE, unit=Unit.USD, at__gte=since)
    if team_ids is not None:
        rows = rows.filter(target__team__in=list(team_ids))
    by_day = rows.annotate(day=TruncDate("at")).values("day").annotate(usd=Sum("amount")).order_by("day")
    return [(r["day"].isoformat(), r["usd"]) for r in by_day]


def budget_of(team: Team) -> Budget | None:
    """The team's monthly budget, or None when nobody set one."""
    return Budget.objects.filter(team=team).first()


@dataclass(frozen=True)
class Books:
    """Accounts against their postings. ``sums`` are the postings' sums in millionths by account pk as text."""

    postings: int
    sum_of_balances: Decimal
    accounts_off: int
    sums: dict[str, int]

    @property
    def is_balanced(self) -> bool:
        """Every balance equals its postings and all of them sum to zero."""
        return self.sum_of_balances == 0 and self.accounts_off == 0


#: One statement, so that balances and postings are of one instant whatever is being posted meanwhile.
_BOOKS = """
    SELECT account.id, account.balance, COALESCE(SUM(leg.amount), 0), COALESCE(SUM(leg.one), 0)
    FROM costs_account account LEFT JOIN (
        SELECT target_id AS account_id, amount, 1 AS one FROM costs_posting WHERE id > %s AND id <= %s
        UNION ALL
        SELECT source_id AS account_id, -amount, 0 AS one FROM costs_posting WHERE id > %s AND id <= %s
    ) leg ON leg.account_id = account.id
    GROUP BY account.id, account.balance
"""
_NO_END = 2**62


def books(after: int, known: Mapping[str, int], upto: int = _NO_END) -> Books:
    """Sum the postings with an id in (after, upto] onto the known sums and compare with the balances.

    ``postings`` counts those that were summed now. With ``upto`` the comparison means nothing, the sums do.
    """
    with connection.cursor() as cursor:
        cursor.execute(_BOOKS, [after, upto, after, upto])
        rows = cursor.fetchall()
    sums = {str(pk): known.get(str(pk), 0) + int(moved) for pk, _balance, moved, _legs in rows}
    return Books(
        sum(int(legs) for _pk, _balance, _moved, legs in rows),
        Decimal(sum(int(balance) for _pk, balance, _moved, _legs in rows)) / MICROS,
        sum(1 for pk, balance, _moved, _legs in rows if int(balance) != sums[str(pk)]),
        sums,
    )


def ledger_check() -> Books:
    """Recompute every balance from all postings."""
    return books(0, {})


def ledger_standing() -> LedgerMark:
    """What the checks in the background last found; ``checked_at`` is None before the first."""
    return LedgerMark.objects.filter(pk=1).first() or LedgerMark()


def charged_by_team_and_day(team_ids: Iterable[int] | None, since: datetime) -> dict[tuple[int, str], Decimal]:
    """USD charged by (team pk, UTC day) since an instant, for some teams or (None) all."""
    rows = Posting.objects.filter(kind=PostingKind.CHARGE, unit=Unit.USD, at__gte=since)
    if team_ids is not None:
        rows = rows.filter(target__team__in=list(team_ids))
    by_day = rows.annotate(day=TruncDate("at")).values("target__team", "day").annotate(usd=Sum("amount"))
    return {(r["target__team"], r["day"].isoformat()): r["usd"] for r in by_day}


@dataclass(frozen=True)
class JobCost:
    """What one job moved in a period, in USD and GPU-hours; ``name`` comes from the postings' own memo."""

    uid: str
    name: str
    usd: Sums
    gpu_hours: Decimal
    last_at: datetime


def name_in_memo(memo: str) -> str:
    """The job's name in a memo such as ``pretrain, attempt 2``: this floor may not ask the jobs themselves."""
    return memo.rpartition(", attempt ")[0]


def costs_by_job(team: Team, since: datetime, most: int = 200) -> list[JobCost]:
    """Jobs of a team with postings since an instant, dearest first; two queries."""
    rows = Posting.objects.filter(target__team=team, at__gte=since).exclude(subject_uid="")
    found = list(
        rows.values("subject_uid")
        .annotate(
            held=Sum("amount", filter=Q(kind=PostingKind.HOLD, unit=Unit.USD), default=ZERO),
            charged=Sum("amount", filter=Q(kind=PostingKind.CHARGE, unit=Unit.USD), default=ZERO),
            released=Sum("amount", filter=Q(kind=PostingKind.RELEASE, unit=Unit.USD), default=ZERO),
            hours=Sum("amount", filter=Q(kind=PostingKind.CHARGE, unit=Unit.GPU_HOURS), default=ZERO),
            last_at=Max("at"),
        )
        .order_by("-charged", "-held", "-last_at")[:most]
    )
    uids = [r["subject_uid"] for r in found]
    holds = Posting.objects.filter(subject_uid__in=uids, unit=Unit.USD, kind=PostingKind.HOLD)
    memos = dict(holds.order_by("-id").values_list("subject_uid", "memo"))
    return [
        JobCost(
            r["subject_uid"],
            name_in_memo(memos.get(r["subject_uid"], "")) or r["subject_uid"],
            Sums(r["held"], r["charged"], r["released"]),
            r["hours"],
            r["last_at"],
        )
        for r in found
    ]
