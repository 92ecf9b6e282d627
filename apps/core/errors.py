"""Refusals: each names what is wrong, where, and what a person can do; pages and the API show the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One thing wrong with one input; ``pointer`` is a JSON pointer ("/nodes") or "" for the whole."""

    pointer: str
    code: str
    detail: str


class Refusal(Exception):
    """The request was understood and declined; nothing was changed.

    ``status`` is the HTTP status, ``code`` a stable CamelCase name (the class name unless set),
    ``detail`` a sentence for a person, ``problems`` the fields at fault.
    """

    status = 409
    retryable = False

    def __init__(
        self, detail: str, *, code: str = "", problems: Sequence[FieldProblem] = (), retry_after_s: int | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).__name__
        self.problems = tuple(problems)
        self.retry_after_s = retry_after_s


class Elsewhere(Exception):
    """What was asked for lies at another address of the portal; the page answers with a redirect."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


class NotFound(Refusal):
    """The object does not exist, or not for this actor: the two look the same on purpose."""

    status = 404


class Forbidden(Refusal):
    """The actor lacks the right altogether."""

    status = 403


class InvalidInput(Refusal):
    """Input that can never be accepted as written."""

    status = 422


class BadQuery(Refusal):
    """An unknown query parameter or a value it cannot take."""

    status = 400


class BodyTooLarge(Refusal):
    """More bytes than any request of this portal needs."""

    status = 413


class StaleVersion(Refusal):
    """If-Match names another version than the stored one."""

    status = 412


class VersionRequired(Refusal):
    """A change to a shared object came without If-Match."""

    status = 428


class TransitionConflict(Refusal):
    """The object is in a state that does not allow this, or changed while we looked."""

    retryable = True


class KeyReused(Refusal):
    """The same Idempotency-Key came with another body."""

    status = 422


class KeyInFlight(Refusal):
    """The first request with this Idempotency-Key has not finished."""

    status = 409
    retryable = True


class KeyRequired(Refusal):
    """A request that spends money came without Idempotency-Key."""

    status = 400


def field_refusal(pointer: str, detail: str, code: str = "invalid") -> InvalidInput:
    """An InvalidInput about one field."""
    return InvalidInput(detail, problems=[FieldProblem(pointer, code, detail)])
