"""The only place where AWS error codes and botocore exceptions become our typed errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from botocore import exceptions as boto

from worker.providers import errors

SOURCE: Final = "aws"

#: AWS has not got the machines now; asking again later may succeed.
CAPACITY: Final = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientReservedInstancesCapacity",
        "ReservationCapacityExceeded",
        "UnfulfillableCapacity",
    }
)

#: A limit of the account or of its network, which a person has to raise or free.
QUOTA: Final = frozenset(
    {
        "AddressLimitExceeded",
        "AttachmentLimitExceeded",
        "FileSystemLimitExceeded",
        "InstanceLimitExceeded",
        "InsufficientFreeAddressesInSubnet",
        "MaxFleetCountExceeded",
        "MaxIOPSLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "NetworkInterfaceLimitExceeded",
        "PlacementGroupLimitExceeded",
        "PrivateIpAddressLimitExceeded",
        "ResourceCountExceeded",
        "ResourceLimitExceeded",
        "ResourceLimitExceededException",
        "SecurityGroupsPerInterfaceLimitExceeded",
        "ServiceLimitExceeded",
        "ServiceQuotaExceededException",
        "VcpuLimitExceeded",
        "VolumeLimitExceeded",
    }
)

#: We call too often.
THROTTLE: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottledException",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)

#: Credentials missing, wrong or expired, or an IAM policy that forbids the call.
AUTH: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "Blocked",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "NotAuthorized",
        "OptInRequired",
        "PendingVerification",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnauthorizedOperation",
        "UnrecognizedClientException",
    }
)

#: The thing exists already, is still used, or an idempotency token means something else.
CONFLICT: Final = frozenset(
    {
        "ConcurrentModification",
        "ConflictException",
        "DataRepositoryTaskExecuting",
        "DependencyViolation",
        "FileSystemAlreadyExists",
        "FileSystemInUse",
        "IdempotentInstanceTerminated",
        "IdempotentParameterMismatch",
        "IncompatibleParameterError",
        "IncorrectFileSystemLifeCycleState",
        "IncorrectInstanceState",
        "IncorrectState",
        "InvalidCapacityReservationState",
        "InvalidLaunchTemplateName.AlreadyExistsException",
        "InvalidNetworkInterface.InUse",
        "InvalidPlacementGroup.Duplicate",
        "InvalidPlacementGroup.InUse",
        "MountTargetConflict",
        "ResourceInUse",
        "ResourceInUseException",
    }
)

#: AWS broke or is away; the call may or may not have taken effect.
DOUBT: Final = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "ServerException",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "Unavailable",
    }
)

#: The endpoint does not have this call at all.
UNSUPPORTED: Final = frozenset({"InvalidAction", "UnknownOperationException", "UnsupportedCommandException"})

#: The request can never succeed as written. "Unsupported" is EC2's word for "not this type in this zone".
INVALID: Final = frozenset(
    {
        "BadRequest",
        "ClientException",
        "InvalidInput",
        "MissingInput",
        "MissingParameter",
        "NoSuchVersion",
        "UnknownParameter",
        "Unsupported",
        "UnsupportedAvailabilityZoneException",
        "UnsupportedOperation",
        "ValidationError",
        "ValidationException",
    }
)

_NOT_FOUND_ENDINGS: Final = (".NotFound", ".NotFoundException", ".Unknown")
_NOT_FOUND: Final = frozenset(
    {
        "DataRepositoryAssociationNotFound",
        "DataRepositoryTaskNotFound",
        "FileSystemNotFound",
        "MountTargetNotFound",
        "NoSuchEntity",
        "NoSuchResourceException",
        "ResourceNotFound",
        "ResourceNotFoundException",
    }
)

#: Answer of EC2 to a DryRun that would have succeeded.
DRY_RUN_PASSED: Final = "DryRunOperation"

#: No connection was made, so the call cannot have taken effect.
_NEVER_SENT: Final = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)

#: The call may have been received, but no usable answer came back.
_NO_ANSWER: Final = (
    boto.ConnectionClosedError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    boto.ReadTimeoutError,
    boto.ResponseStreamingError,
)

_NO_CREDENTIALS: Final = (
    boto.CredentialRetrievalError,
    boto.NoAuthTokenError,
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)

_BAD_REQUEST: Final = (
    boto.InvalidRegionError,
    boto.NoRegionError,
    boto.ParamValidationError,
    boto.UnknownEndpointError,
    boto.UnknownServiceError,
)


class CallBudgetSpent(Exception):
    """Another attempt of a read would end after the time one call may take."""


def class_of(code: str, status: int, message: str = "") -> type[errors.ProviderError]:
    """The error class for an AWS error code and HTTP status; pure, so that the table can be tested."""
    for names, kind in (
        (CAPACITY, errors.InsufficientCapacity),
        (QUOTA, errors.QuotaExceeded),
        (THROTTLE, errors.Throttled),
        (AUTH, errors.AccessDenied),
        (CONFLICT, errors.Conflict),
        (DOUBT, errors.Unavailable),
        (UNSUPPORTED, errors.Unsupported),
        (INVALID, errors.InvalidRequest),
        (_NOT_FOUND, errors.NotFound),
    ):
        if code in names:
            return kind
    if code.endswith(_NOT_FOUND_ENDINGS):
        return errors.NotFound
    # EC2 has no code of its own for "attached": DeleteNetworkInterface answers InvalidParameterValue with this text.
    if code == "InvalidParameterValue" and "currently in use" in message:
        return errors.Conflict
    if status == 429:
        return errors.Throttled
    if status >= 500:
        return errors.Unavailable
    # botocore puts the bare HTTP status where a body held no AWS error (a proxy's page, an empty body).
    if code.isdigit():
        return errors.AccessDenied if code in ("401", "403") else errors.Unavailable
    if code.startswith("Invalid") or ".Malformed" in code:
        return errors.InvalidRequest
    return errors.Unknown


def translate(exc: Exception, operation: str) -> errors.ProviderError:
    """Our error for anything botocore raises while calling ``operation``; the message names the operation."""
    if isinstance(exc, errors.ProviderError):
        return exc
    if isinstance(exc, boto.ClientError):
        return _from_answer(exc, operation)
    name = type(exc).__name__
    kind: type[errors.ProviderError]
    if isinstance(exc, CallBudgetSpent):
        kind, text = errors.Unavailable, f"no usable answer within the time one call may take ({exc})"
    elif isinstance(exc, _NEVER_SENT):
        kind, text = errors.Unavailable, f"no connection, the call was not received ({exc})"
    elif isinstance(exc, _NO_ANSWER):
        kind, text = errors.Unavailable, f"no answer, the call may have taken effect ({exc})"
    elif name == "ResponseParserError":
        # Its module is private to botocore's parsers; an HTML page or a cut body ends here.
        kind, text = errors.Unavailable, "the answer is not AWS's (not readable as XML or JSON)"
    elif isinstance(exc, _NO_CREDENTIALS):
        kind, text = errors.AccessDenied, str(exc)
    elif isinstance(exc, (*_BAD_REQUEST, ValueError)):
        kind, text = errors.InvalidRequest, str(exc)
    else:
        kind, text = errors.Unknown, str(exc)
    return kind(f"{operation}: {' '.join(text.split())}", source=SOURCE, code=name)


def _from_answer(exc: boto.ClientError, operation: str) -> errors.ProviderError:
    error = exc.response.get("Error", {})
    meta = exc.response.get("ResponseMetadata", {})
    code = str(error.get("Code", ""))
    message = str(error.get("Message", "")) or "no message"
    status = int(meta.get("HTTPStatusCode", 0) or 0)
    kind = class_of(code, status, message)
    return kind(f"{operation}: {message}", source=SOURCE, code=code, request_id=str(meta.get("RequestId", "")))


def refused_choices(refusals: Iterable[Mapping[str, object]]) -> errors.ProviderError:
    """The error of a CreateFleet that made nothing: lack of capacity in one choice outweighs what others lack.

    A choice that can never work is told only where no other was short of machines.
    """
    found = [
        class_of(code, 0, message)(f"CreateFleet: {message}", source=SOURCE, code=code)
        for code, message in ((str(r.get("ErrorCode", "")), str(r.get("ErrorMessage", ""))) for r in refusals)
    ]
    short = [e for e in found if isinstance(e, errors.InsufficientCapacity)]
    if short:
        text = "; ".join(dict.fromkeys(e.message.removeprefix("CreateFleet: ") for e in short))
        return errors.InsufficientCapacity(f"CreateFleet: {text}", source=SOURCE, code=short[0].code)
    if found:
        return found[0]
    return errors.Unknown("CreateFleet: no instance was made and no reason given", source=SOURCE, code="EmptyFleet")


#: A zone's name as EC2 writes it in its sentences.
_ZONE: Final = re.compile(r"\b[a-z]{2}(?:-[a-z]+)+-\d+(?:-[a-z]{3}-\d)?[a-z]\b")


def zones_named(message: str) -> tuple[str, ...]:
    """The zones that a refusal names as ones to choose; not the one it refuses."""
    advice = message.partition("choosing ")[2] or message.partition("launching in ")[2]
    return tuple(dict.fromkeys(_ZONE.findall(advice)))


def code_of(exc: boto.ClientError) -> str:
    """AWS's own code of a refused call."""
    return str(exc.response.get("Error", {}).get("Code", ""))
