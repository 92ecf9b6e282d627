"""manage.py token USER: make an API token from the command line, e.g. for the first script of a new installation."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core.errors import Refusal
from apps.teams.models import User
from apps.teams.permissions import actor_for_user
from apps.teams.services import grantable_scopes, token_create


class Command(BaseCommand):
    """Prints the bearer text alone on standard output; it is not shown again."""

    help = "Make an API token for a person and print it."

    def add_arguments(self, parser: CommandParser) -> None:
        """Options."""
        parser.add_argument("user")
        parser.add_argument("--label", default="command line")
        parser.add_argument("--days", type=int, default=30)
        parser.add_argument(
            "--scope", action="append", default=[], help="a right; repeat it; default: all the person holds"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Make it."""
        user = User.objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"there is no user {options['user']}")
        actor = actor_for_user(user)
        scopes = options["scope"] or sorted(grantable_scopes(actor))
        try:
            _token, bearer = token_create(actor=actor, label=options["label"], scopes=scopes, days=options["days"])
        except Refusal as refusal:
            raise CommandError(refusal.detail) from None
        self.stdout.write(bearer)
