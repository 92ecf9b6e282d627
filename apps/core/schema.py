"""OpenAPI of the code: every operation documents the problem answers it can give."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers


class FieldProblemSerializer(serializers.Serializer[Any]):
    """One field at fault."""

    pointer = serializers.CharField(help_text="JSON pointer into the body.")
    code = serializers.CharField()
    detail = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """RFC 9457 problem details."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    instance = serializers.CharField()
    code = serializers.CharField(help_text="Stable name of the refusal.")
    request_id = serializers.CharField()
    retryable = serializers.BooleanField()
    errors = FieldProblemSerializer(many=True, required=False)  # type: ignore[assignment]


_ALWAYS = {400: "Malformed or unknown query", 401: "Not authenticated", 403: "Not allowed", 429: "Too many requests"}
_OBJECT = {404: "No such object for this actor"}
_WRITE = {
    404: "No such object for this actor",
    409: "Not possible in this state",
    412: "If-Match is stale",
    413: "Body too large",
    415: "Not JSON",
    422: "Invalid input, or the key was used with another body",
    428: "If-Match is required",
}


class ProblemAutoSchema(AutoSchema):
    """Adds the problem answers to whatever the view declares."""

    def get_tags(self) -> list[str]:
        """Group by the first segment after the version."""
        parts = [p for p in self.path.removeprefix("/api/v1/").split("/") if p and not p.startswith("{")]
        return [parts[0] if parts else "api"]

    def _is_list_view(self, serializer: Any = None) -> bool:
        """Our lists are known by get_rows, and only their GET is one."""
        return self.method == "GET" and hasattr(self.view, "get_rows")

    def get_override_parameters(self) -> list[Any]:
        """Query parameters: the list's own, its filters, and what the view names."""
        view: Any = self.view
        names: list[Any] = [
            OpenApiParameter(name, str, OpenApiParameter.QUERY)
            for name in sorted(getattr(self.view, "query_parameters", ()))
        ]
        if self._is_list_view():
            names += [
                OpenApiParameter("limit", int, OpenApiParameter.QUERY, description="1 to 500, 50 unless told."),
                OpenApiParameter("cursor", str, OpenApiParameter.QUERY, description="From next or previous."),
                OpenApiParameter("sort", str, OpenApiParameter.QUERY, enum=list(view.sorts)),
                OpenApiParameter("with_count", str, OpenApiParameter.QUERY, enum=["0", "1"]),
            ]
            filters = view.filterset_class.base_filters if view.filterset_class else {}
            for name, found in filters.items():
                # Each is a value, or a pair of value and the word that pages show for it.
                values = [value if isinstance(value, str) else value[0] for value in found.extra.get("values") or ()]
                hint = f"One or several of {', '.join(values)}, separated by commas." if values else ""
                names.append(OpenApiParameter(name, str, OpenApiParameter.QUERY, description=hint))
        if self.method in ("PUT", "PATCH", "DELETE"):
            names.append(OpenApiParameter("If-Match", str, OpenApiParameter.HEADER, description="The ETag you read."))
        if self.method == "POST":
            names.append(OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER))
        return names

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        extra = dict(_ALWAYS)
        if "{" in self.path:
            extra |= _OBJECT
        if self.method not in ("GET", "HEAD"):
            extra |= _WRITE
        for code, text in extra.items():
            if str(code) not in bodies:
                bodies[str(code)] = self._get_response_for_code(  # type: ignore[no-untyped-call]
                    OpenApiResponse(ProblemSerializer, description=text),
                    str(code),
                    media_types=["application/problem+json"],
                    direction=direction,
                )
        return bodies
