"""API of reserved capacity: reservations, searches for offers, purchases and their decisions."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.capacity.filters import ReservationFilter
from apps.capacity.models import OfferingSearch, Purchase, Reservation
from apps.capacity.price_services import reservation_price
from apps.capacity.selectors import (
    purchase_for,
    purchase_sentence,
    purchases_visible_to,
    reservation_for,
    reservation_sentence,
    reservations_visible_to,
    search_for,
    searches_visible_to,
    unused_usd_per_hour,
)
from apps.capacity.services import (
    extension_search,
    odcr_request,
    offering_search,
    purchase_approve,
    purchase_reject,
    purchase_request,
    purchase_resolve,
    purchase_withdraw,
    reservation_assign,
    reservation_cancel,
)
from apps.capacity.states import PurchaseKind
from apps.capacity.views import PurchaseFilter
from apps.connections.selectors import account_for
from apps.core.api import Endpoint, ListEndpoint, etag, expected_version, idempotent
from apps.core.errors import field_refusal
from apps.teams.models import Team
from apps.teams.selectors import teams_visible_to


class ReservationSerializer(serializers.ModelSerializer[Reservation]):
    """A reservation with its sentence and what its free machines cost an hour now."""

    account = serializers.CharField(source="account.name", read_only=True)
    team = serializers.CharField(source="team.slug", read_only=True, default=None)
    message = serializers.CharField(read_only=True)
    sentence = serializers.SerializerMethodField()
    unused_usd_per_hour = serializers.SerializerMethodField()

    class Meta:
        model = Reservation
        fields = [
            "uid",
            "name",
            "kind",
            "account",
            "team",
            "phase",
            "phase_since",
            "sentence",
            "message",
            "provider_id",
            "observed_state",
            "observed_at",
            "instance_type",
            "instances",
            "available_instances",
            "zone_name",
            "zone_id",
            "match_criteria",
            "placement_group_arn",
            "start_at",
            "end_at",
            "usd_upfront",
            "usd_per_hour",
            "price_source",
            "unused_usd_per_hour",
            "is_adopted",
            "warned_at",
            "checkpoint_asked_at",
            "drain_asked_at",
            "terminate_asked_at",
            "created_at",
            "version",
        ]

    def get_sentence(self, row: Reservation) -> str:
        """The state sentence."""
        return reservation_sentence(row)

    def get_unused_usd_per_hour(self, row: Reservation) -> str | None:
        """None where the price is unknown."""
        found = unused_usd_per_hour(row)
        return None if found is None else str(found)


class ReservationPatchSerializer(serializers.Serializer[Any]):
    """Whose it is (null: shared); or, of a block that was bought elsewhere, what was paid in all and how one knows."""

    team = serializers.CharField(allow_null=True, required=False)
    usd_upfront = serializers.DecimalField(max_digits=14, decimal_places=2, required=False)
    reason = serializers.CharField(max_length=500, required=False, default="", allow_blank=True)


class SearchSerializer(serializers.ModelSerializer[OfferingSearch]):
    """A search and its offers."""

    account = serializers.CharField(source="account.name", read_only=True)
    message = serializers.CharField(read_only=True)

    class Meta:
        model = OfferingSearch
        fields = ["uid", "kind", "account", "criteria", "phase", "offers", "answered_at", "message", "created_at"]


class SearchCreateSerializer(serializers.Serializer[Any]):
    """What to look for; with ``reservation`` how much longer a block may run."""

    account = serializers.CharField(required=False, default="")
    reservation = serializers.CharField(required=False, default="")
    kind = serializers.CharField(required=False, default="capacity-block")
    instance_type = serializers.CharField(required=False, default="")
    instances = serializers.IntegerField(required=False, default=1)
    days = serializers.IntegerField()
    start_at = serializers.DateTimeField(required=False, default=None, allow_null=True)
    end_at = serializers.DateTimeField(required=False, default=None, allow_null=True)
    zones = serializers.ListField(child=serializers.CharField(), required=False, default=list)


class PurchaseSerializer(serializers.ModelSerializer[Purchase]):
    """A purchase with its sentence."""

    account = serializers.CharField(source="account.name", read_only=True)
    team = serializers.CharField(source="team.slug", read_only=True, default=None)
    reservation = serializers.CharField(source="reservation.uid", read_only=True, default=None)
    extends = serializers.CharField(source="extends.uid", read_only=True, default=None)
    message = serializers.CharField(read_only=True)
    sentence = serializers.SerializerMethodField()

    class Meta:
        model = Purchase
        fields = [
            "uid",
            "name",
            "kind",
            "account",
            "team",
            "phase",
            "phase_since",
            "sentence",
            "message",
            "offering_id",
            "instance_type",
            "instances",
            "zone_name",
            "start_at",
            "end_at",
            "usd_upfront",
            "usd_per_hour",
            "reason",
            "requested_by_name",
            "decided_by_name",
            "decided_at",
            "decision_reason",
            "good_until",
            "attempted_at",
            "candidates",
            "reservation",
            "extends",
            "created_at",
            "version",
        ]

    def get_sentence(self, purchase: Purchase) -> str:
        """The state sentence."""
        return purchase_sentence(purchase)


class PurchaseCreateSerializer(serializers.Serializer[Any]):
    """An offer of a search, or (kind "odcr") an ODCR."""

    kind = serializers.CharField(required=False, default="")
    search = serializers.CharField(required=False, default="")
    offering_id = serializers.CharField(required=False, default="")
    name = serializers.CharField()
    team = serializers.CharField(required=False, default=None, allow_null=True)
    reason = serializers.CharField()
    account = serializers.CharField(required=False, default="")
    instance_type = serializers.CharField(required=False, default="")
    instances = serializers.IntegerField(required=False, default=1)
    zone_name = serializers.CharField(required=False, default="")
    is_open = serializers.BooleanField(required=False, default=False)
    end_at = serializers.DateTimeField(required=False, default=None, allow_null=True)


class DecisionSerializer(serializers.Serializer[Any]):
    """Why; for a doubt also which reservation it was bought as, "" for none."""

    reason = serializers.CharField(required=False, default="", allow_blank=True)
    provider_id = serializers.CharField(required=False, default="", allow_blank=True)


def _team(actor: Any, slug: str | None) -> Team | None:
    if not slug:
        return None
    found = teams_visible_to(actor).filter(slug=slug).first()
    if found is None:
        raise field_refusal("/team", f"no team {slug}", "unknown")
    return found


class Reservations(ListEndpoint):
    """Reserved capacity."""

    rights = {"GET": "capacity.view"}
    serializer_class = ReservationSerializer
    filterset_class = ReservationFilter

    def get_rows(self) -> Any:
        """All that may be seen."""
        return reservations_visible_to(self.actor)


class ReservationDetail(Endpoint):
    """One reservation."""

    rights = {"GET": "capacity.view", "PATCH": "capacity.operate", "DELETE": "capacity.operate"}
    serializer_class = ReservationSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        row = reservation_for(actor=self.actor, may="capacity.view", uid=uid)
        return Response(ReservationSerializer(row).data, headers={"ETag": etag(row)})

    def patch(self, request: Request, uid: str) -> Response:
        """Say whose it is, or what was paid for it; If-Match required."""
        row = reservation_for(actor=self.actor, may="capacity.operate", uid=uid)
        body, version = self.read_body(ReservationPatchSerializer), expected_version(request)
        if ("team" in body) == ("usd_upfront" in body):
            raise field_refusal("/team", "one of team and usd_upfront", "required")
        if "team" in body:
            team = _team(self.actor, body["team"])
            reservation_assign(actor=self.actor, reservation=row, team=team, expected_version=version)
        else:
            paid = {"usd_upfront": body["usd_upfront"], "reason": body["reason"]}
            reservation_price(actor=self.actor, reservation=row, expected_version=version, **paid)
        return Response(ReservationSerializer(row).data, headers={"ETag": etag(row)})

    def delete(self, request: Request, uid: str) -> Response:
        """Cancel an ODCR; If-Match required (202)."""
        row = reservation_for(actor=self.actor, may="capacity.operate", uid=uid)
        reservation_cancel(actor=self.actor, reservation=row, expected_version=expected_version(request))
        return Response(ReservationSerializer(row).data, status=202, headers={"ETag": etag(row)})


class Searches(ListEndpoint):
    """Searches for offers, newest first."""

    rights = {"GET": "capacity.operate", "POST": "capacity.operate"}
    serializer_class = SearchSerializer

    def get_rows(self) -> Any:
        """All."""
        return searches_visible_to(self.actor)

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return SearchCreateSerializer if self.request.method == "POST" else SearchSerializer

    def post(self, request: Request) -> Response:
        """Ask AWS what is on sale (202); read the search until it is DONE."""
        body = dict(self.read_body(SearchCreateSerializer))

        def effect() -> tuple[int, dict[str, Any], str]:
            block, account = body.pop("reservation"), body.pop("account")
            if block:
                row = reservation_for(actor=self.actor, may="capacity.operate", uid=block)
                made = extension_search(actor=self.actor, reservation=row, days=body["days"])
            else:
                found = account_for(actor=self.actor, may="connections.view", uid=account)
                made = offering_search(actor=self.actor, account=found, **body)
            return 202, dict(SearchSerializer(made).data), f"/api/v1/offering-searches/{made.uid}"

        return idempotent(request, effect)


class SearchDetail(Endpoint):
    """One search."""

    rights = {"GET": "capacity.operate"}
    serializer_class = SearchSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        search = search_for(actor=self.actor, may="capacity.operate", uid=uid)
        return Response(SearchSerializer(search).data, headers={"ETag": etag(search)})


class Purchases(ListEndpoint):
    """What was asked for and what became of it."""

    rights = {"GET": "capacity.view", "POST": "capacity.operate"}
    serializer_class = PurchaseSerializer
    filterset_class = PurchaseFilter

    def get_rows(self) -> Any:
        """All that may be seen."""
        return purchases_visible_to(self.actor)

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return PurchaseCreateSerializer if self.request.method == "POST" else PurchaseSerializer

    def post(self, request: Request) -> Response:
        """Ask for a purchase (202); nothing is bought until another person approves."""
        body = dict(self.read_body(PurchaseCreateSerializer))
        team = _team(self.actor, body["team"])
        key = f"api:{self.actor.key}:{request.headers.get('Idempotency-Key', '')}"[:64]
        common = {"actor": self.actor, "name": body["name"], "team": team, "reason": body["reason"], "key": key}

        def effect() -> tuple[int, dict[str, Any], str]:
            if body["kind"] == PurchaseKind.ODCR:
                names = ("instance_type", "instances", "zone_name", "is_open", "end_at")
                account = account_for(actor=self.actor, may="connections.view", uid=body["account"])
                made = odcr_request(account=account, **common, **{n: body[n] for n in names})
            else:
                search = search_for(actor=self.actor, may="capacity.operate", uid=body["search"])
                made = purchase_request(search=search, offering_id=body["offering_id"], **common)
            return 202, dict(PurchaseSerializer(made).data), f"/api/v1/purchases/{made.uid}"

        return idempotent(request, effect)


class PurchaseDetail(Endpoint):
    """One purchase."""

    rights = {"GET": "capacity.view"}
    serializer_class = PurchaseSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        purchase = purchase_for(actor=self.actor, may="capacity.view", uid=uid)
        return Response(PurchaseSerializer(purchase).data, headers={"ETag": etag(purchase)})


class PurchaseDecision(Endpoint):
    """Approve or reject what another person asked for."""

    rights = {"POST": "capacity.approve"}
    serializer_class = DecisionSerializer
    verb = ""

    def post(self, request: Request, uid: str) -> Response:
        """Decide; If-Match required."""
        purchase = purchase_for(actor=self.actor, may="capacity.approve", uid=uid)
        body = self.read_body(DecisionSerializer)
        known = {"actor": self.actor, "purchase": purchase, "expected_version": expected_version(request)}
        if self.verb == "approve":
            purchase_approve(**known, reason=body["reason"])
        elif self.verb == "reject":
            purchase_reject(**known, reason=body["reason"])
        else:
            purchase_resolve(**known, provider_id=body["provider_id"], reason=body["reason"])
        return Response(PurchaseSerializer(purchase).data, headers={"ETag": etag(purchase)})


class PurchaseWithdraw(Endpoint):
    """Take a request back."""

    rights = {"POST": "capacity.operate"}
    serializer_class = PurchaseSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Before it is bought; If-Match required."""
        purchase = purchase_for(actor=self.actor, may="capacity.operate", uid=uid)
        purchase_withdraw(actor=self.actor, purchase=purchase, expected_version=expected_version(request))
        return Response(PurchaseSerializer(purchase).data, headers={"ETag": etag(purchase)})
