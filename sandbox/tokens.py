"""JSON web tokens as Slurm's auth/jwt takes them: HS256 over a shared key, the user in the claim ``sun``."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping


class BadToken(Exception):
    """The token is not one of ours: malformed, wrongly signed, expired or without a user."""


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def mint(key: bytes, user: str, lifetime_s: int, more: Mapping[str, object] | None = None) -> str:
    """A token for ``user`` that ends in ``lifetime_s`` seconds, with ``more`` claims."""
    now = int(time.time())
    header = _encode(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    claims = _encode(json.dumps({"exp": now + lifetime_s, "iat": now, "sun": user, **(more or {})}).encode())
    signature = hmac.new(key, f"{header}.{claims}".encode(), hashlib.sha256).digest()
    return f"{header}.{claims}.{_encode(signature)}"


def user_of(token: str, key: bytes) -> str:
    """The user a token was made for. Raises BadToken."""
    try:
        header, claims, signature = token.split(".")
        expected = hmac.new(key, f"{header}.{claims}".encode(), hashlib.sha256).digest()
        if not hmac.compare_digest(expected, _decode(signature)):
            raise BadToken("the signature does not match")
        if json.loads(_decode(header)).get("alg") != "HS256":
            raise BadToken("the algorithm is not HS256")
        body = json.loads(_decode(claims))
        if float(body["exp"]) <= time.time():
            raise BadToken("the token has expired")
        user = body.get("sun") or body.get("username")
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise BadToken(f"not a token: {error}") from None
    if not isinstance(user, str) or not user:
        raise BadToken("the token names no user")
    return user
