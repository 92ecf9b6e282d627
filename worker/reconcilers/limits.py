"""Teams' limits in Slurm's own accounting: compared, and where the cluster says so, written and repaired.

The key is the cluster's uid. Writing the same twice is writing it once, so a lost answer is written again.
"""

from __future__ import annotations

from django.utils.translation import gettext_noop as _

from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_by_uid
from apps.clusters.slurm_models import SlurmAccount
from apps.clusters.states import ClusterPhase, LimitsMode
from apps.core.said import said
from apps.jobs import limit_observations as obs
from apps.jobs.limit_selectors import limit_rows
from worker import doors
from worker.engine import DONE, Outcome, again
from worker.providers.errors import AccessDenied, ProviderError, Unsupported
from worker.providers.ports import SlurmAccounting

#: How often budgets and accounts are compared; a job that ended sooner is bounded by Slurm's own count meanwhile.
PERIOD_S = 30.0
#: After a refusal that only a person can end.
REFUSED_S = 600.0


def reconcile(uid: str) -> Outcome:
    """Compare all accounts of a cluster, one read; write what differs by a step."""
    cluster = cluster_by_uid(uid)
    if cluster is None or cluster.limits_mode == LimitsMode.OFF or cluster.delete_requested_at is not None:
        return DONE
    if cluster.phase != ClusterPhase.READY or not cluster.takes_jobs:
        return again(PERIOD_S)
    rows = limit_rows(cluster)
    if not rows:
        return again(PERIOD_S)
    accounts = {row.account.account: row.account for row in rows}
    try:
        accounting = doors.accounting_for(cluster)
        found = accounting.account_limits(accounts)
    except (Unsupported, AccessDenied) as error:
        for account in accounts.values():
            obs.limit_unknown(account, said(_("cannot be read: %(error)s"), error=str(error)))
        return again(REFUSED_S)
    for row in rows:
        told = found.get(row.account.account)
        if told is None:
            obs.limit_unknown(row.account, said(_("Slurm knows no such account on this cluster")))
            continue
        seen = obs.SeenLimit(told.gpus, told.gpu_min, told.used_gpu_min)
        wanted = obs.limit_compare(row.account, row.allowance, seen, cluster.limits_mode)
        if wanted is not None and not _write(cluster, accounting, row.account, *wanted):
            return again(REFUSED_S)
    return again(PERIOD_S)


def _write(
    cluster: Cluster, accounting: SlurmAccounting, account: SlurmAccount, gpus: int | None, minutes: int | None
) -> bool:
    """Send it; whether going on makes sense."""
    try:
        accounting.account_limit_write(account.account, gpus, minutes)
    except AccessDenied as error:
        text = _("Slurm lets %(user)s write no limits: its admin level must be Administrator (%(error)s)")
        obs.limit_unknown(account, said(text, user=cluster.user_name, error=str(error)))
        return False
    except ProviderError as error:
        obs.limit_unknown(account, said(_("not written: %(error)s"), error=str(error)))
        raise
    obs.limit_written(account, gpus, minutes)
    return True
