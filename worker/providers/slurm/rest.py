"""One HTTP call to slurmrestd: headers, deadline, and every way an answer can be broken turned into a typed error."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import httpx2

from worker.providers import errors as e
from worker.providers.slurm import errors as se
from worker.providers.slurm.tokens import expiry_of
from worker.providers.slurm.versions import OLD, VERSIONS
from worker.providers.values import SchedulerAccess

#: Query parameters; a list becomes one parameter a value.
Params = Mapping[str, str | Sequence[str]]
#: What takes the place of an object of an answer.
Hook = Callable[[dict[str, Any]], Any]
CONNECT_TIMEOUT_S = 3.0
#: A body beyond this is no answer of a scheduler: 10,000 jobs take 84 MB.
MAX_BODY_BYTES = 512 * 1024 * 1024
#: Above Slurm's highest possible job id, so a call about it can touch nobody's job.
_NOBODYS_JOB = 4_000_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """One good answer; ``changed`` is False when the server said that nothing changed since the instant asked for."""

    body: Mapping[str, Any]
    size_bytes: int
    seconds: float
    changed: bool = True


def _checked(token: str) -> str:
    """The token as a header takes it. Raises AccessDenied without repeating it."""
    token = token.strip()
    if not token.isascii() or any(character.isspace() for character in token):
        raise e.AccessDenied(
            "the Slurm token holds spaces or characters that no token has", source=se.SOURCE, code="token"
        )
    return token


class Rest:
    """A connection to one slurmrestd; raises only provider errors and never repeats a call that changes something."""

    def __init__(
        self, access: SchedulerAccess, transport: httpx2.BaseTransport | None = None, versions: Sequence[str] = VERSIONS
    ) -> None:
        self.access = access
        headers = {"Accept": "application/json", "X-SLURM-USER-TOKEN": _checked(access.token)}
        # AWS PCS takes the user from the token's claims and wants no user-name header.
        if access.user_name and access.names_user:
            headers["X-SLURM-USER-NAME"] = access.user_name
        self._client = httpx2.Client(
            base_url=access.endpoint_url.rstrip("/"),
            headers=headers,
            timeout=httpx2.Timeout(access.timeout_s, connect=min(CONNECT_TIMEOUT_S, access.timeout_s)),
            transport=transport,
            follow_redirects=False,
            # A proxy from the environment would be shown the token.
            trust_env=False,
        )
        self._version = ""
        self._versions = tuple(versions)

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def renew(self, token: str) -> None:
        """Go on with another token of the same user. Raises AccessDenied for what cannot be one."""
        self._client.headers["X-SLURM-USER-TOKEN"] = _checked(token)
        self.access = replace(self.access, token=token)

    @property
    def version(self) -> str:
        """The REST version both sides speak, e.g. "v0.0.42"; found once by asking."""
        if not self._version:
            self._negotiate()
        return self._version

    @property
    def old(self) -> bool:
        """Whether the server speaks v0.0.38, whose shapes and manners differ from all later ones."""
        return self.version == OLD

    def instant(self, seconds: float) -> str:
        """A UNIX time as a query takes it: v0.0.40 and v0.0.41 read no bare number, v0.0.38 nothing else."""
        return str(int(seconds)) if self.old else f"uts{int(seconds)}"

    def _negotiate(self) -> Answer:
        for version in self._versions:
            try:
                answer = self._send("GET", f"/slurm/{version}/ping", None, None, about="queue")
            except se.NoSuchPath:
                continue
            except e.Unavailable as error:
                # v0.0.38 answers like this when it refuses the token too: the version is there all the same.
                if version == OLD and error.code == str(se.UNSPECIFIED):
                    self._version = version
                    raise self._explain(error) from None
                raise
            self._version = version
            return answer
        raise e.Unsupported(
            f"slurmrestd at {self.access.endpoint_url} speaks none of {self._versions[-1]} to {self._versions[0]}",
            source=se.SOURCE,
            code="version",
        )

    def ping(self) -> Answer:
        """Ask the controller through slurmrestd, negotiating the version when that was not done yet."""
        return self.call("GET", "/slurm/{v}/ping", about="queue") if self._version else self._negotiate()

    def call(
        self,
        method: str,
        path: str,
        *,
        about: str,
        params: Params | None = None,
        body: Mapping[str, Any] | None = None,
        hook: Hook | None = None,
    ) -> Answer:
        """Make one call; ``{v}`` in ``path`` becomes the version. ``about`` chooses between meanings of one code.

        ``hook`` is shown each object of the answer as it is read and says what stands in its place.
        """
        where = path.replace("{v}", self.version)
        try:
            return self._send(method, where, params, body, about=about, hook=hook)
        except e.Unavailable as error:
            raise self._explain(error) from None

    def _explain(self, error: e.Unavailable) -> e.ProviderError:
        """On v0.0.38, find out whether an answer without a reason meant a refused token.

        22.05 hangs up on a refused token, and its reads then say the same as when the controller is away.
        A cancel of a job that cannot exist tells them apart and changes nothing.
        """
        ambiguous = error.code in (str(se.UNSPECIFIED), str(se.ZERO_BYTES))
        if not ambiguous or self._version != OLD:
            return error
        try:
            self._send("DELETE", f"/slurm/{OLD}/job/{_NOBODYS_JOB}", None, None, about="job")
        except e.ProviderError as probe:
            if probe.code == str(se.ZERO_BYTES):
                return self._denied("the controller hangs up on this token")
        return error

    def _denied(self, detail: str) -> e.AccessDenied:
        ends_at = expiry_of(self.access.token)
        if ends_at is not None and ends_at <= datetime.now(tz=UTC):
            reason = f"the token expired at {ends_at:%Y-%m-%d %H:%M:%S} UTC"
        else:
            reason = "the token is for another user, made with another key, or expired by Slurm's clock"
        who = f" of user {self.access.user_name!r}" if self.access.user_name else ""
        return e.AccessDenied(f"Slurm refused the token{who}: {reason} ({detail})", source=se.SOURCE, code="token")

    def _send(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: Mapping[str, Any] | None,
        *,
        about: str,
        hook: Hook | None = None,
    ) -> Answer:
        began = time.monotonic()
        try:
            status, kind, content = self._exchange(method, path, params, body, began)
        except httpx2.TimeoutException:
            raise e.Unavailable(
                f"no answer to {method} {path} within {self.access.timeout_s:g} s", source=se.SOURCE, code="timeout"
            ) from None
        except httpx2.ConnectError as error:
            raise e.Unavailable(
                f"cannot connect to {self.access.endpoint_url}: {error}", source=se.SOURCE, code="connect"
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            detail = str(error) or type(error).__name__
            raise e.Unavailable(f"{method} {path} broke off: {detail}", source=se.SOURCE, code="connection") from None
        seconds = time.monotonic() - began
        if status == 304:
            return Answer({}, len(content), seconds, changed=False)
        parsed = self._parse(status, kind, content, f"{method} {path}", hook)
        entries = se.entries_of(parsed)
        # A submit that made a job and complains too is the caller's to judge: the job exists.
        if entries and not (about == "submit" and parsed.get("job_id")):
            raise self._typed(status, entries, about)
        if status >= 400:
            raise self._by_status(status, f"{method} {path} answered HTTP {status} and no reason")
        return Answer(parsed, len(content), seconds)

    def _exchange(
        self, method: str, path: str, params: Params | None, body: Mapping[str, Any] | None, began: float
    ) -> tuple[int, str, bytes]:
        """Send and read to the end, within one deadline for the whole exchange."""
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        with self._client.stream(method, path, params=params, content=content, headers=headers) as response:
            parts = []
            size = 0
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if time.monotonic() - began > self.access.timeout_s:
                    raise httpx2.ReadTimeout("the answer takes too long")
                if size > MAX_BODY_BYTES:
                    raise e.Unavailable(
                        f"{method} {path} answered more than {MAX_BODY_BYTES} bytes", source=se.SOURCE, code="size"
                    )
            return response.status_code, response.headers.get("content-type", ""), b"".join(parts)

    def _parse(self, status: int, kind: str, content: bytes, what: str, hook: Hook | None = None) -> Mapping[str, Any]:
        try:
            parsed = json.loads(content, object_hook=hook)
        except (ValueError, RecursionError):
            raise self._not_json(status, kind, content, what) from None
        if not isinstance(parsed, dict):
            raise e.Unavailable(
                f"{what} answered JSON that is no object but {type(parsed).__name__}",
                source=se.SOURCE,
                code=str(status),
            )
        return parsed

    def _not_json(self, status: int, kind: str, content: bytes, what: str) -> e.ProviderError:
        text = " ".join(content[:400].decode("utf-8", errors="replace").split())
        if status == 404 and "json" not in kind and "html" not in kind:
            return se.NoSuchPath(f"slurmrestd has no {what}", source=se.SOURCE, code="404")
        if status == 400:
            return e.InvalidRequest(f"slurmrestd could not read {what}: {text}", source=se.SOURCE, code="400")
        if status in (401, 403, 429, 503, 511):
            return self._by_status(status, f"{what}: {text[:160] or 'no reason given'}")
        if not content:
            shape = "nothing"
        elif "html" in kind or text[:1] == "<":
            shape = f"a web page instead of JSON ({text[:120]!r})"
        else:
            shape = f"JSON that breaks off or is none ({text[:120]!r})"
        return e.Unavailable(f"{what} answered HTTP {status} with {shape}", source=se.SOURCE, code=str(status))

    def _by_status(self, status: int, text: str) -> e.ProviderError:
        if status in (401, 403, 511):
            return self._denied(text)
        if status == 429:
            return e.Throttled(text, source=se.SOURCE, code="429")
        if status == 404:
            return e.NotFound(text, source=se.SOURCE, code="404")
        if 400 <= status < 500:
            return e.InvalidRequest(text, source=se.SOURCE, code=str(status))
        return e.Unavailable(text, source=se.SOURCE, code=str(status))

    def _typed(self, status: int, entries: list[Mapping[str, Any]], about: str) -> e.ProviderError:
        entry = se.worst(entries)
        code = se.code_of(entry)
        text = "; ".join(dict.fromkeys(se.text_of(one) for one in entries))
        if about == "node" and se.node_missing(entries):
            return e.NotFound(text, source=se.SOURCE, code=str(se.INVALID_NODE_NAME))
        if status in (401, 511) or code == 1007:
            return self._denied(text)
        if status == 429:
            return e.Throttled(text, source=se.SOURCE, code="429")
        if status in (400, 422) and about == "submit":
            return e.InvalidRequest(text, source=se.SOURCE, code=str(code))
        return se.typed(code, text, about=about)
