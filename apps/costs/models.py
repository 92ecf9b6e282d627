"""Account, Posting, Budget: double entry in which every row moves one amount from one account to another."""

from __future__ import annotations

from decimal import Decimal

from django.db import models
from django.db.models import F, Q
from simple_history.models import HistoricalRecords

from apps.core import clock
from apps.core.fields import MicroField
from apps.core.models import Recorded
from apps.costs.states import AccountKind, PostingKind, Unit
from apps.teams.models import Team


class Account(models.Model):
    """One pot of one team in one unit and period. ``balance`` is the sum of its postings, kept by the database.

    Triggers move balances when a posting is inserted and refuse to change or delete postings, so
    the sum over all accounts is zero at every commit, whoever writes (migration 0002).
    """

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="ledger_accounts")
    kind = models.CharField(max_length=8, choices=AccountKind.choices)
    unit = models.CharField(max_length=8, choices=Unit.choices)
    #: "2026-11" for money and GPU-hours, "" for what has no month (concurrent GPUs).
    period = models.CharField(max_length=7, blank=True, default="")
    balance = MicroField(default=Decimal(0), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "kind", "unit", "period"], name="costs_one_account_each"),
            models.CheckConstraint(condition=Q(kind__in=[c.value for c in AccountKind]), name="costs_known_kind"),
            models.CheckConstraint(condition=Q(unit__in=[c.value for c in Unit]), name="costs_known_unit"),
            models.CheckConstraint(condition=~Q(kind="HELD") | Q(balance__gte=0), name="costs_held_never_negative"),
        ]

    def __str__(self) -> str:
        """Team, kind, unit, period."""
        return f"{self.team.slug} {self.kind} {self.unit} {self.period}".strip()


class Posting(models.Model):
    """An amount that moved. Two legs in one row: it takes from ``source`` and gives to ``target``.

    ``key`` makes a posting happen once: a second one with the same key is refused by the database.
    ``subject_uid`` is the job, ``detail_uid`` the attempt.
    """

    key = models.CharField(max_length=120, unique=True)
    kind = models.CharField(max_length=8, choices=PostingKind.choices)
    unit = models.CharField(max_length=8, choices=Unit.choices)
    source = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="postings_out")
    target = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="postings_in")
    amount = MicroField()
    subject_uid = models.CharField(max_length=60, blank=True, default="")
    detail_uid = models.CharField(max_length=60, blank=True, default="")
    memo = models.CharField(max_length=200, blank=True, default="")
    at = models.DateTimeField(default=clock.now)

    class Meta:
        indexes = [
            models.Index(fields=["subject_uid", "unit", "id"], name="costs_posting_by_subject"),
            models.Index(fields=["at"], name="costs_posting_by_time"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="costs_amount_positive"),
            models.CheckConstraint(condition=~Q(source=F("target")), name="costs_two_accounts"),
            models.CheckConstraint(condition=Q(kind__in=[c.value for c in PostingKind]), name="costs_known_posting"),
        ]

    def __str__(self) -> str:
        """Kind and amount."""
        return f"{self.kind} {self.amount} {self.unit}"


class LedgerMark(models.Model):
    """How far the books were checked, in one row, so that no page sums them.

    ``sums`` is what the first ``postings`` postings, up to ``posting_id``, come to for each account, in
    millionths by its pk: only what came after is summed again. ``whole_off`` is how many accounts
    differed when everything was last summed; it stands until everything was summed once more.
    """

    posting_id = models.BigIntegerField(default=0)
    postings = models.BigIntegerField(default=0)
    sums = models.JSONField(default=dict)
    checked_at = models.DateTimeField(null=True, blank=True)
    checked_postings = models.BigIntegerField(default=0)
    sum_of_balances = MicroField(default=Decimal(0))
    accounts_off = models.PositiveIntegerField(default=0)
    whole_at = models.DateTimeField(null=True, blank=True)
    whole_postings = models.BigIntegerField(default=0)
    whole_off = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        """How far."""
        return f"checked {self.checked_postings} postings"

    @property
    def is_balanced(self) -> bool:
        """Neither what is new nor everything together differed."""
        return self.sum_of_balances == 0 and self.accounts_off == 0 and self.whole_off == 0

    @property
    def off(self) -> int:
        """How many accounts differ from their postings."""
        return max(self.accounts_off, self.whole_off)


class Budget(Recorded):
    """What a team may spend a month in USD; raising or lowering it posts the difference to the ledger."""

    uid_prefix = "bud"

    team = models.OneToOneField(Team, on_delete=models.CASCADE, related_name="budget")
    usd_per_month = models.DecimalField(max_digits=14, decimal_places=2)
    updated_at = models.DateTimeField(auto_now=True)
    history = HistoricalRecords()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(usd_per_month__gte=0), name="costs_budget_not_negative")]

    def __str__(self) -> str:
        """Team and amount."""
        return f"{self.team.slug}: ${self.usd_per_month} a month"
