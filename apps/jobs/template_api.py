"""API of job templates: read, make, new version, versions and what differs, retire; a team's rules for failures."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import Endpoint, ListEndpoint, etag, expected_version, idempotent
from apps.core.errors import BadQuery, InvalidInput
from apps.jobs.models import JobTemplate
from apps.jobs.template_models import JobTemplateVersion, TeamRetry
from apps.jobs.template_rules import Content
from apps.jobs.template_selectors import (
    content_of,
    team_retry,
    template_for,
    templates_seen_by,
    templates_visible_to,
    version_for,
)
from apps.jobs.template_services import (
    team_retry_set,
    template_create,
    template_edit,
    template_offer,
    template_restore,
)
from apps.jobs.template_words import content_changes
from apps.teams.selectors import team_for

_PARAMETERS = "Each {name, label, type: text|integer|number|choice|switch|path, default, minimum, maximum, choices, "
_PARAMETERS += "on, off, help, required, locked}; {{ name }} in the script stands for it."
_DEFAULTS = "Values of a job's fields by their name in POST /jobs: cluster, nodes, time_limit_min, retry_rules …"
_LOCKED = "Fields that keep their default."


class TemplateSerializer(serializers.ModelSerializer[JobTemplate]):
    """A template as its newest version says it; ``number`` is that version's."""

    teams: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="slug", many=True, read_only=True, help_text="Whose it is; empty: everyone's."
    )

    class Meta:
        model = JobTemplate
        fields = [
            "uid",
            "name",
            "number",
            "title",
            "description",
            "teams",
            "is_enabled",
            "parameters",
            "defaults",
            "locked",
            "script",
            "created_at",
            "version",
        ]


class VersionSerializer(serializers.ModelSerializer[JobTemplateVersion]):
    """What a template said from one edit to the next."""

    class Meta:
        model = JobTemplateVersion
        fields = [
            "number",
            "created_at",
            "by",
            "why",
            "title",
            "description",
            "parameters",
            "defaults",
            "locked",
            "script",
        ]


class _ContentBody(serializers.Serializer[Any]):
    """What a version says."""

    title = serializers.CharField(max_length=80)
    description = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)
    script = serializers.CharField(trim_whitespace=False)
    parameters = serializers.ListField(
        child=serializers.DictField(), required=False, default=list, help_text=_PARAMETERS
    )
    defaults = serializers.DictField(required=False, default=dict, help_text=_DEFAULTS)
    locked = serializers.ListField(child=serializers.CharField(), required=False, default=list, help_text=_LOCKED)
    why = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)


class TemplateCreateSerializer(_ContentBody):
    """A new template."""

    name = serializers.CharField(max_length=60, help_text="Small letters, digits, - and _; it stays.")
    teams = serializers.ListField(
        child=serializers.CharField(), required=False, default=list, help_text="Slugs; none: everyone, by admins only."
    )


class VersionCreateSerializer(_ContentBody):
    """A new version: what is left out stays, or all of an old one by its number."""

    title = serializers.CharField(max_length=80, required=False)
    script = serializers.CharField(trim_whitespace=False, required=False)
    restore = serializers.IntegerField(required=False, min_value=1, help_text="Bring this version back.")
    teams = serializers.ListField(child=serializers.CharField(), required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Only what was said."""
        return {name: value for name, value in attrs.items() if name in self.initial_data}


class OfferSerializer(serializers.Serializer[Any]):
    """Nothing needs to be said."""


class DifferenceSerializer(serializers.Serializer[Any]):
    """One value that differs between two versions."""

    what = serializers.ChoiceField(choices=["text", "parameter", "field"])
    name = serializers.CharField()
    before = serializers.CharField()
    after = serializers.CharField()


class VersionChangesSerializer(serializers.Serializer[Any]):
    """A version and what it says otherwise than the one before it, or than ``against``."""

    version = VersionSerializer()
    against = serializers.IntegerField(allow_null=True)
    values = DifferenceSerializer(many=True)
    script = serializers.ListField(child=serializers.CharField(), help_text="Unified diff, line by line.")


class TeamRetrySerializer(serializers.ModelSerializer[TeamRetry]):
    """A team's rules for failures."""

    team: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(slug_field="slug", read_only=True)

    class Meta:
        model = TeamRetry
        fields = ["team", "rules", "changed_at", "changed_by", "version"]


class TeamRetryBody(serializers.Serializer[Any]):
    """Lines such as retry exit 75; the first that matches decides."""

    rules = serializers.ListField(child=serializers.CharField(max_length=300), max_length=20)


def _teams(actor: Any, slugs: list[str]) -> list[Any]:
    """Teams by slug in which the actor keeps templates. Raises NotFound."""
    return [team_for(actor=actor, may="templates.manage", slug=slug) for slug in dict.fromkeys(slugs)]


def _content(body: dict[str, Any], base: Content | None = None) -> Content:
    names = ("title", "description", "script", "parameters", "defaults", "locked")
    found = {name: body[name] for name in names if name in body}
    if base is not None:
        found = {**{name: getattr(base, name) for name in names}, **found}
    return Content(**found)


class Templates(ListEndpoint):
    """Job templates."""

    rights = {"GET": "templates.view", "POST": "templates.manage"}
    serializer_class = TemplateSerializer
    sorts = {"title": "title", "name": "name"}
    query_parameters = frozenset({"retired"})

    def get_rows(self) -> Any:
        """Those on offer; with ``retired=1`` the others too."""
        wanted = self.request.query_params.get("retired", "0")
        if wanted not in ("0", "1"):
            raise BadQuery("retired: 0 or 1")
        rows = templates_seen_by(self.actor) if wanted == "1" else templates_visible_to(self.actor)
        return rows.prefetch_related("teams")

    def get_serializer_class(self) -> Any:
        """The body of a POST differs."""
        return TemplateCreateSerializer if self.request.method == "POST" else TemplateSerializer

    @extend_schema(responses={201: TemplateSerializer})
    def post(self, request: Request) -> Response:
        """Make a template with its first version (201)."""
        body = self.read_body(TemplateCreateSerializer)
        teams = _teams(self.actor, body["teams"])

        def effect() -> tuple[int, dict[str, Any], str]:
            template = template_create(
                actor=self.actor, name=body["name"], teams=teams, content=_content(body), why=body["why"]
            )
            return 201, dict(TemplateSerializer(template).data), f"/api/v1/templates/{template.name}"

        return idempotent(request, effect)


class TemplateDetail(Endpoint):
    """One template, by name or uid."""

    rights = {"GET": "templates.view"}
    serializer_class = TemplateSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Read; its ETag is for POST …/versions, and …/retire and …/offer take it."""
        template = template_for(actor=self.actor, may="templates.view", name=uid)
        return Response(TemplateSerializer(template).data, headers={"ETag": etag(template)})


class TemplateVersions(Endpoint):
    """A template's versions."""

    rights = {"GET": "templates.view", "POST": "templates.manage"}
    serializer_class = VersionSerializer

    def get_serializer_class(self) -> Any:
        """The body of a POST differs."""
        return VersionCreateSerializer if self.request.method == "POST" else VersionSerializer

    @extend_schema(operation_id="templates_versions_list")
    def get(self, request: Request, uid: str) -> Response:
        """Newest first, at most 200."""
        template = template_for(actor=self.actor, may="templates.view", name=uid)
        rows = template.versions.all()[:200]
        return Response({"results": VersionSerializer(rows, many=True).data, "next": None, "previous": None})

    @extend_schema(responses={201: TemplateSerializer})
    def post(self, request: Request, uid: str) -> Response:
        """A new version (201; 200 where nothing differs). If-Match required."""
        template = template_for(actor=self.actor, may="templates.manage", name=uid)
        body = self.read_body(VersionCreateSerializer)
        version = expected_version(request)
        number = template.number
        if "restore" in body:
            if others := sorted(set(body) - {"restore", "why"}):
                raise InvalidInput(f"restore brings a whole version back: leave out {', '.join(others)}")
            template_restore(
                actor=self.actor,
                template=template,
                number=body["restore"],
                why=body.get("why", ""),
                expected_version=version,
            )
        else:
            template_edit(
                actor=self.actor,
                template=template,
                content=_content(body, content_of(template)),
                teams=_teams(self.actor, body["teams"]) if "teams" in body else None,
                why=body.get("why", ""),
                expected_version=version,
            )
        found = template_for(actor=self.actor, may="templates.view", name=template.uid)
        status = 201 if found.number != number else 200
        return Response(TemplateSerializer(found).data, status=status, headers={"ETag": etag(found)})


class TemplateVersion(Endpoint):
    """One version, and what it changed."""

    rights = {"GET": "templates.view"}
    serializer_class = VersionChangesSerializer
    query_parameters = frozenset({"against"})

    def get(self, request: Request, uid: str, number: int) -> Response:
        """Compared with the one before it, or with ``against``."""
        template = template_for(actor=self.actor, may="templates.view", name=uid)
        version = version_for(template, number)
        asked = request.query_params.get("against", "")
        if asked and not (asked.isdecimal() and len(asked) < 9):
            raise BadQuery("against: the number of a version")
        other = version_for(template, int(asked)) if asked else template.versions.filter(number=number - 1).first()
        changes = content_changes(content_of(other), content_of(version)) if other else None
        values = [
            {"what": c.kind, "name": c.name, "before": c.before, "after": c.after}
            for c in (changes.values if changes else [])
        ]
        body = {
            "version": VersionSerializer(version).data,
            "against": other.number if other else None,
            "values": values,
            "script": [line for _kind, line in changes.script] if changes else [],
        }
        return Response(body)


class TemplateOffer(Endpoint):
    """Retire a template, or offer it again."""

    rights = {"POST": "templates.manage"}
    serializer_class = OfferSerializer
    is_offered = False

    @extend_schema(responses=TemplateSerializer)
    def post(self, request: Request, uid: str) -> Response:
        """Its jobs keep it; new ones get it only while it is offered. An If-Match that is sent must be the newest."""
        template = template_for(actor=self.actor, may="templates.manage", name=uid)
        self.read_body(OfferSerializer)
        version = expected_version(request) if request.headers.get("If-Match") else None
        template_offer(actor=self.actor, template=template, is_offered=self.is_offered, expected_version=version)
        return Response(TemplateSerializer(template).data, headers={"ETag": etag(template)})


class TeamRetries(Endpoint):
    """A team's rules for failures, where neither job nor template says it."""

    rights = {"GET": "templates.view", "PUT": "templates.manage"}
    serializer_class = TeamRetrySerializer

    def get_serializer_class(self) -> Any:
        """The body of a PUT differs."""
        return TeamRetryBody if self.request.method == "PUT" else TeamRetrySerializer

    def get(self, request: Request, slug: str) -> Response:
        """Read; version 0 where none are set."""
        row = team_retry(team_for(actor=self.actor, may="templates.view", slug=slug))
        return Response(TeamRetrySerializer(row).data, headers={"ETag": etag(row)})

    @extend_schema(responses=TeamRetrySerializer)
    def put(self, request: Request, slug: str) -> Response:
        """Set them for jobs submitted from now on. If-Match required."""
        team = team_for(actor=self.actor, may="templates.manage", slug=slug)
        rules = self.read_body(TeamRetryBody)["rules"]
        row = team_retry_set(actor=self.actor, team=team, rules=rules, expected_version=expected_version(request))
        return Response(TeamRetrySerializer(row).data, headers={"ETag": etag(row)})
