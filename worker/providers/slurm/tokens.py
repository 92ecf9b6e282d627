"""JSON web tokens for slurmrestd: HS256 over Slurm's shared jwt_key."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from datetime import UTC, datetime


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def mint_jwt(key: bytes, user: str, lifetime_s: int) -> str:
    """A token that lets its bearer act as ``user`` for ``lifetime_s`` seconds. Raises ValueError for empty input."""
    if not key:
        raise ValueError("the JWT key is empty")
    if not user:
        raise ValueError("a Slurm token needs a user name")
    if lifetime_s <= 0:
        raise ValueError(f"a token's lifetime must be positive, not {lifetime_s} s")
    now = int(time.time())
    header = _encode(json.dumps({"alg": "HS256", "typ": "JWT"}, separators=(",", ":")).encode())
    claims = _encode(json.dumps({"exp": now + lifetime_s, "iat": now, "sun": user}, separators=(",", ":")).encode())
    signature = hmac.new(key, f"{header}.{claims}".encode(), hashlib.sha256).digest()
    return f"{header}.{claims}.{_encode(signature)}"


def expiry_of(token: str) -> datetime | None:
    """When the token ends, read without checking its signature; None when it does not say."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return datetime.fromtimestamp(float(claims["exp"]), tz=UTC)
    except (ValueError, KeyError, TypeError, OverflowError, OSError, binascii.Error):
        return None
