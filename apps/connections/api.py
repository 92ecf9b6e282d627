"""API of cloud accounts."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.connections.models import CloudAccount
from apps.connections.selectors import account_for, accounts_visible_to
from apps.connections.services import (
    account_allow_purchases,
    account_connect,
    account_pause,
    account_remove,
    account_update,
)
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
            "external_id",
            "is_paused",
            "paused_at",
            "allows_purchases",
            "delete_requested_at",
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
    external_id = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)


class AccountPatchSerializer(serializers.Serializer[Any]):
    """What may be changed; what is left out stays."""

    name = serializers.CharField(max_length=60, required=False)
    region = serializers.CharField(max_length=30, required=False)
    endpoint_url = serializers.CharField(max_length=200, required=False, allow_blank=True)
    credentials_ref = serializers.CharField(max_length=200, required=False, allow_blank=True)
    role_arn = serializers.CharField(max_length=200, required=False, allow_blank=True)
    external_id = serializers.CharField(max_length=200, required=False, allow_blank=True)
    is_paused = serializers.BooleanField(required=False)
    allows_purchases = serializers.BooleanField(required=False)


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

    rights = {"GET": "connections.view", "PATCH": "connections.manage", "DELETE": "connections.manage"}
    serializer_class = AccountSerializer

    def get_serializer_class(self) -> Any:
        """The body of a PATCH differs from the object."""
        return AccountPatchSerializer if self.request.method == "PATCH" else AccountSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        account = account_for(actor=self.actor, may="connections.view", uid=uid)
        return Response(AccountSerializer(account).data, headers={"ETag": etag(account)})

    def patch(self, request: Request, uid: str) -> Response:
        """Correct it, pause or resume it; the worker checks it again. If-Match required."""
        actor = self.actor
        account = account_for(actor=actor, may="connections.manage", uid=uid)
        body = self.read_body(AccountPatchSerializer)
        version = expected_version(request)
        is_paused = body.pop("is_paused", None)
        allowed = body.pop("allows_purchases", None)
        with transaction.atomic():
            if body or (is_paused is None and allowed is None):
                account_update(actor=actor, account=account, expected_version=version, **body)
                version = account.version
            if is_paused is not None:
                account_pause(actor=actor, account=account, is_paused=is_paused, expected_version=version)
                version = account.version
            if allowed is not None:
                account_allow_purchases(actor=actor, account=account, allowed=allowed, expected_version=version)
        return Response(AccountSerializer(account).data, headers={"ETag": etag(account)})

    def delete(self, request: Request, uid: str) -> Response:
        """Take it out of the portal (202); If-Match required; refused while clusters or fleets hang on it."""
        account = account_for(actor=self.actor, may="connections.manage", uid=uid)
        account_remove(actor=self.actor, account=account, expected_version=expected_version(request))
        return Response(AccountSerializer(account).data, status=202)
