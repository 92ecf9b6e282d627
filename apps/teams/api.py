"""API of people: who am I, teams, tokens."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint, ListEndpoint, idempotent
from apps.core.errors import NotFound
from apps.core.pages import SIGNED_IN
from apps.teams.models import ApiToken, Team
from apps.teams.permissions import ALL_RIGHTS, Actor
from apps.teams.selectors import (
    service_accounts_visible_to,
    teams_visible_to,
    token_for,
    tokens_visible_to,
)
from apps.teams.services import token_create, token_revoke


class TeamSerializer(serializers.ModelSerializer[Team]):
    """A team."""

    class Meta:
        model = Team
        fields = ["uid", "slug", "name", "created_at"]


class WhoAmISerializer(serializers.Serializer[Any]):
    """The caller."""

    name = serializers.CharField()
    platform_role = serializers.CharField(allow_blank=True)
    teams = serializers.DictField(child=serializers.CharField(), help_text="Role by team slug.")
    rights = serializers.ListField(child=serializers.CharField(), help_text="Rights held anywhere, scopes applied.")


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """A token without its secret."""

    owner = serializers.SerializerMethodField()

    class Meta:
        model = ApiToken
        fields = ["uid", "label", "key_id", "owner", "scopes", "created_at", "expires_at", "last_used_at", "revoked_at"]

    def get_owner(self, token: ApiToken) -> str:
        """Who acts through it."""
        return token.user.username if token.user else str(token.service_account)


class TokenCreateSerializer(serializers.Serializer[Any]):
    """What a new token may do and for how long."""

    label = serializers.CharField(max_length=80)  # type: ignore[assignment]
    scopes = serializers.ListField(child=serializers.CharField(), allow_empty=False)
    days = serializers.IntegerField(min_value=1, max_value=365, default=30)
    service_account = serializers.CharField(required=False, help_text="uid; empty makes a token of your own.")


class TokenCreatedSerializer(TokenSerializer):
    """A token with its bearer text, shown this once."""

    bearer = serializers.CharField()

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "bearer"]


class WhoAmI(Endpoint):
    """The caller, roles and rights."""

    rights = {"GET": SIGNED_IN}
    serializer_class = WhoAmISerializer

    def get(self, request: Request) -> Response:
        """Who the token or session is."""
        actor: Actor = self.actor
        slugs = dict(Team.objects.filter(pk__in=actor.roles).values_list("pk", "slug"))
        body = {
            "name": actor.name,
            "platform_role": actor.platform_role,
            "teams": {slugs[pk]: role for pk, role in actor.roles.items() if pk in slugs},
            "rights": sorted(r for r in ALL_RIGHTS if actor.holds(r)),
        }
        return Response(body)


class Teams(ListEndpoint):
    """Teams the caller belongs to or may see."""

    rights = {"GET": "teams.view"}
    serializer_class = TeamSerializer
    sorts = {"slug": "slug"}

    def get_rows(self) -> Any:
        """Visible teams."""
        return teams_visible_to(self.actor)


class Tokens(ListEndpoint):
    """API tokens."""

    rights = {"GET": SIGNED_IN, "POST": SIGNED_IN}
    serializer_class = TokenSerializer

    def get_rows(self) -> Any:
        """One's own and those one manages."""
        return tokens_visible_to(self.actor)

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return TokenCreateSerializer if self.request.method == "POST" else TokenSerializer

    def post(self, request: Request) -> Response:
        """Make a token; the answer holds the bearer text, which is never shown again (and so never replayed)."""
        body = self.read_body(TokenCreateSerializer)
        actor: Actor = self.actor
        account = None
        if body.get("service_account"):
            account = service_accounts_visible_to(actor).filter(uid=body["service_account"]).first()
            if account is None:
                raise NotFound("no such service account that you may manage")
        token, bearer = token_create(
            actor=actor, label=body["label"], scopes=body["scopes"], days=body["days"], service_account=account
        )
        return Response({**TokenSerializer(token).data, "bearer": bearer}, status=201)


class TokenRevoke(Endpoint):
    """End a token."""

    rights = {"POST": SIGNED_IN}
    serializer_class = TokenSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Revoke now; twice is once."""
        actor: Actor = self.actor
        token = token_for(actor=actor, uid=uid)

        def effect() -> tuple[int, dict[str, Any], str]:
            token_revoke(actor=actor, token=token)
            token.refresh_from_db()
            return 200, dict(TokenSerializer(token).data), ""

        return idempotent(request, effect)
