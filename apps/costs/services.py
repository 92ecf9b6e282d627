"""Verbs of the ledger; each runs in the caller's transaction and either posts whole or refuses whole."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from apps.audit.services import record
from apps.core import units
from apps.core.errors import Forbidden, Refusal, field_refusal
from apps.core.said import said
from apps.costs.models import Account, Budget, Posting
from apps.costs.permissions import can_manage_budgets
from apps.costs.selectors import budget_of, month_key, month_of, standing_of
from apps.costs.states import AccountKind, PostingKind, Unit
from apps.teams.models import Team
from apps.teams.permissions import Actor

MICRO = Decimal("0.000001")


class BudgetExhausted(Refusal):
    """The team's budget for this month has not enough left for the hold."""


def exact(amount: Decimal) -> Decimal:
    """An amount at the ledger's precision of a millionth."""
    return Decimal(amount).quantize(MICRO, rounding=ROUND_HALF_UP)


def _account(team: Team, kind: str, unit: str, period: str) -> Account:
    account, _made = Account.objects.get_or_create(team=team, kind=kind, unit=unit, period=period)
    return account


def _lock(team: Team) -> None:
    """Order all ledger writers of a team, so that no two of them can wait for each other's rows.

    A no-op on SQLite, whose writers are ordered from BEGIN IMMEDIATE on.
    """
    Team.objects.select_for_update(no_key=True).only("pk").get(pk=team.pk)


def _room(team: Team, unit: str, period: str) -> Account:
    """Where holds come from and releases go to: FREE, or ISSUER for GPU-hours, which have no limit of their own."""
    return _account(team, AccountKind.ISSUER if unit == Unit.GPU_HOURS else AccountKind.FREE, unit, period)


def _period(unit: str) -> str:
    return "" if unit == Unit.GPUS else month_of()


def _post(
    key: str,
    kind: str,
    unit: str,
    source: Account,
    target: Account,
    amount: Decimal,
    subject: str,
    detail: str,
    memo: str,
) -> bool:
    """Insert once; False when this key was posted before. The triggers move the balances."""
    if Posting.objects.filter(key=key).exists():
        return False
    Posting.objects.create(
        key=key,
        kind=kind,
        unit=unit,
        source=source,
        target=target,
        amount=amount,
        subject_uid=subject,
        detail_uid=detail,
        memo=memo[:200],
    )
    return True


def grant_to(team: Team, unit: str, limit: Decimal, *, key: str, memo: str) -> None:
    """Make free + held + spent of the period equal ``limit``; lowering below what is used leaves FREE negative."""
    _lock(team)
    period = _period(unit)
    free = _account(team, AccountKind.FREE, unit, period)
    issuer = _account(team, AccountKind.ISSUER, unit, period)
    difference = exact(limit) - standing_of(team, unit).limit
    if difference > 0:
        _post(key, PostingKind.GRANT, unit, issuer, free, difference, "", "", memo)
    elif difference < 0:
        _post(key, PostingKind.GRANT, unit, free, issuer, -difference, "", "", memo)


def month_open(team: Team) -> None:
    """Grant this month's budget if the month has none yet; called before every hold, so a new month needs no clock."""
    budget = budget_of(team)
    if budget is None:
        return
    _lock(team)
    key = month_key(team)
    if not Posting.objects.filter(key=key).exists() and standing_of(team, Unit.USD).limit == 0:
        grant_to(team, Unit.USD, budget.usd_per_month, key=key, memo="monthly budget")


def hold(team: Team, unit: str, amount: Decimal, *, key: str, subject: str, detail: str = "", memo: str = "") -> bool:
    """Set an amount aside if the team has it free.

    One conditional UPDATE decides under any concurrency: it only matches while enough is left.
    False when there is not enough (nothing was changed).
    """
    amount = exact(amount)
    if amount <= 0:
        return True
    _lock(team)
    if Posting.objects.filter(key=key).exists():
        return True
    period = _period(unit)
    free = _account(team, AccountKind.FREE, unit, period)
    target = _account(team, AccountKind.HELD, unit, period)
    enough = Account.objects.filter(pk=free.pk, balance__gte=amount).update(balance=F("balance"))
    if enough != 1:
        return False
    _post(key, PostingKind.HOLD, unit, free, target, amount, subject, detail, memo)
    return True


def open_hold(subject: str, detail: str, unit: str) -> Decimal:
    """What one attempt still has set aside."""
    total = Decimal(0)
    for kind, amount, source in Posting.objects.filter(subject_uid=subject, detail_uid=detail, unit=unit).values_list(
        "kind", "amount", "source__kind"
    ):
        if kind == PostingKind.HOLD:
            total += amount
        elif source == AccountKind.HELD:
            total -= amount
    return total


def _hold_accounts(subject: str, detail: str, unit: str, team: Team) -> tuple[Account, str]:
    """The HELD account of the hold's own period: a job that crosses a month settles where it was held."""
    first = (
        Posting.objects.filter(subject_uid=subject, detail_uid=detail, unit=unit, kind=PostingKind.HOLD)
        .select_related("target")
        .order_by("id")
        .first()
    )
    if first is not None:
        return first.target, first.target.period
    return _account(team, AccountKind.HELD, unit, _period(unit)), _period(unit)


def charge(team: Team, unit: str, amount: Decimal, *, key: str, subject: str, detail: str, memo: str = "") -> None:
    """Turn held into spent; what exceeds the hold is taken from FREE, which may go below zero: it was truly spent."""
    amount = exact(amount)
    if amount <= 0:
        return
    _lock(team)
    held, period = _hold_accounts(subject, detail, unit, team)
    spent = _account(team, AccountKind.SPENT, unit, period)
    left = open_hold(subject, detail, unit)
    from_hold = min(amount, max(left, Decimal(0)))
    if from_hold > 0:
        _post(key, PostingKind.CHARGE, unit, held, spent, from_hold, subject, detail, memo)
    if amount > from_hold:
        room = _room(team, unit, period)
        _post(
            f"{key}:over",
            PostingKind.CHARGE,
            unit,
            room,
            spent,
            amount - from_hold,
            subject,
            detail,
            f"{memo} (beyond the hold)",
        )


def release(team: Team, unit: str, *, key: str, subject: str, detail: str = "", memo: str = "") -> Decimal:
    """Give back what an attempt still holds; the amount (0 when nothing is held or it was released before)."""
    _lock(team)
    held, period = _hold_accounts(subject, detail, unit, team)
    left = open_hold(subject, detail, unit)
    if left <= 0:
        return Decimal(0)
    room = _room(team, unit, period)
    return left if _post(key, PostingKind.RELEASE, unit, held, room, left, subject, detail, memo) else Decimal(0)


def release_part(
    team: Team, unit: str, amount: Decimal, *, key: str, subject: str, detail: str, memo: str = ""
) -> Decimal:
    """Give back some of what an attempt holds, never more than it still does; the amount."""
    _lock(team)
    held, period = _hold_accounts(subject, detail, unit, team)
    part = min(exact(amount), open_hold(subject, detail, unit))
    if part <= 0:
        return Decimal(0)
    room = _room(team, unit, period)
    return part if _post(key, PostingKind.RELEASE, unit, held, room, part, subject, detail, memo) else Decimal(0)


def hold_more(team: Team, usd: Decimal, hours: Decimal, *, key: str, subject: str, detail: str, memo: str) -> None:
    """Hold more for an attempt that holds already, in the month of its first hold, where it settles.

    Raises BudgetExhausted.
    """
    _lock(team)
    held, period = _hold_accounts(subject, detail, Unit.USD, team)
    free = _account(team, AccountKind.FREE, Unit.USD, period)
    usd = exact(usd)
    if usd > 0 and not Posting.objects.filter(key=f"{key}:{Unit.USD}").exists():
        if Account.objects.filter(pk=free.pk, balance__gte=usd).update(balance=F("balance")) != 1:
            left = Account.objects.get(pk=free.pk).balance
            text = gettext_noop(
                "team %(team)s has %(left)s left of this month's budget and this needs %(usd)s more held"
            )
            raise BudgetExhausted(said(text, team=team.slug, left=units.usd(left), usd=units.usd(usd)))
        _post(f"{key}:{Unit.USD}", PostingKind.HOLD, Unit.USD, free, held, usd, subject, detail, memo)
    if exact(hours) > 0:
        target, period = _hold_accounts(subject, detail, Unit.GPU_HOURS, team)
        issuer = _room(team, Unit.GPU_HOURS, period)
        name = f"{key}:{Unit.GPU_HOURS}"
        _post(name, PostingKind.HOLD, Unit.GPU_HOURS, issuer, target, exact(hours), subject, detail, memo)


def budget_set(*, actor: Actor, team: Team, usd_per_month: Decimal, expected_version: int | None = None) -> Budget:
    """Set a team's monthly budget and post the difference for this month at once.

    Raises Forbidden, InvalidInput for a negative amount, StaleVersion.
    """
    if not can_manage_budgets(actor):
        raise Forbidden(_("only administrators set budgets"))
    if usd_per_month < 0:
        raise field_refusal("/usd_per_month", _("must not be negative"))
    with transaction.atomic():
        budget = Budget.objects.filter(team=team).first()
        before = budget.usd_per_month if budget else None
        if budget is None:
            budget = Budget.objects.create(team=team, usd_per_month=usd_per_month)
        else:
            budget.spec_update(expected_version, usd_per_month=usd_per_month)
            budget.save(update_fields=["updated_at"])  # leaves the row in the model's history
        grant_to(
            team,
            Unit.USD,
            usd_per_month,
            key=f"grant:{team.uid}:{month_of()}:v{budget.version}",
            memo=f"budget set to {units.usd(usd_per_month)}",
        )
        record(
            actor,
            "budget.set",
            "budget",
            budget.uid,
            team_id=team.pk,
            before={"usd_per_month": str(before) if before is not None else None},
            after={"usd_per_month": str(usd_per_month)},
        )
    return budget


def hold_money(team: Team, usd: Decimal, hours: Decimal, *, subject: str, detail: str, memo: str) -> None:
    """Hold the dollars of one attempt and note its GPU-hours.

    Raises BudgetExhausted; a team without a budget has none.
    """
    month_open(team)
    if not hold(team, Unit.USD, usd, key=f"hold:{detail}:USD", subject=subject, detail=detail, memo=memo):
        left = standing_of(team, Unit.USD).free
        text = gettext_noop(
            "team %(team)s has %(left)s left of this month's budget and this needs %(usd)s held;"
            " shorten the time limit, use fewer GPUs, or ask an administrator for more"
        )
        # Said, because a job that waits for money keeps it.
        raise BudgetExhausted(said(text, team=team.slug, left=units.usd(left), usd=units.usd(usd)))
    _record_hours(team, hours, subject, detail, memo)


def _record_hours(team: Team, hours: Decimal, subject: str, detail: str, memo: str) -> None:
    # GPU-hours have no limit of their own yet: they are granted as they are held, so that the ledger shows them.
    if hours <= 0 or Posting.objects.filter(key=f"hold:{detail}:GPU_H").exists():
        return
    period = month_of()
    issuer = _room(team, Unit.GPU_HOURS, period)
    held = _account(team, AccountKind.HELD, Unit.GPU_HOURS, period)
    _post(f"hold:{detail}:GPU_H", PostingKind.HOLD, Unit.GPU_HOURS, issuer, held, exact(hours), subject, detail, memo)
