"""The errors every provider raises: one class a cause, each saying whether asking again can help."""

from __future__ import annotations


class ProviderError(Exception):
    """A call to an outside system did not do what was asked.

    ``retryable`` tells the engine whether the same call may succeed later without a person;
    ``source`` names the system ("aws", "slurm"), ``code`` is the vendor's own code or HTTP status,
    ``request_id`` the vendor's id of the call, where it gave one.
    """

    retryable = False

    def __init__(self, message: str, *, source: str = "", code: str = "", request_id: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.source = source
        self.code = code
        self.request_id = request_id

    def __str__(self) -> str:
        """The message, preceded by where it came from."""
        head = " ".join(part for part in (self.source, self.code) if part)
        return f"{head}: {self.message}" if head else self.message


class NotFound(ProviderError):
    """The thing does not exist (any more): success for a deletion."""


class Conflict(ProviderError):
    """The thing is in a state that forbids the call (name taken by another owner, still in use)."""

    retryable = True


class Throttled(ProviderError):
    """The system asks us to slow down."""

    retryable = True


class Unavailable(ProviderError):
    """No answer, a time-out, a broken answer or a 5xx: whether the call took effect is unknown."""

    retryable = True


class InsufficientCapacity(ProviderError):
    """The system has not got the machines now: a state to wait in, not a fault."""

    retryable = True


class QuotaExceeded(ProviderError):
    """An account limit (vCPUs, addresses, volumes) forbids it until a person raises the limit."""


class AccessDenied(ProviderError):
    """Our credentials are missing, wrong, expired or not allowed to do this."""


class InvalidRequest(ProviderError):
    """The request can never succeed as written."""


class Unsupported(ProviderError):
    """This version of the system cannot do this; the message says what a person can do instead."""


class Unknown(ProviderError):
    """The system answered something we have no rule for."""
