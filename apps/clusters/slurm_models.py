"""SlurmUser, SlurmAccount, SlurmLimit: who someone is in a cluster's Slurm, and what was last seen of limits there."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.clusters.models import Cluster
from apps.core.models import Recorded
from apps.core.said import SaidField
from apps.teams.models import ServiceAccount, Team, User


class SlurmUser(Recorded):
    """A user of one cluster's Slurm, and who that is in the portal.

    At most one of ``user`` and ``service_account`` is set; neither where only Slurm knows the user. ``uid_number``,
    ``gid_number`` and ``gids`` are POSIX ids, needed where tokens carry them. ``team`` is whose the jobs are that
    this user submits past the portal without an account that a team has.
    """

    uid_prefix = "slu"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="slurm_users")
    user = models.ForeignKey(User, null=True, blank=True, on_delete=models.CASCADE, related_name="slurm_users")
    service_account = models.ForeignKey(
        ServiceAccount, null=True, blank=True, on_delete=models.CASCADE, related_name="slurm_users"
    )
    user_name = models.CharField(max_length=60)
    uid_number = models.PositiveBigIntegerField(null=True, blank=True)
    gid_number = models.PositiveBigIntegerField(null=True, blank=True)
    gids = models.JSONField(default=list, blank=True)
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering = ["user_name"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "user_name"], name="clusters_one_slurm_user_per_name"),
            models.UniqueConstraint(fields=["cluster", "user"], name="clusters_one_slurm_user_per_person"),
            models.UniqueConstraint(fields=["cluster", "service_account"], name="clusters_one_slurm_user_per_robot"),
            models.CheckConstraint(
                condition=Q(user__isnull=True) | Q(service_account__isnull=True), name="clusters_slurm_user_is_one"
            ),
        ]

    def __str__(self) -> str:
        """The name in Slurm."""
        return self.user_name

    @property
    def who(self) -> str:
        """Who that is in the portal; empty for nobody."""
        if self.user is not None:
            return self.user.username
        return str(self.service_account) if self.service_account is not None else ""


class SlurmAccount(Recorded):
    """An account of one cluster's Slurm, and the team whose jobs it holds."""

    uid_prefix = "sla"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="slurm_accounts")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="slurm_accounts")
    account = models.CharField(max_length=60)
    is_default = models.BooleanField(default=False)

    class Meta:
        ordering = ["account"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "account"], name="clusters_one_team_per_slurm_account"),
            models.UniqueConstraint(
                fields=["cluster", "team"], condition=Q(is_default=True), name="clusters_one_default_slurm_account"
            ),
        ]

    def __str__(self) -> str:
        """The account's name."""
        return self.account


class SlurmLimit(models.Model):
    """The limits of a team's account in Slurm: what the portal wants, wrote and saw there. None: no limit.

    GPUs are GrpTRES=gres/gpu, minutes GrpTRESMins=gres/gpu, which counts what was used since the last reset, too.
    ``written_*`` were committed before they were sent; ``drift_since`` is when Slurm's were found to differ from them.
    """

    account = models.OneToOneField(SlurmAccount, on_delete=models.CASCADE, related_name="limit")
    wanted_gpus = models.PositiveIntegerField(null=True, blank=True)
    wanted_gpu_min = models.PositiveBigIntegerField(null=True, blank=True)
    written_gpus = models.PositiveIntegerField(null=True, blank=True)
    written_gpu_min = models.PositiveBigIntegerField(null=True, blank=True)
    written_at = models.DateTimeField(null=True, blank=True)
    observed_gpus = models.PositiveIntegerField(null=True, blank=True)
    observed_gpu_min = models.PositiveBigIntegerField(null=True, blank=True)
    used_gpu_min = models.PositiveBigIntegerField(default=0)
    observed_at = models.DateTimeField(null=True, blank=True)
    drift_since = models.DateTimeField(null=True, blank=True)
    message = SaidField(blank=True, default="")

    def __str__(self) -> str:
        """Of which account."""
        return f"limits of {self.account.account}"
