"""The table from AWS codes and botocore exceptions to typed errors."""

from __future__ import annotations

import pytest
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from worker.providers import errors
from worker.providers.aws import errors as aws
from worker.providers.aws.clients import launch_config, reader_config
from worker.providers.aws.convert import USER_DATA_LIMIT_BYTES, encoded_user_data, part, tag_specifications
from worker.providers.values import CloudAccess, Credentials

TABLE = [
    ("InsufficientInstanceCapacity", 500, errors.InsufficientCapacity),
    ("ReservationCapacityExceeded", 400, errors.InsufficientCapacity),
    ("UnfulfillableCapacity", 400, errors.InsufficientCapacity),
    ("VcpuLimitExceeded", 400, errors.QuotaExceeded),
    ("InsufficientFreeAddressesInSubnet", 400, errors.QuotaExceeded),
    ("VolumeLimitExceeded", 400, errors.QuotaExceeded),
    ("RequestLimitExceeded", 503, errors.Throttled),
    ("ThrottlingException", 400, errors.Throttled),
    ("SomethingNew", 429, errors.Throttled),
    ("UnauthorizedOperation", 403, errors.AccessDenied),
    ("AuthFailure", 401, errors.AccessDenied),
    ("ExpiredToken", 400, errors.AccessDenied),
    ("OptInRequired", 403, errors.AccessDenied),
    ("InvalidPlacementGroup.Duplicate", 400, errors.Conflict),
    ("InvalidPlacementGroup.InUse", 400, errors.Conflict),
    ("IdempotentParameterMismatch", 400, errors.Conflict),
    ("IdempotentInstanceTerminated", 400, errors.Conflict),
    ("DependencyViolation", 400, errors.Conflict),
    ("InvalidPlacementGroup.Unknown", 400, errors.NotFound),
    ("InvalidInstanceID.NotFound", 400, errors.NotFound),
    ("InvalidLaunchTemplateName.NotFoundException", 400, errors.NotFound),
    ("InvalidNetworkInterfaceID.NotFound", 400, errors.NotFound),
    ("NoSuchResourceException", 400, errors.NotFound),
    ("InvalidParameterValue", 400, errors.InvalidRequest),
    ("InvalidInstanceID.Malformed", 400, errors.InvalidRequest),
    ("Unsupported", 400, errors.InvalidRequest),
    ("MissingParameter", 400, errors.InvalidRequest),
    ("InvalidAction", 400, errors.Unsupported),
    ("InternalError", 500, errors.Unavailable),
    ("Unavailable", 503, errors.Unavailable),
    ("SomethingNew", 502, errors.Unavailable),
    ("502", 502, errors.Unavailable),
    ("403", 403, errors.AccessDenied),
    ("404", 404, errors.Unavailable),
    ("SomethingNew", 400, errors.Unknown),
]


@pytest.mark.parametrize(("code", "status", "kind"), TABLE)
def test_codes(code: str, status: int, kind: type[errors.ProviderError]) -> None:
    answer = {
        "Error": {"Code": code, "Message": "words"},
        "ResponseMetadata": {"HTTPStatusCode": status, "RequestId": "req-1"},
    }
    found = aws.translate(boto.ClientError(answer, "RunInstances"), "RunInstances")
    assert type(found) is kind
    assert (found.source, found.code, found.request_id) == ("aws", code, "req-1")
    assert found.message == "RunInstances: words"


def test_no_code_is_in_two_sets() -> None:
    sets = [aws.CAPACITY, aws.QUOTA, aws.THROTTLE, aws.AUTH, aws.CONFLICT, aws.DOUBT, aws.UNSUPPORTED, aws.INVALID]
    assert sum(len(codes) for codes in sets) == len(frozenset().union(*sets))


def test_attached_interface_is_a_conflict() -> None:
    text = "Network interface 'eni-1' is currently in use."
    assert aws.class_of("InvalidParameterValue", 400, text) is errors.Conflict


URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("exc", "kind", "words"),
    [
        (boto.EndpointConnectionError(endpoint_url=URL), errors.Unavailable, "not received"),
        (boto.ConnectTimeoutError(endpoint_url=URL), errors.Unavailable, "not received"),
        (boto.ReadTimeoutError(endpoint_url=URL), errors.Unavailable, "may have taken effect"),
        (boto.ConnectionClosedError(endpoint_url=URL), errors.Unavailable, "may have taken effect"),
        (ResponseParserError("<html>"), errors.Unavailable, "not AWS's"),
        (aws.CallBudgetSpent("20 s"), errors.Unavailable, "20 s"),
        (boto.NoCredentialsError(), errors.AccessDenied, "credentials"),
        (boto.ParamValidationError(report="bad"), errors.InvalidRequest, "bad"),
        (boto.NoRegionError(), errors.InvalidRequest, "region"),
        (ValueError("Invalid endpoint: x"), errors.InvalidRequest, "Invalid endpoint"),
        (RuntimeError("odd"), errors.Unknown, "odd"),
    ],
)
def test_exceptions(exc: Exception, kind: type[errors.ProviderError], words: str) -> None:
    found = aws.translate(exc, "Call")
    assert type(found) is kind
    assert words in found.message
    assert "\n" not in found.message


def test_our_own_errors_pass() -> None:
    ours = errors.NotFound("x")
    assert aws.translate(ours, "Call") is ours


def test_each_risk_class_has_its_configuration() -> None:
    access = CloudAccess("us-east-2", Credentials("a", "b"), "http://127.0.0.1:5601")
    once, reader = launch_config(access), reader_config(access)
    assert once.retries["total_max_attempts"] == 1
    assert reader.retries == {"total_max_attempts": 3, "mode": "adaptive"}
    for config in (once, reader):
        assert config.connect_timeout + config.read_timeout <= 20
        assert config.proxies == {}
    assert launch_config(CloudAccess("us-east-2")).proxies is None


def test_secrets_are_not_printed() -> None:
    assert "top-secret" not in repr(CloudAccess("us-east-2", Credentials("a", "top-secret")))


def test_an_answer_without_its_part_is_no_answer() -> None:
    assert part({"Reservations": []}, "Reservations", "DescribeInstances") == []
    with pytest.raises(errors.Unavailable, match="Reservations"):
        part({"ResponseMetadata": {}}, "Reservations", "DescribeInstances")


def test_user_data_limit() -> None:
    assert encoded_user_data("x" * USER_DATA_LIMIT_BYTES)
    with pytest.raises(errors.InvalidRequest, match="16,385"):
        encoded_user_data("x" * (USER_DATA_LIMIT_BYTES + 1))
    with pytest.raises(errors.InvalidRequest):
        encoded_user_data("한" * (USER_DATA_LIMIT_BYTES // 2))


def test_tags_keep_one_order() -> None:
    assert tag_specifications({"b": "2", "a": "1"}, ["instance"]) == tag_specifications(
        {"a": "1", "b": "2"}, ["instance"]
    )
