"""Who calls: the access key of a signed request, checked as AWS checks it."""

from __future__ import annotations

import hmac
import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.sts.models import sts_backends
from werkzeug.wrappers import Request

from sandbox.aws.errors import AwsError
from sandbox.aws.options import ACCESS_KEY_ID, ACCOUNT_ID, SECRET_ACCESS_KEY

_AUTHORIZATION: Final = re.compile(
    r"^AWS4-HMAC-SHA256 Credential=(?P<key>[A-Za-z0-9]+)/(?P<date>\d{8})/(?P<region>[a-z0-9-]+)/(?P<service>[a-z0-9-]+)"
    r"/aws4_request, ?SignedHeaders=(?P<headers>[a-z0-9;-]+), ?Signature=(?P<signature>[0-9a-f]{64})$"
)


@dataclass(frozen=True)
class Signature:
    """The parts of an Authorization header, version 4."""

    access_key_id: str
    region: str
    service: str
    headers: tuple[str, ...]
    value: str


def path_as_sent(request: Request) -> str:
    """The path with the client's own escapes: an ARN in it holds slashes that are no separators."""
    raw = str(request.environ.get("RAW_URI") or request.environ.get("REQUEST_URI") or "")
    return urlsplit(raw).path if raw.startswith("/") else quote(request.path)


def signature_of(request: Request) -> Signature | None:
    """The parts of the request's signature, or None for an unsigned request."""
    found = _AUTHORIZATION.match(request.headers.get("Authorization", ""))
    if found is None:
        return None
    return Signature(
        found["key"], found["region"], found["service"], tuple(found["headers"].split(";")), found["signature"]
    )


def secret_of(access_key_id: str) -> tuple[str, str] | None:
    """Secret and session token of a key we know: the fixed one, or one that AssumeRole gave out."""
    if access_key_id == ACCESS_KEY_ID:
        return SECRET_ACCESS_KEY, ""
    for backend in sts_backends[ACCOUNT_ID].values():
        role: Any = backend.get_assumed_role_from_access_key(access_key_id)
        if role is not None:
            return str(role.secret_access_key), str(role.session_token)
    return None


def principal_of(access_key_id: str) -> str:
    """The ARN that access entries name the owner of a key by: a user, or the role that was assumed; "" if unknown."""
    if access_key_id == ACCESS_KEY_ID:
        return f"arn:aws:iam::{ACCOUNT_ID}:user/quarterdeck"
    for backend in sts_backends[ACCOUNT_ID].values():
        role: Any = backend.get_assumed_role_from_access_key(access_key_id)
        if role is not None:
            return str(role.role_arn)
    return ""


#: Who makes the call that is being answered.
CALLER: ContextVar[str] = ContextVar("caller", default="")


def check(request: Request, signed: Signature) -> None:
    """Raises ``AwsError`` for an unknown key or a wrong secret, each in the words of its service."""
    known = secret_of(signed.access_key_id)
    if known is None:
        raise _unknown_key(signed.service)
    secret, session_token = known
    if session_token and request.headers.get("X-Amz-Security-Token") != session_token:
        raise _unknown_key(signed.service)
    if not hmac.compare_digest(_expected(request, signed, secret), signed.value):
        raise _wrong_secret(signed.service)


def _unknown_key(service: str) -> AwsError:
    if service == "ec2":
        return AwsError("AuthFailure", "AWS was not able to validate the provided access credentials", status=401)
    if service == "sts":
        message = "The security token included in the request is invalid."
        return AwsError("InvalidClientTokenId", message, status=403)
    return AwsError("UnrecognizedClientException", "The security token included in the request is invalid.")


def _wrong_secret(service: str) -> AwsError:
    if service == "ec2":
        return AwsError("AuthFailure", "AWS was not able to validate the provided access credentials", status=401)
    message = (
        "The request signature we calculated does not match the signature you provided. "
        "Check your AWS Secret Access Key and signing method."
    )
    code = "SignatureDoesNotMatch" if service == "sts" else "InvalidSignatureException"
    return AwsError(code, message, status=403)


def _expected(request: Request, signed: Signature, secret: str) -> str:
    url = f"http://{request.host}{path_as_sent(request)}"
    if request.query_string:
        url += f"?{request.query_string.decode()}"
    headers = {name: request.headers[name] for name in signed.headers if name in request.headers}
    again: Any = AWSRequest(method=request.method, url=url, headers=headers, data=request.get_data())
    again.context["timestamp"] = request.headers.get("X-Amz-Date", "")
    if "X-Amz-Content-SHA256" in request.headers and "X-Amz-Content-SHA256" not in again.headers:
        again.headers["X-Amz-Content-SHA256"] = request.headers["X-Amz-Content-SHA256"]
    kind = S3SigV4Auth if signed.service == "s3" else SigV4Auth
    signer: Any = kind(Credentials(signed.access_key_id, secret), signed.service, signed.region)
    to_sign = signer.string_to_sign(again, signer.canonical_request(again))
    return str(signer.signature(to_sign, again))
