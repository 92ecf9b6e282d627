"""What the worker writes about limits of accounts: committed before they are sent, compared with what is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_noop as _

from apps.audit.services import event
from apps.clusters.slurm_models import SlurmAccount, SlurmLimit
from apps.clusters.states import LimitsMode
from apps.core import clock
from apps.core.said import Said, said
from apps.jobs.limit_selectors import Allowance, differs


@dataclass(frozen=True)
class SeenLimit:
    """An account's limits in Slurm now; None: no limit."""

    gpus: int | None
    gpu_min: int | None
    used_gpu_min: int


def limit_unknown(account: SlurmAccount, why: Said) -> None:
    """Slurm cannot tell or does not know the account: said on the page."""
    row, _made = SlurmLimit.objects.get_or_create(account=account)
    if row.message != why:
        SlurmLimit.objects.filter(pk=row.pk).update(message=why)


def limit_compare(account: SlurmAccount, allowance: Allowance, seen: SeenLimit, mode: str) -> tuple[Any, Any] | None:
    """Store both sides, tell of drift, and commit what is to be written: (gpus, minutes), or None for nothing.

    What was written and found there, and is different now, someone else changed. What was committed but never found
    there was perhaps not sent: it is sent again, and that is no drift.
    """
    with transaction.atomic():
        row, _made = SlurmLimit.objects.get_or_create(account=account)
        wanted_min = None if allowance.left_gpu_min is None else seen.used_gpu_min + allowance.left_gpu_min
        here = (allowance.gpus, wanted_min)
        there = (seen.gpus, seen.gpu_min)
        written = (row.written_gpus, row.written_gpu_min)
        was_there = row.written_at is not None and (row.observed_gpus, row.observed_gpu_min) == written
        drifted = was_there and there != written
        exhausted = allowance.left_gpu_min == 0
        apart = differs(here[0], there[0], step=False) or differs(here[1], there[1], step=not exhausted)
        columns: dict[str, Any] = {
            "wanted_gpus": here[0],
            "wanted_gpu_min": here[1],
            "observed_gpus": there[0],
            "observed_gpu_min": there[1],
            "used_gpu_min": seen.used_gpu_min,
            "observed_at": clock.now(),
        }
        result = None
        facts = {
            "account": account.account,
            "gpus": _shown(there[0]),
            "minutes": _shown(there[1]),
            "own_gpus": _shown(written[0]),
            "own_minutes": _shown(written[1]),
        }
        if mode == LimitsMode.ENFORCE:
            if drifted:
                text = _(
                    "someone set account %(account)s to %(gpus)s GPUs and %(minutes)s GPU-minutes in Slurm; "
                    "put back from %(own_gpus)s and %(own_minutes)s"
                )
                _drift(account, "LimitsRepaired", said(text, **facts))
                columns["drift_since"] = None
            if apart or drifted:
                result = here
                columns |= {"written_gpus": here[0], "written_gpu_min": here[1], "written_at": clock.now()}
                columns["message"] = said(_("being written"))
            else:
                columns |= {"message": said(_("as it should be")), "drift_since": None}
        elif apart:
            columns["message"] = said(_("differs; nothing is written"))
            if row.drift_since is None:
                columns["drift_since"] = clock.now()
                text = _("account %(account)s has %(gpus)s GPUs and %(minutes)s GPU-minutes in Slurm, not as here")
                _drift(account, "LimitsDiffer", said(text, **facts))
        else:
            columns |= {"message": said(_("as it should be")), "drift_since": None}
        _store(row, columns)
    return result


def _store(row: SlurmLimit, columns: dict[str, Any]) -> None:
    """Write what differs; a look that found all as it was writes once in a while that it looked."""
    looked = columns.pop("observed_at")
    changed = {name: value for name, value in columns.items() if getattr(row, name) != value}
    if changed or row.observed_at is None or (looked - row.observed_at).total_seconds() > 300:
        SlurmLimit.objects.filter(pk=row.pk).update(**changed, observed_at=looked)


def limit_written(account: SlurmAccount, gpus: int | None, gpu_min: int | None) -> None:
    """Slurm took it."""
    SlurmLimit.objects.filter(account=account).update(
        observed_gpus=gpus, observed_gpu_min=gpu_min, observed_at=clock.now(), message=said(_("as it should be"))
    )


def _shown(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _drift(account: SlurmAccount, kind: str, text: Said) -> None:
    data = {"account": account.account, "team": account.team.slug}
    event("cluster", account.cluster.uid, kind, text, team_id=account.team_id, data=data)
