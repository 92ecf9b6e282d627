"""Further options of sbatch in a submit by REST: each as the member that means it, in v0.0.38 and in all later ones.

Names on the left are sbatch's, on the right those of Slurm's own description of the call (``/openapi/v3`` of 22.05.8,
24.11.5 and 26.05.5). What a version has no member for is refused by name: a job must not run otherwise than was asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from worker.providers import errors as e
from worker.providers.slurm.errors import SOURCE
from worker.providers.slurm.versions import FORGETS_CORES, OLD

Job = MutableMapping[str, Any]

#: Texts that are handed on as they are.
_TEXTS: Final = {
    "account": "account",
    "acctg-freq": "account_gather_frequency",
    "batch": "batch_features",
    "bb": "burst_buffer",
    "cluster-constraint": "cluster_constraint",
    "constraint": "constraints",
    "container": "container",
    "container-id": "container_id",
    "container-type": "container_type",
    "context": "selinux_context",
    "cpu-freq": "cpu_frequency",
    "dependency": "dependency",
    "distribution": "distribution",
    "extra": "extra",
    "input": "standard_input",
    "licenses": "licenses",
    "mail-user": "mail_user",
    "mcs-label": "mcs_label",
    "network": "network",
    "prefer": "prefer",
    "qos": "qos",
    "reservation": "reservation",
    "tres-bind": "tres_bind",
    "wckey": "wckey",
}
_NUMBERS: Final = {
    "core-spec": "core_specification",
    "cores-per-socket": "cores_per_socket",
    "mincpus": "minimum_cpus_per_node",
    "ntasks-per-core": "tasks_per_core",
    "ntasks-per-gpu": "ntasks_per_tres",
    "ntasks-per-socket": "tasks_per_socket",
    "sockets-per-node": "sockets_per_node",
    "thread-spec": "thread_specification",
    "threads-per-core": "threads_per_core",
}
_FLAGS: Final = {
    "contiguous": "contiguous",
    "hold": "hold",
    "overcommit": "overcommit",
    "reboot": "reboot",
}
#: Job flags of later versions that stand for an option.
_JOB_FLAGS: Final = {
    "consolidate-segments": "CONSOLIDATE_SEGMENTS",
    "spread-job": "SPREAD_JOB",
    "spread-segments": "SPREAD_SEGMENTS",
    "stepmgr": "STEPMGR_ENABLED",
    "use-min-nodes": "PREFER_MINIMUM_NODE_COUNT",
}
#: What 22.05 calls otherwise, and what it has no member for.
_OLD_TEXTS: Final = {
    "account": "account",
    "acctg-freq": "account_gather_frequency",
    "batch": "batch_features",
    "bb": "burst_buffer",
    "cluster-constraint": "cluster_constraint",
    "constraint": "constraints",
    "container": "container",
    "cpu-freq": "cpu_frequency",
    "deadline": "deadline",
    "dependency": "dependency",
    "distribution": "distribution",
    "gpu-bind": "gpu_binding",
    "gpu-freq": "gpu_frequency",
    "gres-flags": "gres_flags",
    "input": "standard_input",
    "licenses": "licenses",
    "mail-type": "mail_type",
    "mail-user": "mail_user",
    "mcs-label": "mcs_label",
    "nodelist": "nodelist",
    "prefer": "prefer",
    "priority": "priority",
    "qos": "qos",
    "reservation": "reservation",
    "wckey": "wckey",
}
_OLD_NUMBERS: Final = {**_NUMBERS, "ntasks-per-gpu": "ntasks_per_gpu"}
_OLD_FLAGS: Final = {
    "hold": "hold",
    "oversubscribe": "oversubscribe",
    "spread-job": "spread_job",
    "use-min-nodes": "minimum_nodes",
}
_MAIL: Final = {
    "BEGIN": ["BEGIN"],
    "END": ["END"],
    "FAIL": ["FAIL"],
    "REQUEUE": ["REQUEUE"],
    "ALL": ["BEGIN", "END", "FAIL", "REQUEUE", "STAGE_OUT", "INVALID_DEPENDENCY"],
    "STAGE_OUT": ["STAGE_OUT"],
    "ARRAY_TASKS": ["ARRAY_TASKS"],
    "INVALID_DEPEND": ["INVALID_DEPENDENCY"],
    "TIME_LIMIT": ["TIME=100%"],
    "TIME_LIMIT_90": ["TIME=90%"],
    "TIME_LIMIT_80": ["TIME=80%"],
    "TIME_LIMIT_50": ["TIME=50%"],
    "NONE": [],
}
_UNITS: Final = {"": 1, "M": 1, "G": 1024, "T": 1024 * 1024}


#: Options that are an instant, which Slurm compares with its own clock.
_INSTANTS: Final = ("begin", "deadline")


def has_instants(options: Sequence[str]) -> bool:
    """Whether any of these options says a time of the day or so long from now."""
    return any(text.removeprefix("--").partition("=")[0] in _INSTANTS for text in options)


def apply(job: Job, options: Sequence[str], version: str, ahead_s: int = 0) -> None:
    """Put options into the ``job`` of a submit in this REST version. Raises InvalidRequest naming the option.

    ``ahead_s`` is by how much Slurm's clock is ahead of ours: instants are said by its clock.
    """
    for text in options:
        name, equals, value = text.removeprefix("--").partition("=")
        is_forgotten = name == "cores-per-socket" or (name == "extra-node-info" and ":" in value)
        try:
            # A deadline of the oldest version is text, which Slurm reads by its own clock.
            if ahead_s and name in _INSTANTS and (name, version) != ("deadline", OLD):
                value = f"uts{instant(value) + ahead_s}"
            if is_forgotten and version in FORGETS_CORES:
                done = False
            else:
                done = (_old if version == OLD else _new)(job, name, value)
        except (ValueError, KeyError):
            raise _refuse(f"--{name}{equals}{value} is not understood") from None
        if not done:
            raise _refuse(f"this Slurm's REST cannot do --{name}: take it out, or submit with sbatch")


def _refuse(message: str) -> e.InvalidRequest:
    return e.InvalidRequest(message, source=SOURCE, code="option")


# --- v0.0.40 and later


def _number_of(job: Job, name: str, member: str, value: str) -> None:
    job[member] = int(value)
    has_gpus = bool(job.get("gres") or job.get("tres_per_node"))
    # Slurm finds no node for these where one task a node is asked for as well, which nobody did who says them.
    if (name == "ntasks-per-gpu" or (name == "mincpus" and not has_gpus)) and job.get("tasks_per_node") == 1:
        del job["tasks_per_node"]


def _new(job: Job, name: str, value: str) -> bool:
    if name in _TEXTS:
        job[_TEXTS[name]] = value
    elif name in _NUMBERS:
        _number_of(job, name, _NUMBERS[name], value)
    elif name in _FLAGS:
        job[_FLAGS[name]] = True
    elif name in _JOB_FLAGS:
        _flag(job, _JOB_FLAGS[name])
    elif name in _SPECIAL:
        _SPECIAL[name](job, value)
    else:
        return _shared(job, name, value, old=False)
    return True


def _flag(job: Job, flag: str) -> None:
    job.setdefault("flags", []).append(flag)


def _number(value: int) -> Mapping[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def _gpu_words(value: str) -> str:
    """``h100:8`` or ``8`` as a TRES."""
    return f"gres/gpu:{value}"


def _exclusive(job: Job, value: str) -> None:
    job["shared"] = [{"": "none", "user": "user", "mcs": "mcs", "topo": "topo"}[value.lower()]]


def _mail(job: Job, value: str) -> None:
    found: list[str] = []
    for word in value.upper().split(","):
        found += _MAIL[word.strip()]
    job["mail_type"] = list(dict.fromkeys(found))


def _signal(job: Job, value: str) -> None:
    match = re.fullmatch(r"(?:([RB]{1,2}):)?(?:SIG)?([A-Za-z0-9]+)(?:@(\d+))?", value)
    if match is None:
        raise ValueError(value)
    flags = {"R": "RESERVATION_JOB", "B": "BATCH_JOB"}
    if match[1]:
        job["kill_warning_flags"] = [flags[letter] for letter in match[1]]
    job["kill_warning_signal"] = match[2].upper()
    job["kill_warning_delay"] = _number(int(match[3] or 60))


def _switches(job: Job, value: str) -> None:
    count, _at, wait = value.partition("@")
    job["required_switches"] = _number(int(count))
    if wait:
        job["wait_for_switch"] = _minutes(wait) * 60


def _minutes(text: str) -> int:
    """Minutes, ``M:S``, ``H:M:S`` or ``D-H[:M[:S]]``, rounded up."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ValueError(text)
    days, a, b, c = (int(part or 0) for part in match.groups())
    if match[1] is not None:
        seconds = days * 86_400 + a * 3600 + b * 60 + c
    elif match[4] is not None:
        seconds = a * 3600 + b * 60 + c
    else:
        seconds = a * 60 + b
    return -(-seconds // 60)


def _mib(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text, re.IGNORECASE)
    if match is None:
        raise ValueError(text)
    if match[2].upper() == "K":
        return -(-int(match[1]) // 1024)
    return int(match[1]) * _UNITS[match[2].upper()]


def instant(text: str, now: datetime | None = None) -> int:
    """A time as sbatch takes it, in seconds since 1970: ``now+1hour``, ``16:00``, ``tomorrow``, ``2026-12-01T10:00``.

    Times without a zone are the portal's, UTC. Raises ValueError.
    """
    at = now or datetime.now(tz=UTC)
    if seconds := re.fullmatch(r"uts([0-9]{1,12})", text):
        return int(seconds[1])
    match = re.fullmatch(r"now(?:\+(\d+)([a-z]*))?", text)
    if match is not None:
        unit = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}[match[2][:1] if match[2] else ""]
        return int(at.timestamp()) + int(match[1] or 0) * unit
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"midnight": midnight + timedelta(days=1), "noon": midnight + timedelta(hours=12)}
    named |= {"teatime": midnight + timedelta(hours=16), "today": at}
    named |= {"tomorrow": at + timedelta(days=1)}
    if text in named:
        found = named[text]
    elif clock := re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", text):
        found = midnight.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0))
    else:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if found < at and text not in ("today",) and not re.match(r"\d{4}-", text):
        found += timedelta(days=1)
    return int(found.timestamp())


def _gres_flags(job: Job, value: str) -> None:
    for word in value.lower().split(","):
        _flag(
            job,
            {
                "enforce-binding": "GRES_BINDING_ENFORCED",
                "disable-binding": "GRES_BINDING_DISABLED",
                "multiple-tasks-per-sharing": "GRES_MULTIPLE_TASKS_PER_SHARING",
                "one-task-per-sharing": "GRES_ONE_TASK_PER_SHARING",
                "allow-task-sharing": "GRES_ALLOW_TASK_SHARING",
            }[word],
        )


def _gres(job: Job, value: str) -> None:
    parts = [job["tres_per_node"]] if job.get("tres_per_node") else []
    parts += [part if part.startswith("gres") else f"gres/{part}" for part in value.split(",")]
    job["tres_per_node"] = ",".join(parts)


def _mem_update(job: Job, value: str) -> None:
    margin, _at, delay = value.partition("@")
    job["memory_update_margin"], job["memory_update_delay"] = int(margin.rstrip("%")), int(delay)


def _set(member: str, convert: Callable[[str], Any]) -> Callable[[Job, str], None]:
    def put(job: Job, value: str) -> None:
        job[member] = convert(value)

    return put


def _ntasks(job: Job, value: str) -> None:
    # So many in all, over however many nodes: a number for each node would contradict it.
    job["tasks"] = int(value)
    job.pop("tasks_per_node", None)


def _tres_per_task(job: Job, value: str) -> None:
    job["tres_per_task"] = re.sub(r"(^|,)([A-Za-z/]+)=", r"\1\2:", value)
    if cpus := re.search(r"(?:^|,)cpu[:=]([0-9]+)", value, re.IGNORECASE):
        # As sbatch does: two numbers of CPUs for a task would contradict each other.
        job["cpus_per_task"] = int(cpus[1])


def _no_kill(job: Job, value: str) -> None:
    job["kill_on_node_fail"] = value.lower() == "off"


def _invalid_dependency(job: Job, value: str) -> None:
    _flag(job, {"yes": "KILL_INVALID_DEPENDENCY", "no": "NO_KILL_INVALID_DEPENDENCY"}[value.lower()])


def _oversubscribe(job: Job, value: str) -> None:
    job["shared"] = ["oversubscribe"]


_SPECIAL: Final[Mapping[str, Callable[[Job, str], None]]] = {
    "begin": _set("begin_time", lambda text: _number(instant(text))),
    "cpus-per-gpu": _set("cpus_per_tres", lambda text: _gpu_words(str(int(text)))),
    "deadline": _set("deadline", instant),
    "delay-boot": _set("delay_boot", lambda text: _minutes(text) * 60),
    "exclusive": _exclusive,
    "gpu-bind": _set("tres_bind", _gpu_words),
    "gpu-freq": _set("tres_freq", lambda text: f"gpu:{text}"),
    "gres": _gres,
    "gres-flags": _gres_flags,
    "kill-on-invalid-dep": _invalid_dependency,
    "mail-type": _mail,
    "mem-per-cpu": _set("memory_per_cpu", lambda text: _number(_mib(text))),
    "mem-per-gpu": _set("memory_per_tres", lambda text: _gpu_words(str(_mib(text)))),
    "mem-update": _mem_update,
    "nice": _set("nice", lambda text: int(text or 100)),
    "no-kill": _no_kill,
    "nodelist": _set("required_nodes", lambda text: [text]),
    "ntasks": _ntasks,
    "oom-kill-step": _set("oom_kill_step", lambda text: int(text or 1)),
    "oversubscribe": _oversubscribe,
    "priority": _set("priority", lambda text: _number(int(text))),
    "profile": _set("profile", lambda text: [word.upper() for word in text.split(",")]),
    "resv-ports": _set("reserve_ports", lambda text: int(text or 1)),
    "segment": _set("segment_size", lambda text: _number(int(text))),
    "signal": _signal,
    "switches": _switches,
    "time-min": _set("time_minimum", lambda text: _number(_minutes(text))),
    "tmp": _set("temporary_disk_per_node", _mib),
    "tres-per-task": _tres_per_task,
    "wait-all-nodes": _set("wait_all_nodes", lambda text: bool(int(text))),
}


# --- every version


def _shared(job: Job, name: str, value: str, *, old: bool) -> bool:
    """Options that have no member of their own but are understood all the same."""
    if name == "extra-node-info":
        members = ("sockets_per_node", "cores_per_socket", "threads_per_core")
        for member, part in zip(members, value.split(":"), strict=False):
            if part not in ("", "*"):
                job[member] = int(part)
    elif name == "hint":
        if value not in ("compute_bound", "memory_bound", "multithread", "nomultithread"):
            raise ValueError(value)
        if value == "nomultithread":
            job["threads_per_core"] = 1
        _variable(job, "SLURM_HINT", value)
    elif name == "mem-bind":
        # As sbatch does: the steps inside the job read it.
        _variable(job, "SLURM_MEM_BIND", value)
    elif name == "exclude":
        member = "exclude_nodes" if old else "excluded_nodes"
        here = job.get(member)
        if old:
            job[member] = ",".join(filter(None, [here, value]))
        else:
            job[member] = [*(here or []), value]
    else:
        return False
    return True


def _variable(job: Job, name: str, value: str) -> None:
    environment = job["environment"]
    if isinstance(environment, list):
        environment.append(f"{name}={value}")
    else:
        environment[name] = value


# --- v0.0.38


def _old(job: Job, name: str, value: str) -> bool:
    if name in _OLD_TEXTS:
        job[_OLD_TEXTS[name]] = value
    elif name in _OLD_NUMBERS:
        _number_of(job, name, _OLD_NUMBERS[name], value)
    elif name in _OLD_FLAGS:
        job[_OLD_FLAGS[name]] = True
    elif name == "begin":
        # This version reads text here, and of instants only this form.
        job["begin_time"] = f"uts{instant(value)}"
    elif name == "cpus-per-gpu":
        # This version refuses both.
        job["cpus_per_gpu"] = str(int(value))
        job.pop("cpus_per_task", None)
    elif name == "delay-boot":
        job["delay_boot"] = _minutes(value)
    elif name == "exclusive":
        job["exclusive"] = {"": "exclusive", "user": "user", "mcs": "mcs"}[value.lower()]
    elif name == "gres":
        job["gres"] = ",".join(filter(None, [job.get("gres"), value]))
    elif name == "kill-on-invalid-dep":
        job["kill_on_invalid_dependency"] = {"yes": True, "no": False}[value.lower()]
    elif name == "mem-per-cpu":
        job["memory_per_cpu"] = _mib(value)
    elif name == "mem-per-gpu":
        job["memory_per_gpu"] = _mib(value)
    elif name == "nice":
        job["nice"] = int(value or 100)
    elif name == "no-kill":
        # Words of this version: "set" is what the option without a value means.
        job["no_kill"] = "no" if value.lower() == "off" else "set"
    elif name == "ntasks":
        _ntasks(job, value)
    elif name == "overcommit":
        # This version lets REST set it for no job; the steps inside read it from their environment.
        _variable(job, "SLURM_OVERCOMMIT", "1")
    elif name == "signal" and not re.match(r"R?B", value.upper() if ":" in value else ""):
        # Signals for the batch script alone are refused by this version.
        job["signal"] = value
    elif name == "time-min":
        job["time_minimum"] = _minutes(value)
    elif name == "tmp":
        job["temporary_disk_per_node"] = _mib(value)
    elif name == "wait-all-nodes":
        # A number here, true or false in the later versions.
        job["wait_all_nodes"] = int(value)
    else:
        return _shared(job, name, value, old=True)
    return True
