"""API of who people and teams are in a cluster's Slurm."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters import slurm_services as services
from apps.clusters.models import Cluster
from apps.clusters.selectors import cluster_for
from apps.clusters.slurm_models import SlurmAccount, SlurmUser
from apps.clusters.slurm_selectors import slurm_account_for, slurm_accounts_of, slurm_user_for, slurm_users_of
from apps.clusters.states import LimitsMode, TokenStyle
from apps.core.api import Endpoint, ListEndpoint, etag, expected_version, idempotent
from apps.core.errors import field_refusal
from apps.teams.models import ServiceAccount, Team, User


def _team(slug: str, pointer: str = "/team") -> Team | None:
    if not slug:
        return None
    team = Team.objects.filter(slug=slug).first()
    if team is None:
        raise field_refusal(pointer, _("no team %(name)s") % {"name": slug}, "unknown")
    return team


class SlurmSettingsSerializer(serializers.ModelSerializer[Cluster]):
    """How people act in a cluster's Slurm."""

    outside_team: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="slug", read_only=True)
    acts_as_people = serializers.SerializerMethodField(help_text="Whether jobs run as whoever submits them.")

    class Meta:
        model = Cluster
        fields = [
            "uid",
            "name",
            "user_name",
            "acts_as_people",
            "tells_ids",
            "token_style",
            "token_lifetime_s",
            "same_names",
            "outside_team",
            "limits_mode",
            "version",
        ]

    def get_acts_as_people(self, cluster: Cluster) -> bool:
        """It takes Slurm's signing key."""
        return bool(cluster.signing_key_ref)


class SlurmSettingsPatchSerializer(serializers.Serializer[Any]):
    """What may be changed; what is left out stays."""

    token_style = serializers.ChoiceField(choices=TokenStyle.choices, required=False)
    token_lifetime_s = serializers.IntegerField(required=False)
    same_names = serializers.BooleanField(required=False)
    outside_team = serializers.CharField(required=False, allow_blank=True, help_text="A team's slug; empty: none.")
    limits_mode = serializers.ChoiceField(choices=LimitsMode.choices, required=False)


class SlurmUserSerializer(serializers.ModelSerializer[SlurmUser]):
    """A user of Slurm and who that is."""

    user: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="username", read_only=True)
    service_account = serializers.SerializerMethodField()
    team: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="slug", read_only=True)

    class Meta:
        model = SlurmUser
        fields = [
            "uid",
            "user_name",
            "user",
            "service_account",
            "uid_number",
            "gid_number",
            "gids",
            "team",
            "created_at",
            "version",
        ]

    def get_service_account(self, row: SlurmUser) -> str | None:
        """Team and name of a robot."""
        return str(row.service_account) if row.service_account is not None else None


class SlurmUserPutSerializer(serializers.Serializer[Any]):
    """A user of Slurm; the same name again corrects the row."""

    user_name = serializers.CharField(max_length=60)
    user = serializers.CharField(max_length=150, required=False, default="", allow_blank=True)
    service_account = serializers.CharField(
        max_length=120, required=False, default="", allow_blank=True, help_text="team/name"
    )
    uid_number = serializers.IntegerField(required=False, default=None, allow_null=True)
    gid_number = serializers.IntegerField(required=False, default=None, allow_null=True)
    gids = serializers.ListField(child=serializers.IntegerField(), required=False, default=list, max_length=500)
    team = serializers.CharField(max_length=40, required=False, default="", allow_blank=True)


class SlurmAccountSerializer(serializers.ModelSerializer[SlurmAccount]):
    """An account of Slurm and whose it is."""

    team: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="slug", read_only=True)

    class Meta:
        model = SlurmAccount
        fields = ["uid", "account", "team", "is_default", "created_at", "version"]


class SlurmAccountPutSerializer(serializers.Serializer[Any]):
    """An account of Slurm; the same name again corrects the row."""

    account = serializers.CharField(max_length=60)
    team = serializers.CharField(max_length=40)
    is_default = serializers.BooleanField(default=False)


class ImportSerializer(serializers.Serializer[Any]):
    """Users as CSV: user_name, person, uid, gid, gids, team."""

    text = serializers.CharField(max_length=1_000_000, trim_whitespace=False)
    dry_run = serializers.BooleanField(default=True)


class ImportLineSerializer(serializers.Serializer[Any]):
    """What one row does, or why it cannot be taken."""

    number = serializers.IntegerField()
    user_name = serializers.CharField()
    verdict = serializers.CharField(help_text="new, changed, same or refused")
    problem = serializers.CharField()


class SlurmSettings(Endpoint):
    """How people act in one cluster's Slurm."""

    rights = {"GET": "clusters.operate", "PATCH": "clusters.operate"}
    serializer_class = SlurmSettingsSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        return Response(SlurmSettingsSerializer(cluster).data, headers={"ETag": etag(cluster)})

    def patch(self, request: Request, uid: str) -> Response:
        """Change; If-Match required."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        version = expected_version(request)
        body = self.read_body(SlurmSettingsPatchSerializer)
        if "outside_team" in body:
            body["outside_team"] = _team(body["outside_team"], "/outside_team")
        services.slurm_settings_update(actor=self.actor, cluster=cluster, expected_version=version, **body)
        return Response(SlurmSettingsSerializer(cluster).data, headers={"ETag": etag(cluster)})


class SlurmUsers(ListEndpoint):
    """The users of one cluster's Slurm."""

    rights = {"GET": "clusters.operate", "POST": "clusters.operate"}
    serializer_class = SlurmUserSerializer

    def get_rows(self) -> Any:
        """By name."""
        return slurm_users_of(cluster_for(actor=self.actor, may="clusters.operate", uid=self.kwargs["uid"]))

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return SlurmUserPutSerializer if self.request.method == "POST" else SlurmUserSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Say who a user is."""
        actor = self.actor
        cluster = cluster_for(actor=actor, may="clusters.operate", uid=uid)
        body = self.read_body(SlurmUserPutSerializer)
        body["team"] = _team(body["team"])
        name, robot = body["user"], body["service_account"]
        body["user"] = User.objects.filter(username=name, is_active=True).first() if name else None
        if name and body["user"] is None:
            raise field_refusal("/user", _("nobody in the portal is called %(name)s") % {"name": name}, "unknown")
        slug, _sep, short = robot.partition("/")
        found = ServiceAccount.objects.filter(team__slug=slug, name=short).first() if robot else None
        if robot and found is None:
            text = _("nobody in the portal is called %(name)s") % {"name": robot}
            raise field_refusal("/service_account", text, "unknown")
        body["service_account"] = found

        def effect() -> tuple[int, dict[str, Any], str]:
            row = services.slurm_user_put(actor=actor, cluster=cluster, **body)
            return 201, dict(SlurmUserSerializer(row).data), f"/api/v1/slurm-users/{row.uid}"

        return idempotent(request, effect)


class SlurmUsersImport(Endpoint):
    """Users of one cluster's Slurm from CSV."""

    rights = {"POST": "clusters.operate"}
    serializer_class = ImportSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Take all rows, or, with ``dry_run`` or a bad row, none and say what each would do."""
        cluster = cluster_for(actor=self.actor, may="clusters.operate", uid=uid)
        body = self.read_body(ImportSerializer)
        lines = services.slurm_users_import(
            actor=self.actor, cluster=cluster, text=body["text"], dry_run=body["dry_run"]
        )
        refused = sum(1 for line in lines if line.problem)
        told = {
            "written": not body["dry_run"] and not refused,
            "refused": refused,
            "lines": ImportLineSerializer(lines, many=True).data,
        }
        return Response(told)


class SlurmUserDetail(Endpoint):
    """One user of Slurm."""

    rights = {"GET": "clusters.operate", "DELETE": "clusters.operate"}
    serializer_class = SlurmUserSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        return Response(SlurmUserSerializer(slurm_user_for(actor=self.actor, may="clusters.operate", uid=uid)).data)

    def delete(self, request: Request, uid: str) -> Response:
        """Forget who that is."""
        row = slurm_user_for(actor=self.actor, may="clusters.operate", uid=uid)
        services.slurm_user_remove(actor=self.actor, row=row)
        return Response(status=204)


class SlurmAccounts(ListEndpoint):
    """The accounts of one cluster's Slurm that belong to teams."""

    rights = {"GET": "clusters.operate", "POST": "clusters.operate"}
    serializer_class = SlurmAccountSerializer

    def get_rows(self) -> Any:
        """By name."""
        return slurm_accounts_of(cluster_for(actor=self.actor, may="clusters.operate", uid=self.kwargs["uid"]))

    def get_serializer_class(self) -> Any:
        """The body of a POST differs from what a list shows."""
        return SlurmAccountPutSerializer if self.request.method == "POST" else SlurmAccountSerializer

    def post(self, request: Request, uid: str) -> Response:
        """Say whose an account is."""
        actor = self.actor
        cluster = cluster_for(actor=actor, may="clusters.operate", uid=uid)
        body = self.read_body(SlurmAccountPutSerializer)
        team = _team(body.pop("team"))
        if team is None:
            raise field_refusal("/team", _("no team %(name)s") % {"name": "–"}, "required")

        def effect() -> tuple[int, dict[str, Any], str]:
            row = services.slurm_account_put(actor=actor, cluster=cluster, team=team, **body)
            return 201, dict(SlurmAccountSerializer(row).data), f"/api/v1/slurm-accounts/{row.uid}"

        return idempotent(request, effect)


class SlurmAccountDetail(Endpoint):
    """One account of Slurm."""

    rights = {"GET": "clusters.operate", "DELETE": "clusters.operate"}
    serializer_class = SlurmAccountSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read."""
        row = slurm_account_for(actor=self.actor, may="clusters.operate", uid=uid)
        return Response(SlurmAccountSerializer(row).data)

    def delete(self, request: Request, uid: str) -> Response:
        """Forget whose it is."""
        row = slurm_account_for(actor=self.actor, may="clusters.operate", uid=uid)
        services.slurm_account_remove(actor=self.actor, row=row)
        return Response(status=204)
