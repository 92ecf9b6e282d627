"""AWS's error answers: codes, wording and HTTP status, in the shape each of its protocols uses."""

from __future__ import annotations

import json
import uuid
from xml.sax.saxutils import escape

EC2 = "ec2"


class AwsError(Exception):
    """An error answer. EC2 answers 400 to most mistakes, 500 to a lack of capacity."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


class ConnectionCut(Exception):
    """The connection ends without an answer."""


class HtmlAnswer(Exception):
    """Something between client and AWS answers with a page."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTML page with status {status}")
        self.status = status


def insufficient_capacity(instance_type: str, zone: str, others: list[str]) -> AwsError:
    """No machines left, as EC2 words it; the status 500 is what makes SDKs repeat the call."""
    advice = (
        f" You can currently get {instance_type} capacity by not specifying an Availability Zone in your request "
        f"or choosing {', '.join(others)}."
        if others
        else ""
    )
    return AwsError(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested "
        f"({zone}). Our system will be working on provisioning additional capacity.{advice}",
        status=500,
    )


def vcpu_limit(limit: int) -> AwsError:
    """The account's on-demand vCPU quota is used up."""
    return AwsError(
        "VcpuLimitExceeded",
        f"You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the instance "
        "bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
    )


def token_mismatch() -> AwsError:
    """The same idempotency token with other parameters."""
    return AwsError(
        "IdempotentParameterMismatch",
        "The client token you have provided is associated with a resource that was requested with other parameters.",
    )


def token_terminated() -> AwsError:
    """The idempotency token of instances that are gone."""
    return AwsError(
        "IdempotentInstanceTerminated",
        "The client token you have provided is associated with a resource that is already deleted. "
        "Please use a different client token.",
    )


def invalid_action(action: str) -> AwsError:
    """The call does not exist here."""
    return AwsError("InvalidAction", f"The action {action or 'without a name'} is not valid for this web service.")


def rendered(error: AwsError, service: str) -> tuple[int, str, bytes]:
    """Status, content type and body of an error in the protocol of ``service`` (its signing name)."""
    request_id = str(uuid.uuid4())
    code, message = escape(error.code), escape(error.message)
    if service == "s3":
        body = f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>{request_id}</RequestId></Error>"
        return error.status, "application/xml", body.encode()
    if service not in (EC2, "sts", "cloudformation"):
        body = json.dumps({"__type": error.code, "code": error.code, "message": error.message})
        return error.status, "application/x-amz-json-1.1", body.encode()
    if service == EC2:
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
            f"<RequestID>{request_id}</RequestID></Response>"
        )
    else:
        kind = "Receiver" if error.status >= 500 else "Sender"
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<ErrorResponse><Error><Type>{kind}</Type><Code>{code}</Code><Message>{message}</Message></Error>"
            f"<RequestId>{request_id}</RequestId></ErrorResponse>"
        )
    return error.status, "text/xml;charset=UTF-8", body.encode()
