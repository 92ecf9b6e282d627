"""Pure decisions about jobs: sizes as people type them, pricing, ends and retries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django.utils.translation import gettext as _

from apps.core.errors import FieldProblem
from apps.jobs.states import AttemptPhase

MAX_SCRIPT_BYTES = 1024 * 1024


def check_script(data: bytes | str) -> tuple[str, list[FieldProblem]]:
    """The script as text and what is wrong with it as a whole (size, bytes, emptiness)."""
    raw = data.encode() if isinstance(data, str) else data
    if len(raw) > MAX_SCRIPT_BYTES:
        return "", [
            FieldProblem(
                "/script",
                "too-large",
                _("%(size)s bytes; at most %(most)s (1 MiB)")
                % {"size": f"{len(raw):,}", "most": f"{MAX_SCRIPT_BYTES:,}"},
            )
        ]
    if b"\x00" in raw:
        return "", [FieldProblem("/script", "binary", _("a binary file, not a script: it has a NUL byte"))]
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        return "", [FieldProblem("/script", "binary", _("not UTF-8 text (byte %(byte)s)") % {"byte": error.start})]
    # An editor's byte order mark and its line ends: neither is meant, and no interpreter reads them.
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.strip():
        return "", [FieldProblem("/script", "required", _("the script is empty"))]
    return text, []


def parse_time(text: str) -> int:
    """Slurm's time formats as whole minutes, rounded up: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S. Raises ValueError."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not match:
        raise ValueError(_("%(text)s is not a time: write minutes, H:M:S or D-H:M:S") % {"text": repr(text)})
    days, first, second, third = match.groups()
    # Only the first part may run over: 90 minutes or 100:00:00 are plain, 1:99:99 is a slip.
    for part, most in ((second, 59), (third, 59), (first if days is not None else None, 23)):
        if part is not None and int(part) > most:
            raise ValueError(
                _("%(text)s is not a time: %(part)s is above %(most)s")
                % {"text": repr(text), "part": part, "most": most}
            )
    a, b, c = int(first), int(second or 0), int(third or 0)
    if days is not None:
        seconds = int(days) * 86_400 + a * 3_600 + b * 60 + c
    elif third is not None:
        seconds = a * 3_600 + b * 60 + c
    elif second is not None:
        seconds = a * 60 + b
    else:
        seconds = a * 60
    if seconds <= 0:
        raise ValueError(_("the time limit must be above zero"))
    return -(-seconds // 60)


def parse_memory(text: str) -> int:
    """Slurm's memory formats as MiB: 4096, 64G, 2T. Raises ValueError."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if not match:
        raise ValueError(_("%(text)s is not an amount of memory such as 64G") % {"text": repr(text)})
    number, unit = int(match[1]), match[2].upper() or "M"
    return {"K": -(-number // 1024), "M": number, "G": number * 1024, "T": number * 1024 * 1024}[unit]


def parse_gpus(text: str) -> tuple[str, int]:
    """``h100:8``, ``8`` or (from gres) ``gpu:h100:8`` as (type, count). Raises ValueError."""
    parts = text.strip().split(":")
    if parts and parts[0] == "gpu":
        parts = parts[1:] or ["1"]
    if not parts or not parts[-1].isdigit() or len(parts) > 2 or not all(parts):
        raise ValueError(_("%(text)s is not a number of GPUs such as 8 or h100:8") % {"text": repr(text)})
    return (parts[0] if len(parts) == 2 else ""), int(parts[-1])


# --- money ---------------------------------------------------------------------------------------


def gpu_hours(gpus: int, seconds: float | Decimal) -> Decimal:
    """GPU-hours of so many GPUs for so long."""
    return (Decimal(gpus) * Decimal(str(seconds)) / Decimal(3600)).quantize(Decimal("0.000001"))


def node_usd(nodes: int, seconds: float | Decimal, usd_per_node_hour: Decimal) -> Decimal:
    """USD of so many nodes for so long, each at this price: how jobs without GPUs are paid."""
    return (Decimal(nodes) * Decimal(str(seconds)) / Decimal(3600) * usd_per_node_hour).quantize(Decimal("0.000001"))


def hold_for(
    nodes: int,
    gpus_per_node: int,
    time_limit_min: int,
    usd_per_gpu_hour: Decimal,
    usd_per_node_hour: Decimal = Decimal(0),
) -> tuple[Decimal, Decimal]:
    """(GPU-hours, USD) that running until the time limit takes; the price of a node is for jobs without GPUs."""
    hours = gpu_hours(nodes * gpus_per_node, time_limit_min * 60)
    if not gpus_per_node:
        return hours, node_usd(nodes, time_limit_min * 60, usd_per_node_hour)
    return hours, (hours * usd_per_gpu_hour).quantize(Decimal("0.000001"))


# --- ends ----------------------------------------------------------------------------------------

_ENDS = {
    "COMPLETED": AttemptPhase.SUCCEEDED,
    "FAILED": AttemptPhase.FAILED,
    "OUT_OF_MEMORY": AttemptPhase.FAILED,
    "TIMEOUT": AttemptPhase.TIMED_OUT,
    "DEADLINE": AttemptPhase.TIMED_OUT,
    "CANCELLED": AttemptPhase.CANCELLED,
    "NODE_FAIL": AttemptPhase.NODE_FAILED,
    "BOOT_FAIL": AttemptPhase.NODE_FAILED,
    "PREEMPTED": AttemptPhase.REQUEUED,
}
_STOP_ENDS = {
    "NodeFailure": AttemptPhase.NODE_FAILED,
    "Requeued": AttemptPhase.REQUEUED,
    "BlockEnds": AttemptPhase.REQUEUED,
    "Preempted": AttemptPhase.REQUEUED,
    "Cancelled": AttemptPhase.CANCELLED,
    "TimeLimit": AttemptPhase.TIMED_OUT,
}
RECOVERABLE = frozenset({AttemptPhase.NODE_FAILED, AttemptPhase.REQUEUED, AttemptPhase.LOST})


def is_final_state(scheduler_state: str) -> bool:
    """Whether Slurm's base state means the job has ended."""
    return scheduler_state in _ENDS


#: An exit code from here on says that a signal ended the process.
SIGNAL_CODES = 128
#: A script that fails sooner than this after its start is taken at its word.
YOUNG_S = 60.0


def may_be_a_fault(end: str, *, exit_code: int | None, signal: int | None, ran_s: float | None) -> bool:
    """Whether a failed end could be a GPU's fault whose evidence is still on its way.

    A program that a GPU fault kills ends at once, but exporters show the fault only at their next round.
    """
    if end != AttemptPhase.FAILED:
        return False
    ended_by_signal = bool(signal) or (exit_code is not None and exit_code >= SIGNAL_CODES)
    return ended_by_signal or (ran_s is not None and ran_s >= YOUNG_S)


def end_of(scheduler_state: str, stop_reason: str, *, node_has_fatal_finding: bool) -> tuple[str, str]:
    """(attempt phase, reason) of an ended attempt.

    Our own reason for stopping it wins over Slurm's CANCELLED; a failure on a node with a fatal GPU
    finding is the node's, not the program's. A job that finished in spite of a stop has succeeded.
    """
    end = _ENDS[scheduler_state]
    if end == AttemptPhase.SUCCEEDED:
        return end, ""
    if stop_reason and end in (AttemptPhase.CANCELLED, AttemptPhase.FAILED, AttemptPhase.NODE_FAILED):
        return _STOP_ENDS[stop_reason], stop_reason
    if end == AttemptPhase.FAILED and node_has_fatal_finding:
        return AttemptPhase.NODE_FAILED, "NodeFailure"
    reasons = {
        AttemptPhase.FAILED: "OutOfMemory" if scheduler_state == "OUT_OF_MEMORY" else "ExitCode",
        AttemptPhase.TIMED_OUT: "TimeLimit",
        AttemptPhase.CANCELLED: "CancelledOutside",
        AttemptPhase.NODE_FAILED: "NodeFailure",
        AttemptPhase.REQUEUED: "Preempted",
    }
    return end, reasons[end]


#: The variable by which a job says that it writes a checkpoint when it gets this signal, and the signals it may be.
CHECKPOINT_SIGNAL = "CHECKPOINT_SIGNAL"
_ASKING = frozenset({"USR1", "USR2"})


def checkpoint_signal(environment: Mapping[str, Any]) -> str:
    """The signal that asks this job for a checkpoint, "" where it takes none: a job that does not know it would die."""
    name = str(environment.get(CHECKPOINT_SIGNAL, "")).upper().removeprefix("SIG")
    return name if name in _ASKING else ""
