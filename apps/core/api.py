"""Base classes of the API: declared rights, problem+json, strict queries, cursor lists, idempotent creation, ETags."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import structlog
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, models, transaction
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django_filters import FilterSet
from rest_framework import exceptions, serializers, status
from rest_framework.generics import GenericAPIView
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import errors, pagination
from apps.core.actors import actor_of
from apps.core.filters import UNKNOWN_CHOICE
from apps.core.models import IdempotencyRecord, Recorded

log = structlog.get_logger(__name__)
PROBLEM = "application/problem+json"
_STANDARD_PARAMETERS = {"limit", "cursor", "sort", "with_count", "format"}


def problem(
    request: Any,
    status_code: int,
    code: str,
    detail: str,
    *,
    title: str = "",
    problems: tuple[errors.FieldProblem, ...] = (),
    retryable: bool = False,
) -> Response:
    """An RFC 9457 answer with our members ``code``, ``request_id``, ``retryable`` and ``errors``."""
    body: dict[str, Any] = {
        "type": f"urn:quarterdeck:problem:{code}",
        "title": title or code,
        "status": status_code,
        "detail": str(detail),
        "instance": request.path,
        "code": code,
        "request_id": getattr(request, "request_id", "") or getattr(request._request, "request_id", ""),
        "retryable": retryable,
    }
    if problems:
        body["errors"] = [{"pointer": p.pointer, "code": p.code, "detail": p.detail} for p in problems]
    return Response(body, status=status_code, content_type=PROBLEM)


def _flatten(detail: Any, pointer: str = "") -> list[errors.FieldProblem]:
    """DRF's nested validation messages as a flat list of field problems."""
    if isinstance(detail, Mapping):
        found: list[errors.FieldProblem] = []
        for name, inner in detail.items():
            found += _flatten(inner, pointer if name == "non_field_errors" else f"{pointer}/{name}")
        return found
    if isinstance(detail, list):
        if all(not isinstance(inner, Mapping | list) for inner in detail):
            return [errors.FieldProblem(pointer, getattr(i, "code", "invalid"), str(i)) for i in detail]
        found = []
        for index, inner in enumerate(detail):
            found += _flatten(inner, f"{pointer}/{index}")
        return found
    return [errors.FieldProblem(pointer, getattr(detail, "code", "invalid"), str(detail))]


#: DRF's errors that speak of "this value" without saying which.
_NAMELESS = frozenset({"min_value", "max_value", "min_length", "max_length"})


def _named(found: errors.FieldProblem) -> errors.FieldProblem:
    """The problem with the field's name before words that do not name it."""
    name = found.pointer.rpartition("/")[2]
    if found.code not in _NAMELESS or not name:
        return found
    return errors.FieldProblem(found.pointer, found.code, f"{name}: {found.detail}")


def problem_handler(error: Exception, context: dict[str, Any]) -> HttpResponseBase | None:
    """DRF's exception handler: everything expected becomes problem+json, the rest stays a logged 500."""
    request = context["request"]
    response: Response
    if isinstance(error, errors.Refusal):
        response = problem(
            request, error.status, error.code, error.detail, problems=error.problems, retryable=error.retryable
        )
        if error.retry_after_s is not None:
            response["Retry-After"] = str(error.retry_after_s)
    elif isinstance(error, Http404):
        response = problem(request, 404, "NotFound", "There is no such object, or it is not yours to see.")
    elif isinstance(error, PermissionDenied):
        response = problem(request, 403, "Forbidden", "Your roles or this token's scopes do not include this.")
    elif isinstance(error, exceptions.ValidationError):
        fields = _flatten(error.detail)
        detail = "; ".join(f"{p.pointer or '/'}: {p.detail}" for p in fields[:5])
        response = problem(request, 422, "InvalidInput", detail, problems=tuple(_named(p) for p in fields))
    elif isinstance(error, exceptions.APIException):
        code = {
            401: "NotAuthenticated",
            403: "Forbidden",
            404: "NotFound",
            405: "MethodNotAllowed",
            400: "MalformedRequest",
            415: "UnsupportedMediaType",
            406: "NotAcceptable",
            429: "TooManyRequests",
        }.get(error.status_code, type(error).__name__)
        response = problem(request, error.status_code, code, str(error.detail), retryable=error.status_code == 429)
        if error.status_code == 401:
            response["WWW-Authenticate"] = 'Bearer realm="quarterdeck"'
        wait = getattr(error, "wait", None)
        if wait is not None:
            response["Retry-After"] = str(int(wait) + 1)
    else:
        log.exception("api error", path=request.path)
        response = problem(request, 500, "InternalError", "Something broke on our side; the request id finds it.")
    return response


class Endpoint(GenericAPIView[Any]):
    """One address of the API. ``rights`` maps each allowed method to the right it takes.

    ``query_parameters`` names the parameters this address knows besides filters; others are a 400.
    """

    rights: ClassVar[Mapping[str, str]] = {}
    query_parameters: ClassVar[frozenset[str]] = frozenset()
    filterset_class: ClassVar[type[FilterSet] | None] = None
    serializer_class: Any = serializers.Serializer
    queryset = IdempotencyRecord.objects.none()  # real rows come from selectors only

    @property
    def actor(self) -> Any:
        """Whoever asks: a teams.permissions.Actor, which core may not name."""
        return actor_of(self.request)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, authorise, throttle; then refuse unknown query parameters by name."""
        # DRF reads the body as a stream, past Django's own limit: refused before it is read.
        length = request.META.get("CONTENT_LENGTH") or "0"
        if length.isdigit() and int(length) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise errors.BodyTooLarge(f"at most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE:,} bytes in one request")
        super().initial(request, *args, **kwargs)
        known = set(self.query_parameters) | {"format"}
        if isinstance(self, ListEndpoint) and request.method == "GET":
            known |= _STANDARD_PARAMETERS
            if self.filterset_class is not None:
                known |= set(self.filterset_class.base_filters)
        unknown = sorted(set(request.query_params) - known)
        if unknown:
            names = ", ".join(sorted(known - {"format"})) or "none"
            raise errors.BadQuery(f"unknown query parameter {', '.join(unknown)}; known here: {names}")

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Add rate-limit headers; API answers are never cached by proxies."""
        response = super().finalize_response(request, response, *args, **kwargs)
        for name, value in getattr(request, "rate_limit_headers", {}).items():
            response[name] = value
        response.headers.setdefault("Cache-Control", "private, no-cache")
        return response

    def read_body(self, serializer: type[serializers.BaseSerializer[Any]]) -> dict[str, Any]:
        """The validated body; unknown members are refused by name."""
        data = self.request.data
        if not isinstance(data, Mapping):
            raise errors.InvalidInput("the body must be a JSON object")
        parsed = serializer(data=data, context=self.get_serializer_context())
        known = set(getattr(parsed, "fields", {}))
        unknown = sorted(set(data) - known)
        if unknown:
            raise errors.InvalidInput(
                f"unknown member {', '.join(unknown)}; known: {', '.join(sorted(known))}",
                problems=[errors.FieldProblem(f"/{name}", "unknown", "unknown member") for name in unknown],
            )
        parsed.is_valid(raise_exception=True)
        return dict(parsed.validated_data)


class CursorShape(BasePagination):
    """Tells OpenAPI the shape of our lists; the cutting itself is core.pagination's."""

    def get_paginated_response_schema(self, schema: Any) -> Any:
        """``{results, next, previous}``, and ``count`` when asked."""
        link = {"type": "string", "nullable": True}
        return {
            "type": "object",
            "required": ["results", "next", "previous"],
            "properties": {"results": schema, "next": link, "previous": link, "count": {"type": "integer"}},
        }


class ListEndpoint(Endpoint):
    """GET answers one cursor page ``{results, next, previous}``.

    ``sorts`` maps the public sort names to model columns; the first is the default.
    """

    sorts: ClassVar[Mapping[str, str]] = {"-created_at": "-created_at"}
    pagination_class = CursorShape

    def get_rows(self) -> models.QuerySet[Any]:
        """The rows this actor may see; subclasses override."""
        raise AssertionError(f"{type(self).__name__} has no get_rows")

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One page."""
        rows = self.get_rows()
        filters: dict[str, Any] = {}
        if self.filterset_class is not None:
            rows, filters = filtered(self.filterset_class, request.query_params, rows, request=request)
        return self.page(request, rows, filters)

    def page(self, request: Request, rows: models.QuerySet[Any], filters: Mapping[str, Any]) -> Response:
        """Sort, cut and serialise."""
        sort = request.query_params.get("sort") or next(iter(self.sorts))
        if sort not in self.sorts:
            raise errors.BadQuery(f"sort: {sort} is not one of {', '.join(self.sorts)}")
        try:
            limit = int(request.query_params.get("limit", "50"))
        except ValueError:
            raise errors.BadQuery("limit: must be a whole number") from None
        column = self.sorts[sort]
        order = [column, "-id" if column.startswith("-") else "id"]
        digest = pagination.list_digest(request.path, dict(filters), order)
        found = pagination.window(
            rows, order=order, limit=limit, cursor=request.query_params.get("cursor"), digest=digest
        )
        body: dict[str, Any] = {
            "results": self.get_serializer_class()(found.rows, many=True, context=self.get_serializer_context()).data,
            "next": self._link(request, found.next),
            "previous": self._link(request, found.previous),
        }
        if request.query_params.get("with_count") == "1":
            body["count"] = rows.count()
        return Response(body)

    @staticmethod
    def _link(request: Request, cursor: str | None) -> str | None:
        if cursor is None:
            return None
        query = request._request.GET.copy()
        query["cursor"] = cursor
        return f"{request.path}?{query.urlencode()}"


def filtered(
    filter_class: type[FilterSet],
    parameters: Any,
    rows: models.QuerySet[Any],
    *,
    request: Any = None,
    labels: Mapping[str, Any] | None = None,
) -> tuple[models.QuerySet[Any], dict[str, Any]]:
    """Apply a FilterSet strictly: a value it cannot take is a BadQuery that names parameter and value.

    With ``labels``, the page's words for its filters, the refusal speaks in the page's words
    instead of the API's.
    """
    given = filter_class(parameters, queryset=rows, request=request)
    if not given.is_valid():
        found = given.form.errors.as_data()
        parts = [
            f"{name if labels is None else labels.get(name, name)}: "
            + " ".join(_words(error, given.form.fields[name], labels is not None) for error in problems)
            for name, problems in found.items()
        ]
        raise errors.BadQuery("; ".join(parts))
    used = {name: parameters.getlist(name) for name in given.filters if parameters.get(name)}
    return given.qs, used


def _words(error: Any, field: Any, for_page: bool) -> str:
    """One filter's error as text; choices by their words on a page."""
    if for_page and error.code == UNKNOWN_CHOICE:
        known = ", ".join(str(word) for word in field.words.values())
        return _("%(value)s is not known here; choose from: %(known)s") % {
            "value": error.params["value"],
            "known": known,
        }
    return " ".join(error.messages)


def etag(obj: Recorded) -> str:
    """The strong ETag of an object's spec."""
    return f'"{obj.version}"'


def expected_version(request: Request) -> int:
    """The version If-Match names. Raises VersionRequired without the header, StaleVersion for nonsense."""
    header = request.headers.get("If-Match", "").strip()
    if not header:
        raise errors.VersionRequired("send If-Match with the ETag you read, so that no one's change is lost")
    bare = header.removeprefix("W/").strip('"')
    if not bare.isdecimal() or len(bare) > 18:
        raise errors.StaleVersion(f"If-Match {header} is not an ETag of this portal")
    return int(bare)


def idempotent(
    request: Request, effect: Callable[[], tuple[int, dict[str, Any], str]], *, required: bool = False
) -> Response:
    """Run ``effect`` once per Idempotency-Key; it returns (status, body, location).

    The record is written in the effect's own transaction, so either both exist or neither. A
    refusal leaves nothing behind: the key may be used again. A second request with the key waits
    on the unique row, then replays the first answer with ``Idempotent-Replayed: true``.
    Raises KeyRequired, KeyReused.
    """
    key = request.headers.get("Idempotency-Key", "").strip()
    if not key:
        if required:
            raise errors.KeyRequired("this request spends money: send an Idempotency-Key header (any unique text)")
        with transaction.atomic():
            code, body, location = effect()
        return _created(code, body, location, replayed=False)
    if len(key) > 200:
        raise errors.BadQuery("Idempotency-Key: at most 200 characters")
    actor = actor_of(request).key
    digest = hashlib.sha256(json.dumps(request.data, sort_keys=True, default=str).encode()).hexdigest()
    where = {"actor": actor, "method": request.method or "", "path": request.path[:300], "key": key}
    try:
        with transaction.atomic():
            record = IdempotencyRecord.objects.create(**where, body_digest=digest)
            code, body, location = effect()
            # The stored copy must survive JSON, and the first answer must equal every replay.
            body = json.loads(json.dumps(body, default=str))
            IdempotencyRecord.objects.filter(pk=record.pk).update(status=code, body=body, location=location)
        return _created(code, body, location, replayed=False)
    except IntegrityError:
        found = IdempotencyRecord.objects.filter(**where).first()
        if found is None:
            raise
    if found.body_digest != digest:
        raise errors.KeyReused("this Idempotency-Key was used with another body; use a new key for a new request")
    if not found.status:
        raise errors.KeyInFlight("the first request with this key is still running", retry_after_s=1)
    return _created(found.status, found.body, found.location, replayed=True)


def _created(code: int, body: dict[str, Any], location: str, *, replayed: bool) -> Response:
    response = Response(body, status=code)
    if location:
        response["Location"] = location
    if code == status.HTTP_202_ACCEPTED:
        response["Retry-After"] = "2"
    if replayed:
        response["Idempotent-Replayed"] = "true"
    if isinstance(body.get("version"), int):
        response["ETag"] = f'"{body["version"]}"'
    return response


def api_not_found(request: Any, rest: str = "") -> HttpResponse:
    """404 in problem+json for an address under /api/ that does not exist."""
    body = {
        "type": "urn:quarterdeck:problem:NotFound",
        "title": "NotFound",
        "status": 404,
        "detail": "There is no such address in this API.",
        "instance": request.path,
        "code": "NotFound",
        "request_id": getattr(request, "request_id", ""),
        "retryable": False,
    }
    return HttpResponse(json.dumps(body), status=404, content_type=PROBLEM)
