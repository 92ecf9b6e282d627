"""From slurmrestd's JSON to our values, in both dialects: v0.0.38's plain values and the later structures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm.errors import SOURCE
from worker.providers.slurm.hostlist import expand

T = TypeVar("T")

#: Slurm's numbers for "no value" and "infinite", which v0.0.38 sometimes lets through.
_NO_VALUES = frozenset({0xFFFFFFFE, 0xFFFFFFFF, 0xFFFE, 0xFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF})
_NODE_STATES = ("IDLE", "MIXED", "ALLOCATED", "DOWN", "ERROR", "FUTURE", "UNKNOWN", "INVALID")
#: Flags that Slurm shows in a job's state, with the base word they stand on. v0.0.38 shows only the flag.
_JOB_FLAGS = {
    "CONFIGURING": "RUNNING",
    "POWER_UP_NODE": "RUNNING",
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
    "STOPPED": "RUNNING",
    "STAGE_OUT": "COMPLETING",
    "REQUEUED": "PENDING",
    "REQUEUE_FED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "RESV_DEL_HOLD": "PENDING",
    "SPECIAL_EXIT": "PENDING",
    "UPDATE_DB": "",
    "LAUNCH_FAILED": "",
    "RECONFIG_FAIL": "",
    "EXPEDITING": "PENDING",
}
_IN_MIB = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024, "P": 1024 * 1024 * 1024}
_WAITING = "PENDING"
_UNFINISHED = frozenset({"PENDING", "RUNNING", "SUSPENDED", "COMPLETING"})
_GPU_TOTAL = re.compile(r"(?:^|,)gres/gpu=(\d+)(?=,|$)")
_GPU_TYPED = re.compile(r"(?:^|,)gres/gpu:[^=,]+=(\d+)(?=,|$)")
#: "gpu:h100:8(S:0-1)" in a node, "gres:gpu:8" or "gres/gpu:h100:8" or "gres/gpu=8" in a job.
_GRES = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::([A-Za-z][\w.-]*))?(?:[:=](\d+))?(?:\([^)]*\))?(?=,|$)")


def guarded(decoder: Callable[[Any], T], record: Any, what: str) -> T:
    """Run a decoder; a record of another shape is a broken answer. Raises Unavailable."""
    try:
        return decoder(record)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise e.Unavailable(
            f"the answer holds a {what} of unknown shape: {type(error).__name__}: {error}", source=SOURCE, code="shape"
        ) from None


def number(value: Any) -> int | None:
    """A count in either dialect; None where Slurm says unset or infinite. Raises ValueError for anything else."""
    if isinstance(value, Mapping):
        if value.get("infinite") or not value.get("set", True):
            return None
        value = value.get("number")
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is no number")
    result = int(value)
    return None if result in _NO_VALUES else result


def text(value: Any) -> str:
    """A text that may be null."""
    return "" if value is None else str(value)


def instant(value: Any) -> datetime | None:
    """A UNIX time in either dialect; Slurm writes 0 for "not yet"."""
    seconds = number(value)
    return None if not seconds or seconds < 0 else datetime.fromtimestamp(seconds, tz=UTC)


def words(value: Any) -> list[str]:
    """A state or flag list in either dialect, upper case."""
    found = value if isinstance(value, list) else [] if value in (None, "") else [value]
    return [str(one).upper() for one in found]


def job_state(value: Any) -> str:
    """The base word of a job's state, or COMPLETING while nodes are still being cleaned."""
    found = words(value)
    if "COMPLETING" in found:
        return "COMPLETING"
    base = [word for word in found if word not in _JOB_FLAGS]
    if base:
        return base[0]
    meant = [_JOB_FLAGS[word] for word in found if _JOB_FLAGS[word]]
    if not meant:
        raise ValueError(f"job state {value!r} holds no state")
    return meant[0]


def _exit(value: Any) -> tuple[int | None, int | None]:
    """(exit code, signal) from a wait status (v0.0.38) or from the structure of later versions and of accounting."""
    if isinstance(value, Mapping):
        ended_by = value.get("signal")
        signal = number(ended_by.get("id", ended_by.get("signal_id"))) if isinstance(ended_by, Mapping) else None
        if signal:
            return None, signal
        return number(value.get("return_code")), None
    status = number(value)
    if status is None:
        return None, None
    signal = status & 0x7F
    return (None, signal) if signal else ((status >> 8) & 0xFF, None)


def _gres_count(value: str) -> int:
    return sum(int(match.group(2) or 1) for match in _GRES.finditer(value))


def _gpus(record: Mapping[str, Any], node_count: int) -> int:
    """GPUs of a job. Without AccountingStorageTRES=gres/gpu they are only in the per-node request."""
    for key in ("tres_alloc_str", "tres_req_str"):
        value = text(record.get(key))
        if (total := _GPU_TOTAL.search(value)) is not None:
            return int(total.group(1))
        typed = [int(one) for one in _GPU_TYPED.findall(value)]
        if typed:
            return sum(typed)
    detail = record.get("gres_detail")
    if isinstance(detail, list) and detail:
        return sum(_gres_count(text(one)) for one in detail)
    if per_node := _gres_count(text(record.get("tres_per_node"))):
        return per_node * node_count
    if per_task := _gres_count(text(record.get("tres_per_task"))):
        return per_task * (number(record.get("tasks")) or 1)
    return _gres_count(text(record.get("tres_per_job")))


def _asked(record: Mapping[str, Any]) -> tuple[int, int]:
    """(CPUs, MiB) of all nodes, as given or, while it waits, as asked for."""
    for key in ("tres_alloc_str", "tres_req_str"):
        told = dict(part.partition("=")[::2] for part in text(record.get(key)).split(","))
        if told.get("cpu", "").isdigit():
            return int(told["cpu"]), _mib(told.get("mem", ""))
    return number(record.get("cpus")) or 0, 0


def _mib(value: str) -> int:
    """``4000M``, ``1.50T`` or bare MiB as whole MiB; 0 for what is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)", value)
    return int(float(found[1]) * _IN_MIB[found[2]]) if found else 0


def queue_job(record: Mapping[str, Any]) -> v.SchedulerJob:
    """A job of the queue. Raises KeyError, TypeError or ValueError for a record that is none."""
    state = job_state(record["job_state"])
    nodes = expand(text(record.get("nodes")))
    node_count = number(record.get("node_count")) or len(nodes)
    began_at = instant(record.get("start_time"))
    code, signal = _exit(record.get("exit_code"))
    if state in _UNFINISHED or not nodes:
        # Before the end Slurm shows 0, and a job that never had nodes has no process to speak of.
        code = signal = None
    finished = state not in _UNFINISHED
    return v.SchedulerJob(
        scheduler_id=str(number(record["job_id"])),
        name=text(record.get("name")),
        comment=text(record.get("comment")),
        user_name=text(record.get("user_name")),
        account=text(record.get("account")),
        partition=text(record.get("partition")),
        state=state,
        reason=_reason(record.get("state_reason")),
        nodes=nodes,
        node_count=node_count,
        gpus=_gpus(record, node_count),
        cpus=_asked(record)[0],
        memory_mib=_asked(record)[1],
        submitted_at=instant(record.get("submit_time")),
        started_at=began_at if nodes and state != _WAITING else None,
        # While a job runs Slurm puts the end of its time limit there.
        ended_at=instant(record.get("end_time")) if finished or state == "COMPLETING" else None,
        expected_start_at=began_at if state == _WAITING else None,
        time_limit_min=number(record.get("time_limit")),
        exit_code=code,
        signal=signal,
        priority=number(record.get("priority")),
        **_family(
            array_id=record.get("array_job_id"),
            array_task=record.get("array_task_id"),
            array_pending=record.get("array_task_string"),
            het_id=record.get("het_job_id"),
            het_offset=record.get("het_job_offset"),
        ),
        qos=text(record.get("qos")),
        reservation=text(record.get("resv_name")),
        dependency=text(record.get("dependency")),
        features=text(record.get("features")),
        eligible_at=instant(record.get("eligible_time")),
    )


def _family(*, array_id: Any, array_task: Any, array_pending: Any, het_id: Any, het_offset: Any) -> dict[str, Any]:
    """The array or the heterogeneous job that a record is part of; Slurm writes 0 for none."""
    array, het = number(array_id) or 0, number(het_id) or 0
    return {
        "array_id": str(array) if array else "",
        "array_task": number(array_task) if array else None,
        "array_pending": text(array_pending) if array else "",
        "het_id": str(het) if het else "",
        "het_offset": number(het_offset) if het else None,
    }


def _reason(value: Any) -> str:
    reason = text(value)
    return "" if reason == "None" else reason


def accounting_job(record: Mapping[str, Any]) -> v.SchedulerJob:
    """A job of slurmdb. Raises KeyError, TypeError or ValueError for a record that is none."""
    told = record["state"]
    state = job_state(told["current"] if isinstance(told, Mapping) else told)
    times = record.get("time") or {}
    comment = record.get("comment")
    nodes = expand(text(record.get("nodes")))
    code, signal = _exit(record.get("exit_code"))
    if state in _UNFINISHED or not nodes or (state == "FAILED" and code == 0 and signal is None):
        # 22.05's slurmdb plugin says SUCCESS and 0 for every exit code that is not a signal.
        code = None
        signal = signal if nodes and state not in _UNFINISHED else None
    allocated = record.get("tres", {}).get("allocated") or []
    requested = record.get("tres", {}).get("requested") or []
    association = record.get("association") or {}
    array, het = record.get("array") or {}, record.get("het") or {}
    reservation = record.get("reservation") or {}
    began_at = instant(times.get("start"))
    return v.SchedulerJob(
        scheduler_id=str(number(record["job_id"])),
        name=text(record.get("name")),
        comment=text(comment.get("job")) if isinstance(comment, Mapping) else text(comment),
        user_name=text(record.get("user") or association.get("user")),
        account=text(record.get("account")),
        partition=text(record.get("partition")),
        state=state,
        reason=_reason(told.get("reason") if isinstance(told, Mapping) else ""),
        nodes=nodes,
        node_count=number(record.get("allocation_nodes")) or len(nodes),
        gpus=_tres_gpus(allocated) or _tres_gpus(requested),
        cpus=_tres_count(allocated, "cpu") or _tres_count(requested, "cpu"),
        memory_mib=_tres_count(allocated, "mem") or _tres_count(requested, "mem"),
        submitted_at=instant(times.get("submission")),
        started_at=began_at if nodes else None,
        ended_at=instant(times.get("end")) if state not in _UNFINISHED else None,
        expected_start_at=None,
        time_limit_min=number(times.get("limit")),
        exit_code=code,
        signal=signal,
        priority=number(record.get("priority")),
        # The tasks that have not begun are a bit mask here: the queue tells them better.
        **_family(
            array_id=array.get("job_id"),
            array_task=array.get("task_id"),
            array_pending="",
            het_id=het.get("job_id"),
            het_offset=het.get("job_offset"),
        ),
        qos=text(record.get("qos")),
        reservation=text(reservation.get("name") or ""),
        features=text(record.get("constraints")),
        eligible_at=instant(times.get("eligible")),
    )


def _tres_count(entries: Iterable[Any], kind: str) -> int:
    found = (number(one.get("count")) for one in entries if isinstance(one, Mapping) and one.get("type") == kind)
    return max((count for count in found if count), default=0)


def _tres_gpus(entries: Iterable[Any]) -> int:
    total = typed = 0
    for one in entries:
        if not isinstance(one, Mapping) or one.get("type") != "gres":
            continue
        name = text(one.get("name"))
        if name == "gpu":
            total += number(one.get("count")) or 0
        elif name.startswith("gpu:"):
            typed += number(one.get("count")) or 0
    return total or typed


def node(record: Mapping[str, Any]) -> v.SchedulerNode:
    """A node. Raises KeyError, TypeError or ValueError for a record that is none."""
    found = [*words(record["state"]), *words(record.get("state_flags"))]
    base = next((word for word in found if word in _NODE_STATES), "UNKNOWN")
    gres = list(_GRES.finditer(text(record.get("gres"))))
    return v.SchedulerNode(
        name=text(record["name"]),
        state=base,
        flags=tuple(dict.fromkeys(word for word in found if word != base)),
        gpu_type=next((match.group(1) for match in gres if match.group(1)), ""),
        gpus=sum(int(match.group(2) or 1) for match in gres),
        gpus_used=_gres_count(text(record.get("gres_used"))),
        cpus=number(record.get("cpus")) or 0,
        memory_mib=number(record.get("real_memory")) or 0,
        reason=text(record.get("reason")),
        partitions=tuple(str(one) for one in record.get("partitions") or ()),
        address=text(record.get("address")),
        instance_id=text(record.get("instance_id")),
    )


def partition(record: Mapping[str, Any], *, only: bool) -> v.Partition:
    """A partition; ``only`` says that there is no other, which makes it the default where the answer does not tell."""
    listed = record.get("nodes")
    limits = record.get("maximums")
    states = record.get("partition")
    flags = words(record.get("flags"))
    return v.Partition(
        name=text(record["name"]),
        nodes=expand(text(listed.get("configured") if isinstance(listed, Mapping) else listed)),
        max_time_min=number(limits.get("time") if isinstance(limits, Mapping) else record.get("max_time_limit")),
        is_default=only or "DEFAULT" in flags,
        state=(words(states.get("state") if isinstance(states, Mapping) else record.get("state")) or ["UNKNOWN"])[0],
    )


def output_file(record: Mapping[str, Any]) -> v.OutputFile:
    """Where a job writes, Slurm's patterns filled in as far as they are known. Raises KeyError for no job."""
    job_id = str(number(record["job_id"]))
    path = text(record.get("stdout_expanded")) or text(record.get("standard_output")) or f"slurm-{job_id}.out"
    values = {"j": job_id, "J": job_id, "A": job_id, "x": text(record.get("name")), "u": text(record.get("user_name"))}
    values |= {"a": "4294967294", "%": "%", "N": text(record.get("batch_host"))}
    path = re.sub(r"%\d*([jJAxuaN%])", lambda found: values[found[1]], path)
    if not path.startswith("/"):
        path = f"{text(record.get('current_working_directory')).rstrip('/')}/{path}"
    told = record.get("user_id")
    # Not by number(): nobody's id is one of Slurm's words for "no value".
    return v.OutputFile(path=path, user_id=told if isinstance(told, int) else number(told))


def lists_task(pending: str, task: int) -> bool:
    """Whether the tasks of one pending record, such as "3-99:2,120%10", hold this one."""
    for part in pending.partition("%")[0].split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())
        if found:
            first, last, stride = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
            if first <= task <= last and (task - first) % stride == 0:
                return True
    return False
