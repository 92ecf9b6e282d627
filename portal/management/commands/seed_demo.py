"""manage.py seed_demo: people, teams, quotas, budgets and job templates to try the portal with."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from apps.costs.models import Budget
from apps.costs.services import budget_set
from apps.jobs.kube_starters import KUBERNETES_STARTERS
from apps.jobs.models import JobTemplate
from apps.jobs.template_services import template_create
from apps.jobs.template_starters import STARTERS
from apps.quotas.models import Quota
from apps.quotas.services import quota_set
from apps.teams.models import Team, User
from apps.teams.permissions import system_actor
from apps.teams.services import membership_set, team_ensure
from apps.teams.states import PlatformRole, TeamRole

#: For the demo alone; production refuses to seed it.
PASSWORD = "quarterdeck-demo"  # noqa: S105
PEOPLE = {
    "admin": "administrator",
    "operator": "operator: accounts, clusters, fleets, GPU health",
    "researcher": "researcher of team nlp",
    "lead": "lead of team nlp",
    "viewer": "viewer of team nlp",
    "vision": "researcher of team vision",
}
_ROLES = {"admin": PlatformRole.ADMIN, "operator": PlatformRole.OPERATOR}
_TEAMS = {"nlp": ("Language models", 64, Decimal("50000")), "vision": ("Vision", 32, Decimal("20000"))}
_MEMBERS = (
    ("researcher", "nlp", TeamRole.RESEARCHER),
    ("lead", "nlp", TeamRole.LEAD),
    ("viewer", "nlp", TeamRole.VIEWER),
    ("vision", "vision", TeamRole.RESEARCHER),
)


class Command(BaseCommand):
    """Makes what is missing; changes nothing that is there."""

    help = "Seed demo people, teams, quotas, budgets and templates (not in production)."

    def handle(self, *args: Any, **options: Any) -> None:
        """Seed."""
        if settings.ENV == "production":
            raise CommandError("the demo sign-ins have a public password and are never seeded in production")
        with transaction.atomic():
            for name in PEOPLE:
                if not User.objects.filter(username=name).exists():
                    user = User(username=name, platform_role=_ROLES.get(name, PlatformRole.NONE))
                    user.is_staff = user.is_superuser = name == "admin"
                    user.set_password(PASSWORD)
                    user.save()
            system = system_actor("seed")
            for slug, (title, gpus, usd) in _TEAMS.items():
                team = team_ensure(slug, title)
                if not Quota.objects.filter(team=team).exists():
                    quota_set(actor=system, team=team, gpus=gpus)
                if not Budget.objects.filter(team=team).exists():
                    budget_set(actor=system, team=team, usd_per_month=usd)
            for name, content in {**STARTERS, **KUBERNETES_STARTERS}.items():
                if not JobTemplate.objects.filter(name=name).exists():
                    template_create(actor=system, name=name, teams=[], content=content)
            for person, slug, role in _MEMBERS:
                user, team = User.objects.get(username=person), Team.objects.get(slug=slug)
                if not user.memberships.filter(team=team).exists():
                    membership_set(team, user, role)
