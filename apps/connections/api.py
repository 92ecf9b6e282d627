"""API of cloud accounts."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.connections.models import CloudAccount
from apps.connections.selectors import account_for, accounts_visible_to
from apps.connections.services import account_connect, account_pause
from apps.core.api import Endpoint, ListEndpoint, etag, expected_version, idempotent


class AccountSerializer(serializers.ModelSerializer[CloudAccount]):
    """A cloud account; secrets are references."""

    class Meta:
        model = CloudAccount
        fields = [
            "uid",
            "name",
            "region",
            "endpoint_url",
            "credentials_ref",
            "role_arn",
            "is_paused",
            "phase",
            "phase_since",
            "message",
            "observed_account_id",
            "observed_arn",
            "observed_at",
            "created_at",
            "version",
        ]


class AccountCreateSerializer(serializers.Serializer[Any]):
    """How to reach an account."""

    name = serializers.CharField(max_length=60)
    region = serializers.CharField(max_length=30)
    endpoint_url = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    credentials_ref = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    role_arn = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)


class AccountPatchSerializer(serializers.Serializer[Any]):
    """What may be changed."""

    is_paused = serializers.BooleanField()


class Accounts(ListEndpoint):
    """Connected cloud accounts."""

    rights = {"GET": "connections.view", "POST": "connections.manage"}
    serializer_class = AccountSerializer

    def get_rows(self) -> Any:
        """Visible accounts."""
        return accounts_visible_to(self.actor)

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return AccountCreateSerializer if self.request.method == "POST" else AccountSerializer

    def post(self, request: Request) -> Response:
        """Connect an account; the worker checks it (202)."""
        body = self.read_body(AccountCreateSerializer)

        def effect() -> tuple[int, dict[str, Any], str]:
            account = account_connect(actor=self.actor, **body)
            return 202, dict(AccountSerializer(account).data), f"/api/v1/accounts/{account.uid}"

        return idempotent(request, effect)


class Account(Endpoint):
    """One account."""

    rights = {"GET": "connections.view", "PATCH": "connections.manage"}
    serializer_class = AccountSerializer

    def get_serializer_class(self) -> Any:
        """The body of a PATCH differs from the object."""
        return AccountPatchSerializer if self.request.method == "PATCH" else AccountSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        account = account_for(actor=self.actor, may="connections.view", uid=uid)
        return Response(AccountSerializer(account).data, headers={"ETag": etag(account)})

    def patch(self, request: Request, uid: str) -> Response:
        """Pause or resume; If-Match required."""
        actor = self.actor
        account = account_for(actor=actor, may="connections.manage", uid=uid)
        body = self.read_body(AccountPatchSerializer)
        account_pause(
            actor=actor, account=account, is_paused=body["is_paused"], expected_version=expected_version(request)
        )
        return Response(AccountSerializer(account).data, headers={"ETag": etag(account)})
