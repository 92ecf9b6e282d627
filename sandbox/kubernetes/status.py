"""Refusals of the pretend API server as the Status objects that clients of Kubernetes read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

Object = dict[str, Any]

#: Words of a cause by its reason, where the message does not bring its own.
_CAUSES = {
    "FieldValueRequired": "Required value",
    "FieldValueInvalid": "Invalid value",
    "FieldValueNotSupported": "Unsupported value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueTypeInvalid": "Invalid value",
    "FieldValueTooLong": "Too long",
}


@dataclass(frozen=True)
class Cause:
    """One thing wrong with an object: the path of the field, the reason's code and the detail in words."""

    field: str
    reason: str
    detail: str = ""

    @property
    def message(self) -> str:
        """The reason in words, with the detail."""
        words = _CAUSES.get(self.reason, self.reason)
        return f"{words}: {self.detail}" if self.detail else words

    def view(self) -> Object:
        """As a Status lists it."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


class ApiError(Exception):
    """A request that the server refuses: an HTTP code, Kubernetes' reason, a message and details."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Object | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})
        self.retry_after_s = retry_after_s
        self.metadata: Object = {}
        if retry_after_s is not None:
            self.details["retryAfterSeconds"] = retry_after_s

    def status(self) -> Object:
        """The body of the answer."""
        told: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": dict(self.metadata),
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            told["details"] = self.details
        return told


def _qualified(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource


def _details(name: str, group: str, kind: str, **more: Any) -> Object:
    told: Object = {"name": name, "kind": kind, **more}
    if group:
        told["group"] = group
    return told


def not_found(resource: str, group: str, name: str) -> ApiError:
    """404: no object of that name."""
    return ApiError(
        404,
        "NotFound",
        f'{_qualified(resource, group)} "{name}" not found',
        details=_details(name, group, resource),
    )


def no_such_path() -> ApiError:
    """404: the server has no such resource."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: str, group: str, name: str) -> ApiError:
    """409: an object of that name is there."""
    return ApiError(
        409,
        "AlreadyExists",
        f'{_qualified(resource, group)} "{name}" already exists',
        details=_details(name, group, resource),
    )


def conflict(resource: str, group: str, name: str, why: str = "", causes: Sequence[Object] = ()) -> ApiError:
    """409: the object is not as the request supposes."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    more = {"causes": list(causes)} if causes else {}
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {_qualified(resource, group)} "{name}": {why}',
        details=_details(name, group, resource, **more),
    )


def invalid(kind: str, group: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """422: the object breaks its schema or a rule of its kind, with one cause a field."""
    said = [f"{cause.field}: {cause.message}" for cause in causes]
    words = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    return ApiError(
        422,
        "Invalid",
        f'{_qualified(kind, group)} "{name}" is invalid: {words}',
        details=_details(name, group, kind, causes=[cause.view() for cause in causes]),
    )


def bad_request(message: str) -> ApiError:
    """400: the request itself makes no sense."""
    return ApiError(400, "BadRequest", message)


def forbidden(resource: str, group: str, name: str, why: str) -> ApiError:
    """403: not allowed to this user, or not now."""
    target = f'{_qualified(resource, group)} "{name}"' if name else _qualified(resource, group)
    return ApiError(403, "Forbidden", f"{target} is forbidden: {why}", details=_details(name, group, resource))


def unauthorized() -> ApiError:
    """401: no token, or none we know."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def gone(message: str) -> ApiError:
    """410: the history asked for has been compacted away."""
    return ApiError(410, "Expired", message)


def method_not_allowed() -> ApiError:
    """405: the resource has no such verb."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media(message: str) -> ApiError:
    """415: a body in a form that the resource does not take."""
    return ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)


def too_many_requests(retry_after_s: int) -> ApiError:
    """429: come back later."""
    return ApiError(
        429,
        "TooManyRequests",
        "the server has received too many requests and has asked us to try again later",
        retry_after_s=retry_after_s,
    )


def internal(message: str) -> ApiError:
    """500: something broke inside."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")


def success(resource: str, group: str, name: str, uid: str) -> Object:
    """What a delete that removed the object at once answers."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": _details(name, group, resource, uid=uid),
    }
