"""One AWS service with a JSON protocol: parses the call, checks it against AWS's model, dispatches, checks the answer.

A service is a subclass whose methods carry the operations' names (``create_file_system``), take the request's
members as a dict and give the answer's members. What it keeps lies in ``self.shelf``, saved after every call that
may have changed something.
"""

from __future__ import annotations

import datetime
import json
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from botocore import xform_name
from botocore.model import OperationModel
from werkzeug.wrappers import Request, Response

from sandbox.aws.errors import AwsError
from sandbox.aws.filters import page
from sandbox.aws.modelcheck import answer_problems, request_problems, service_model
from sandbox.aws.options import AwsOptions
from sandbox.aws.signing import path_as_sent
from sandbox.world import World

_READING: Final = ("describe_", "get_", "list_", "search_", "filter_")


class WrongAnswer(Exception):
    """The fake was about to say what AWS cannot say: a mistake of ours, shown as such."""


def hex_id(prefix: str, digits: int = 17) -> str:
    """An id in AWS's shape: prefix, dash, hexadecimal digits."""
    return f"{prefix}-{secrets.token_hex(digits)[:digits]}"


def tags_of(tags: Sequence[Mapping[str, str]] | Mapping[str, str] | None) -> dict[str, str]:
    """Tags as a plain map, from either of the shapes AWS's services take."""
    if isinstance(tags, Mapping):
        return dict(tags)
    return {tag["Key"]: tag.get("Value", "") for tag in tags or []}


class Service:
    """The base of a service. ``name`` is botocore's, ``refusal`` the error code of a request the model forbids."""

    name: ClassVar[str] = ""
    refusal: ClassVar[str] = "ValidationException"

    def __init__(self, options: AwsOptions, world: World, state_dir: Path) -> None:
        self.options = options
        self.world = world
        self.model = service_model(self.name)
        self.signing_name = self.model.signing_name
        self.lock = threading.RLock()
        self._path = state_dir / f"aws-{self.name}.json"
        try:
            self.shelf: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError:
            self.shelf = {}

    # --- what a service overrides

    def settle(self) -> None:
        """Let time act on what the shelf holds; called before every call, under the lock."""

    def census(self) -> dict[str, int]:
        """How many things exist that cost money or block a name, by a plural name."""
        return {}

    # --- keeping

    def rows(self, kind: str) -> dict[str, dict[str, Any]]:
        """The things of one kind by id."""
        found: dict[str, dict[str, Any]] = self.shelf.setdefault(kind, {})
        return found

    def save(self) -> None:
        """Write everything; a kill at any moment leaves the old or the new file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".tmp")
        beside.write_text(json.dumps(self.shelf))
        beside.replace(self._path)

    def once(self, token: str | None, asked: Mapping[str, Any], make: Any) -> Any:
        """What this idempotency token made: the first time by ``make()``, later the same id.

        Raises ``AwsError`` IdempotentParameterMismatch-like for the token with other parameters.
        """
        if not token:
            return make()
        tokens = self.rows("tokens")
        wanted = json.dumps({k: v for k, v in asked.items() if "oken" not in k}, sort_keys=True, default=str)
        known = tokens.get(token)
        if known is not None:
            if known["wanted"] != wanted:
                raise AwsError(
                    self.mismatch_code(), "A client request token was used before with different parameters."
                )
            return known["made"]
        made = make()
        tokens[token] = {"wanted": wanted, "made": made}
        return made

    def mismatch_code(self) -> str:
        """The error code for a token with other parameters."""
        return "IncompatibleParameterError"

    def page(self, things: Sequence[Any], asked: Mapping[str, Any], *, default: int = 100) -> tuple[list[Any], str]:
        """One page of a list and the next token, "" after the last."""
        size = asked.get("MaxResults") or asked.get("maxResults") or default
        token = asked.get("NextToken") or asked.get("nextToken")
        found, following = page(things, int(size), token, least=1, limit=10_000)
        return list(found), following or ""

    # --- answering

    def operation_of(self, request: Request) -> str:
        """The operation's name, "" for an address that is none."""
        target = str(request.headers.get("X-Amz-Target", ""))
        if target:
            return target.rpartition(".")[2]
        found = self._route(request)
        return found[0].name if found else ""

    def answer(self, request: Request, body: bytes) -> Response:
        """One call. Raises ``AwsError``."""
        operation, asked = self._parsed(request, body)
        method = getattr(self, xform_name(operation.name), None)
        if method is None:
            raise AwsError("UnknownOperationException", f"The sandbox has no {self.name} {operation.name}.")
        problems = request_problems(operation, asked)
        if problems:
            raise AwsError(self.refusal, f"{len(problems)} validation error(s) detected: {'; '.join(problems)}")
        with self.lock:
            self.settle()
            answer = method(asked) or {}
            if not xform_name(operation.name).startswith(_READING):
                self.save()
        wrong = answer_problems(operation, answer)
        if wrong:
            raise WrongAnswer(f"{self.name} {operation.name}: {'; '.join(wrong[:5])}")
        text = json.dumps(answer, default=_instant)
        kind = f"application/x-amz-json-{self.model.metadata.get('jsonVersion', '1.1')}"
        rest = self.model.metadata["protocol"] == "rest-json"
        status = int(operation.http.get("responseCode", 200)) if rest else 200
        return Response(text, status=status, content_type="application/json" if rest else kind)

    def status_of(self, code: str) -> int:
        """The HTTP status of an error as the model gives it, 400 where it gives none."""
        for shape in self.model.error_shapes:
            if shape.name == code or shape.metadata.get("error", {}).get("code") == code:
                return int(shape.metadata.get("error", {}).get("httpStatusCode", 400))
        return 400

    def _parsed(self, request: Request, body: bytes) -> tuple[OperationModel, dict[str, Any]]:
        try:
            content = json.loads(body) if body.strip() else {}
        except ValueError as exc:
            raise AwsError("SerializationException", "The request body is not JSON.") from exc
        if self.model.metadata["protocol"] != "rest-json":
            name = self.operation_of(request)
            if name not in self.model.operation_names:
                raise AwsError("UnknownOperationException", f"There is no operation {name!r} in {self.name}.")
            return self.model.operation_model(name), content
        found = self._route(request)
        if found is None:
            raise AwsError("UnknownOperationException", f"{self.name} has no {request.method} {request.path}.")
        operation, uri = found
        return operation, {**content, **uri, **_query(operation, request)}

    def _route(self, request: Request) -> tuple[OperationModel, dict[str, str]] | None:
        """The REST operation of a path; the one with the most fixed parts where several fit."""
        best: tuple[int, OperationModel, dict[str, str]] | None = None
        path = path_as_sent(request)
        for name in self.model.operation_names:
            operation = self.model.operation_model(name)
            if operation.http.get("method") != request.method:
                continue
            template = str(operation.http["requestUri"]).split("?")[0]
            found = _path_pattern(template).fullmatch(path)
            if found is None:
                continue
            fixed = len(re.sub(r"\{[^}]+\}", "", template))
            if best is None or fixed > best[0]:
                best = (fixed, operation, {_member(operation, k): unquote(v) for k, v in found.groupdict().items()})
        return best[1:] if best else None


def _path_pattern(template: str) -> re.Pattern[str]:
    pattern = ""
    for part in re.split(r"(\{[^}]+\})", template):
        if part.startswith("{"):
            name = part.strip("{}")
            pattern += f"(?P<{name.rstrip('+')}>{'.+' if name.endswith('+') else '[^/]+'})"
        else:
            pattern += re.escape(part)
    return re.compile(pattern + "/?")


def _member(operation: OperationModel, location_name: str) -> str:
    assert operation.input_shape is not None
    for name, shape in operation.input_shape.members.items():
        if shape.serialization.get("location") == "uri" and shape.serialization.get("name", name) == location_name:
            return str(name)
    return location_name


def _query(operation: OperationModel, request: Request) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if operation.input_shape is None:
        return found
    for name, shape in operation.input_shape.members.items():
        if shape.serialization.get("location") != "querystring":
            continue
        key = shape.serialization.get("name", name)
        if key not in request.args:
            continue
        raw = request.args.getlist(key)
        match shape.type_name:
            case "list":
                found[name] = raw
            case "integer" | "long":
                found[name] = int(raw[0]) if raw[0].lstrip("-").isdigit() else raw[0]
            case "boolean":
                found[name] = raw[0] == "true"
            case _:
                found[name] = raw[0]
    return found


def _instant(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.timestamp()
    raise TypeError(f"{type(value).__name__} has no place in an answer")
