"""User, Team, Membership, ServiceAccount, ApiToken."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import Q

from apps.core import clock
from apps.core.models import Recorded
from apps.teams.states import PlatformRole, TeamRole


class User(AbstractUser):
    """A person. ``platform_role`` is above all teams; team roles are Memberships."""

    platform_role = models.CharField(max_length=16, choices=PlatformRole.choices, default=PlatformRole.NONE, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(platform_role__in=[c.value for c in PlatformRole]), name="teams_user_known_role"
            )
        ]

    @property
    def display_name(self) -> str:
        """The full name where given, else the user name."""
        return self.get_full_name() or self.username


class Team(Recorded):
    """A group of people that shares jobs, quotas and a budget."""

    uid_prefix = "team"

    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=80)

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        """The slug: what people type."""
        return self.slug


class Membership(models.Model):
    """One person's role in one team."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=TeamRole.choices, default=TeamRole.RESEARCHER)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "team"], name="teams_one_role_per_team"),
            models.CheckConstraint(condition=Q(role__in=[c.value for c in TeamRole]), name="teams_known_role"),
        ]

    def __str__(self) -> str:
        """Who, where, as what."""
        return f"{self.user} {self.role} of {self.team}"


class ServiceAccount(Recorded):
    """A robot of one team: it holds tokens, never a password."""

    uid_prefix = "sa"

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="service_accounts")
    name = models.SlugField(max_length=60)
    role = models.CharField(max_length=16, choices=TeamRole.choices, default=TeamRole.RESEARCHER)
    is_enabled = models.BooleanField(default=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="teams_one_service_account_per_name")]

    def __str__(self) -> str:
        """Team and name."""
        return f"{self.team.slug}/{self.name}"


class SavedView(Recorded):
    """A list page as one person set it up: filters and order as a query, and hidden columns by name.

    The row without a name holds the columns the person hides on the page when no view is in force.
    ``team`` shares a named view with a team.
    """

    uid_prefix = "view"

    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="saved_views")
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="saved_views")
    page = models.CharField(max_length=100)
    name = models.CharField(max_length=60, blank=True, default="")
    query = models.CharField(max_length=1000, blank=True, default="")
    hidden_columns = models.JSONField(default=list)
    is_default = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "page", "name"], name="teams_one_view_per_name"),
            models.UniqueConstraint(
                fields=["owner", "page"], condition=Q(is_default=True), name="teams_one_default_view"
            ),
        ]

    def __str__(self) -> str:
        """Page and name."""
        return f"{self.page} {self.name}"

    @property
    def address(self) -> str:
        """Where the view is seen."""
        return f"{self.page}?{self.query}{'&' if self.query else ''}view={self.uid}"


class ApiToken(Recorded):
    """A bearer token of a person or a service account: only its digest is kept, it always expires.

    ``scopes`` lists rights; the effective right is scope and role. An empty list allows nothing.
    """

    uid_prefix = "tok"

    key_id = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    label = models.CharField(max_length=80)
    user = models.ForeignKey(User, null=True, blank=True, on_delete=models.CASCADE, related_name="tokens")
    service_account = models.ForeignKey(
        ServiceAccount, null=True, blank=True, on_delete=models.CASCADE, related_name="tokens"
    )
    scopes = models.JSONField(default=list)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, service_account__isnull=True)
                | Q(user__isnull=True, service_account__isnull=False),
                name="teams_token_has_one_owner",
            )
        ]

    def __str__(self) -> str:
        """Label and key id, never the secret."""
        return f"{self.label} ({self.key_id})"

    @property
    def is_live(self) -> bool:
        """Whether it still opens anything."""
        return self.revoked_at is None and self.expires_at > clock.now()
