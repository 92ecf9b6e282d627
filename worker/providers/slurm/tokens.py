"""JSON web tokens for slurmrestd: HS256 over Slurm's shared jwt_key, in plain Slurm's style and in AWS PCS's."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


#: A token is made anew when less than this part of its life is left, so that none ends while a call is under way.
RENEW_BELOW = 0.4


@dataclass(frozen=True, slots=True)
class PosixIdentity:
    """What a token of AWS PCS says of its bearer beside the name."""

    uid: int
    gid: int
    gids: tuple[int, ...] = ()
    gecos: str = ""
    home: str = ""
    shell: str = "/bin/bash"


def mint_jwt(key: bytes, user: str, lifetime_s: int, identity: PosixIdentity | None = None) -> str:
    """A token that lets its bearer act as ``user`` for ``lifetime_s`` seconds. Raises ValueError for empty input.

    With ``identity`` it carries POSIX ids, for a controller that looks nobody up.
    """
    if not key:
        raise ValueError("the JWT key is empty")
    if not user:
        raise ValueError("a Slurm token needs a user name")
    if lifetime_s <= 0:
        raise ValueError(f"a token's lifetime must be positive, not {lifetime_s} s")
    now = int(time.time())
    told: dict[str, Any] = {"exp": now + lifetime_s, "iat": now, "sun": user}
    if identity is not None:
        told |= {"uid": identity.uid, "gid": identity.gid, "id": _properties(user, identity)}
    header = _encode(json.dumps({"alg": "HS256", "typ": "JWT"}, separators=(",", ":")).encode())
    claims = _encode(json.dumps(told, separators=(",", ":")).encode())
    signature = hmac.new(key, f"{header}.{claims}".encode(), hashlib.sha256).digest()
    return f"{header}.{claims}.{_encode(signature)}"


def _properties(user: str, identity: PosixIdentity) -> Mapping[str, Any]:
    return {
        # AWS's description does not ask for it; Slurm 26.05 takes no identity without.
        "name": user,
        "gecos": identity.gecos or user,
        "dir": identity.home or f"/home/{user}",
        "shell": identity.shell,
        "gids": list(dict.fromkeys([identity.gid, *identity.gids])),
    }


class TokenMill:
    """Tokens of one cluster, made when they are asked for and kept in memory only, each for most of its life."""

    def __init__(self, lifetime_s: int, clock: Callable[[], float] = time.time) -> None:
        self.lifetime_s = lifetime_s
        self._clock = clock
        self._kept: dict[tuple[bytes, str, PosixIdentity | None], tuple[str, float]] = {}

    def __repr__(self) -> str:
        """No token and no key ever shows in a log."""
        return f"TokenMill({self.lifetime_s} s)"

    def token(self, key: bytes, user: str, identity: PosixIdentity | None = None) -> str:
        """One that lives for at least ``RENEW_BELOW`` of its life from now. Raises ValueError for empty input."""
        now = self._clock()
        kept = self._kept.get((key, user, identity))
        if kept is not None and kept[1] - now > self.lifetime_s * RENEW_BELOW:
            return kept[0]
        self._kept = {who: one for who, one in self._kept.items() if one[1] > now}
        made = mint_jwt(key, user, self.lifetime_s, identity)
        self._kept[key, user, identity] = (made, now + self.lifetime_s)
        return made


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
