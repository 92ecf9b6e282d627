"""Bearer tokens of EKS: a presigned STS GetCallerIdentity in base64, read and, where the secret is known, verified."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

PREFIX: Final = "k8s-aws-v1."
HEADER: Final = "x-k8s-aws-id"
#: EKS takes a token this long after its date, whatever its X-Amz-Expires says.
LIFETIME_S: Final = 15 * 60
_SKEW_S: Final = 5 * 60

#: The secret key of an access key, None where it is unknown; of a role's also the session token that must come along.
Secrets = Callable[[str], "str | tuple[str, str] | None"]


class BadToken(Exception):
    """Not a token that this cluster takes; the message says why."""


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _signature(host: str, query: dict[str, str], cluster: str, secret: str) -> str:
    """The signature that a presigned GET of STS must carry, if its cluster header said ``cluster``."""
    day, region, service, _ = query["X-Amz-Credential"].split("/")[1:]
    signed = query["X-Amz-SignedHeaders"].split(";")
    headers = {"host": host, HEADER: cluster}
    canonical = "\n".join(
        (
            "GET",
            "/",
            "&".join(
                f"{quote(key, safe='-_.~')}={quote(value, safe='-_.~')}"
                for key, value in sorted(query.items())
                if key != "X-Amz-Signature"
            ),
            "".join(f"{name}:{headers[name]}\n" for name in signed),
            query["X-Amz-SignedHeaders"],
            hashlib.sha256(b"").hexdigest(),
        )
    )
    scope = f"{day}/{region}/{service}/aws4_request"
    to_sign = "\n".join(
        ("AWS4-HMAC-SHA256", query["X-Amz-Date"], scope, hashlib.sha256(canonical.encode()).hexdigest())
    )
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = _hmac(key, part)
    return _hmac(key, to_sign).hex()


def access_key_of(token: str, cluster: str, secrets: Secrets | None = None, now: float | None = None) -> str:
    """The access key that made a token for ``cluster``. Raises BadToken.

    The cluster's name is not in the URL: it is in a header that the signature covers, so that only who knows the
    secret can compare it. Without ``secrets`` the header must be signed, and its value is believed.
    """
    text = token.removeprefix(PREFIX)
    try:
        url = urlsplit(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
        query = dict(parse_qsl(url.query, keep_blank_values=True, strict_parsing=True))
        made_at = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        access_key, *scope = query["X-Amz-Credential"].split("/")
        signed = query["X-Amz-SignedHeaders"].split(";")
    except (ValueError, KeyError, binascii.Error) as error:
        raise BadToken(f"not a presigned URL: {error}") from None
    if token != token.rstrip("=") or query.get("Action") != "GetCallerIdentity" or len(scope) != 4:
        raise BadToken("the token is padded, or its URL does not ask for the caller's identity")
    if sorted(signed) != ["host", HEADER]:
        raise BadToken(f"the URL must sign the headers host and {HEADER} and no other")
    age_s = (time.time() if now is None else now) - made_at
    if age_s > LIFETIME_S or age_s < -_SKEW_S:
        raise BadToken("the token has expired" if age_s > 0 else "the token is from the future")
    if secrets is not None:
        secret = secrets(access_key)
        if secret is None:
            raise BadToken(f"no access key {access_key}")
        secret, session = secret if isinstance(secret, tuple) else (secret, "")
        if session and query.get("X-Amz-Security-Token") != session:
            raise BadToken("the session token is another than that of the access key")
        if not hmac.compare_digest(_signature(url.netloc, query, cluster, secret), query.get("X-Amz-Signature", "")):
            raise BadToken(f"the signature does not hold for the cluster {cluster!r}")
    return access_key
