"""The only place where Slurm's error codes and sentences are matched.

Numbers are those of Slurm's slurm_errno.h; they are stable from 22.05 to 26.05. What each release
really answers was read from running ones:

* 22.05 (v0.0.38) answers reads with a refused token with HTTP 500 and the code -1, the same as when
  its controller is away; only writes tell the two apart (5005 and 1800). ``rest`` asks once more there.
* 24.11 (v0.0.42) answers a refused token with HTTP 511 and the code 1007.
* A cancelled job's refusal comes inside HTTP 200, under ``status``, on 24.11.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worker.providers import errors as e

SOURCE = "slurm"

UNSPECIFIED = -1
#: 22.05's controller hangs up on a token it refuses.
ZERO_BYTES = 5005
ALREADY_DONE = 2021
INVALID_JOB_ID = 2017
INVALID_NODE_NAME = 2018
INVALID_NODE_STATE = 2028
PART_CONFIG_UNAVAILABLE = 2015
NO_ACCOUNTING = 7000
EMPTY_RESULT = 9003

#: 6010: 26.05 takes nobody for a user, which is what a name that it does not know becomes.
_DENIED = frozenset({1007, 2002, 2010, 6010})
#: 1 is what 24.11 says of a cancel while its controller is away; 2019 is a full disk at the controller.
_UNAVAILABLE = frozenset({UNSPECIFIED, 0, 1, *range(1000, 1007), *range(1800, 1810), 2019, 2027, *range(5000, 5006)})
#: 2037 is a job that may not be requeued, 2084 one that has finished.
_CONFLICT = frozenset({2016, 2020, ALREADY_DONE, 2024, INVALID_NODE_STATE, 2037, 2084})
_MISSING = frozenset({(INVALID_NODE_NAME, "node"), (9002, "job")})
_OVER_LIMIT = frozenset({2050, 2052})
_UNCHANGED = ("No job changes since", "No node changes since")


class NoSuchPath(e.Unsupported):
    """slurmrestd does not serve this path: another REST version, or accounting is not loaded."""


def code_of(entry: Mapping[str, Any]) -> int:
    """The number of one entry of ``errors``; releases call it error_number, error_code or errno."""
    for key in ("error_number", "error_code", "errno", "code"):
        value = entry.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return UNSPECIFIED


def text_of(entry: Mapping[str, Any]) -> str:
    """What one entry says, for a person."""
    error = str(entry.get("error") or entry.get("string") or entry.get("message") or "").strip()
    description = str(entry.get("description") or "").strip()
    if error and description and error != description:
        return f"{description}: {error}"
    return description or error or "no reason given"


def entries_of(body: Mapping[str, Any], key: str = "errors") -> list[Mapping[str, Any]]:
    """The entries of ``errors`` (or ``warnings``), whatever shape they came in."""
    found = body.get(key)
    if not isinstance(found, list):
        return []
    return [one if isinstance(one, Mapping) else {"error": str(one)} for one in found]


def worst(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The entry that says most: a parse failure's cause comes before its summary."""
    coded = [one for one in entries if code_of(one) not in (UNSPECIFIED, 0)]
    return coded[0] if coded else entries[0]


def typed(code: int, text: str, *, about: str) -> e.ProviderError:
    """The error for a Slurm code. ``about`` is what the call was about: job, node, submit, queue or accounting."""
    message = text or "no reason given"
    kind: type[e.ProviderError]
    if code in _DENIED:
        kind = e.AccessDenied
    elif code in (INVALID_JOB_ID, EMPTY_RESULT) or (code, about) in _MISSING:
        kind = e.NotFound
    elif code in _UNAVAILABLE or code == NO_ACCOUNTING:
        kind = e.Unavailable
    elif code in _OVER_LIMIT:
        kind = e.QuotaExceeded
    elif code in _CONFLICT:
        kind = e.Conflict
    elif 2000 <= code < 3000 or 9000 <= code < 10_000:
        kind = e.InvalidRequest
    else:
        kind = e.Unknown
    return kind(message, source=SOURCE, code=str(code))


def node_missing(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a single-node read failed because the node does not exist (24.11 gives the code 0, "No error")."""
    return any(code_of(one) in (0, INVALID_NODE_NAME) for one in entries)


def unchanged(warnings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an empty list of jobs means "as before" and not "none" (24.11 tells only by a warning)."""
    return any(str(one.get("description") or "").startswith(_UNCHANGED) for one in warnings)


def accounting_off(body: Mapping[str, Any]) -> bool:
    """Whether the answer's own ``meta`` says that no accounting is configured (24.11 and later say)."""
    meta = body.get("meta")
    plugin = meta.get("plugin") if isinstance(meta, Mapping) else None
    if not isinstance(plugin, Mapping) or "accounting_storage" not in plugin:
        return False
    return str(plugin["accounting_storage"] or "") in ("", "accounting_storage/none", "none")


def from_scontrol(text: str, *, about: str) -> e.ProviderError:
    """The error for what scontrol wrote before it failed."""
    line = text.strip().splitlines()[-1].strip() if text.strip() else "scontrol failed without a word"
    for phrase, code in _SCONTROL:
        if phrase in line:
            return typed(code, line, about=about)
    return e.Unknown(line, source=SOURCE, code="scontrol")


_SCONTROL = (
    ("Invalid job id specified", INVALID_JOB_ID),
    ("Invalid node name specified", INVALID_NODE_NAME),
    ("Invalid node state specified", INVALID_NODE_STATE),
    ("Invalid node state transition", INVALID_NODE_STATE),
    ("Access/permission denied", 2002),
    ("Invalid user id", 2010),
    ("Unable to contact slurm controller", 1800),
    ("Job is no longer pending execution", 2020),
    ("Requested operation is presently disabled", 2020),
    ("Job/step already completing or completed", ALREADY_DONE),
    ("Job has already finished", 2084),
    ("Invalid partition name specified", 2000),
    ("Zero Bytes were transmitted", ZERO_BYTES),
    ("Protocol authentication error", 1007),
)
