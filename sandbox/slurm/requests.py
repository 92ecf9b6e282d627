"""Submit bodies read as each REST version reads them, refusals included."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox.slurm.hostlists import expand
from sandbox.slurm.model import Job, Refused

#: Keys that 22.05 takes in "job"; it answers any other with HTTP 400.
OLD_KEYS = frozenset(
    [
        "account",
        "account_gather_frequency",
        "argv",
        "array",
        "batch_features",
        "begin_time",
        "burst_buffer",
        "cluster_constraint",
        "comment",
        "constraints",
        "container",
        "core_specification",
        "cores_per_socket",
        "cpu_binding",
        "cpu_binding_hint",
        "cpu_frequency",
        "cpus_per_gpu",
        "cpus_per_task",
        "current_working_directory",
        "deadline",
        "delay_boot",
        "dependency",
        "distribution",
        "environment",
        "exclude_nodes",
        "exclusive",
        "get_user_environment",
        "gpu_binding",
        "gpu_frequency",
        "gpus",
        "gpus_per_node",
        "gpus_per_socket",
        "gpus_per_task",
        "gres",
        "gres_flags",
        "hold",
        "kill_on_invalid_dependency",
        "licenses",
        "mail_type",
        "mail_user",
        "mcs_label",
        "memory_binding",
        "memory_per_cpu",
        "memory_per_gpu",
        "memory_per_node",
        "minimum_cpus_per_node",
        "minimum_nodes",
        "name",
        "nice",
        "no_kill",
        "no_requeue",
        "nodes",
        "open_mode",
        "oversubscribe",
        "partition",
        "prefer",
        "priority",
        "qos",
        "requeue",
        "reservation",
        "signal",
        "sockets_per_node",
        "spread_job",
        "standard_error",
        "standard_input",
        "standard_output",
        "tasks",
        "tasks_per_core",
        "tasks_per_node",
        "tasks_per_socket",
        "thread_specification",
        "threads_per_core",
        "time_limit",
        "time_minimum",
        "wait_all_nodes",
        "wckey",
    ]
)
OLD_DISABLED = frozenset({"excluded_nodes", "required_nodes"})
NEW_KEYS = frozenset(
    [
        "account",
        "account_gather_frequency",
        "admin_comment",
        "argv",
        "array",
        "batch_features",
        "begin_time",
        "burst_buffer",
        "comment",
        "constraints",
        "container",
        "contiguous",
        "cpus_per_task",
        "cpus_per_tres",
        "current_working_directory",
        "deadline",
        "delay_boot",
        "dependency",
        "distribution",
        "environment",
        "excluded_nodes",
        "extra",
        "flags",
        "hold",
        "kill_on_node_fail",
        "licenses",
        "mail_type",
        "mail_user",
        "maximum_cpus",
        "maximum_nodes",
        "memory_per_cpu",
        "memory_per_node",
        "memory_per_tres",
        "minimum_cpus",
        "minimum_cpus_per_node",
        "minimum_nodes",
        "name",
        "nice",
        "nodes",
        "ntasks_per_tres",
        "open_mode",
        "overcommit",
        "partition",
        "prefer",
        "priority",
        "profile",
        "qos",
        "reboot",
        "requeue",
        "required_nodes",
        "reservation",
        "rlimits",
        "script",
        "segment_size",
        "shared",
        "standard_error",
        "standard_input",
        "standard_output",
        "tasks",
        "tasks_per_core",
        "tasks_per_node",
        "tasks_per_socket",
        "temporary_disk_per_node",
        "threads_per_core",
        "time_limit",
        "time_minimum",
        "tres_bind",
        "tres_freq",
        "tres_per_job",
        "tres_per_node",
        "tres_per_socket",
        "tres_per_task",
        "user_id",
        "wait_all_nodes",
        "wckey",
    ]
)
_GRES = re.compile(r"(?:gres[/:])?gpu(?::(?P<type>[A-Za-z]\w*))?(?:[:=](?P<count>\d+))?")


class Unreadable(Exception):
    """The body cannot be read; ``errors`` and the HTTP ``status`` are what the version answers."""

    def __init__(self, status: int, errors: list[dict[str, Any]]) -> None:
        super().__init__(str(errors))
        self.status = status
        self.errors = errors


@dataclass
class Submission:
    """A readable submit: the job's fields, and what the version warns of."""

    fields: dict[str, Any]
    warnings: list[dict[str, Any]] = field(default_factory=list)

    def job(self, job_id: int) -> Job:
        """The job under its number."""
        return Job(job_id=job_id, submitted_at=time.time(), **self.fields)


def _number(value: Any, default: int) -> int:
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) else None
    try:
        return default if value is None else int(value)
    except (TypeError, ValueError):
        raise Unreadable(400, [{"error_code": 9001, "error": "Failure during parsing"}]) from None


def _gpus(text: Any) -> tuple[str, int]:
    match = _GRES.fullmatch(str(text or ""))
    if match is None:
        if text:
            raise Refused(2072)
        return "", 0
    return match.group("type") or "", int(match.group("count") or 1)


def _common(body: Mapping[str, Any], job: Mapping[str, Any], user: str, default_time_min: int) -> dict[str, Any]:
    per_node = _number(job.get("tasks_per_node"), 0)
    return {
        "user": user,
        "name": str(job.get("name") or ""),
        "script": str(body["script"]),
        "work_dir": str(job.get("current_working_directory") or "/tmp"),  # noqa: S108 - slurmrestd's own habit
        "partition": str(job.get("partition") or ""),
        "comment": str(job.get("comment") or ""),
        "account": str(job.get("account") or "default"),
        "qos": str(job.get("qos") or "normal"),
        "stdout": str(job.get("standard_output") or ""),
        "stderr": str(job.get("standard_error") or ""),
        "tasks_per_node": per_node,
        "cpus_per_task": max(1, _number(job.get("cpus_per_task"), 1)),
        "memory_mib": _number(job.get("memory_per_node"), 0),
        "time_limit_min": _number(job.get("time_limit"), default_time_min),
        "requeue": True,
        "nice": _number(job.get("nice"), 0),
        "array_pending": str(job.get("array") or ""),
        "held": "user" if str(job.get("hold", False)).lower() == "true" else "",
    }


def read_old(body: Any, user: str, default_time_min: int) -> Submission:
    """A submit to v0.0.38. Raises Unreadable or Refused."""
    job = body.get("job") if isinstance(body, Mapping) else None
    if not isinstance(body, Mapping) or not body.get("script"):
        raise Refused(2009)
    job = job if isinstance(job, Mapping) else {}
    failed = {"error_code": 9001, "error": "Failure during parsing"}
    for key in job:
        if key in OLD_DISABLED:
            disabled = {
                "description": f'Disabled key: "{key}"',
                "error_number": 1,
                "error": "Operation not permitted",
                "source": "openapi specification",
            }
            raise Unreadable(400, [disabled, failed])
        if key not in OLD_KEYS:
            raise Unreadable(400, [{"description": f'Unknown key "{key}"', "source": "hsearch_r"}, failed])
    environment = job.get("environment")
    if not isinstance(environment, Mapping) or not environment:
        raise Unreadable(400, [{"error": "environment must be set", "error_code": 2127}, failed])
    if not isinstance(job.get("exclude_nodes", ""), str):
        unread = {
            "description": 'Unable to process key "exclude_nodes"',
            "error_number": -1,
            "error": "Unspecified error",
            "source": "slurm_process_option_data",
        }
        raise Unreadable(400, [unread, failed])
    fields = _common(body, job, user, default_time_min)
    # A list is in the description of this version and read as one node by it.
    nodes = 1 if isinstance(job.get("nodes"), list) else _number(str(job.get("nodes", 1)).partition("-")[0], 1)
    gpu_type, gpus = _gpus(job.get("gres"))
    fields |= {
        "environment": {str(key): str(value) for key, value in environment.items()},
        # "requeue": false is taken and ignored by this version.
        "requeue": str(job.get("no_requeue", "false")).lower() != "true",
        "node_count": nodes,
        "gpu_type": gpu_type,
        "gpus_per_node": gpus,
        "tasks": _number(job.get("tasks"), nodes * max(1, fields["tasks_per_node"])),
        "excluded": expand(job.get("exclude_nodes", "")),
    }
    return Submission(fields)


def read_new(body: Any, user: str, default_time_min: int) -> Submission:
    """A submit to v0.0.42. Raises Unreadable or Refused."""
    job = body.get("job") if isinstance(body, Mapping) else None
    job = job if isinstance(job, Mapping) else {}
    script = (body.get("script") if isinstance(body, Mapping) else None) or job.get("script")
    if not script:
        text = 'Populated "script" field is required for job submission'
        raise Unreadable(422, [_entry(text, 9000, "Query empty or not RFC7320 compliant", "_job_post")])
    warnings = [
        {
            "description": f'Ignoring unknown field "{key}" of type {_kind(value)} in DATA_PARSER_JOB_DESC_MSG',
            "source": f"#/job/{key}/",
        }
        for key, value in job.items()
        if key not in NEW_KEYS
    ]
    environment = job.get("environment")
    if not isinstance(environment, list) or not environment:
        failed = _entry(
            "Batch job submission failed",
            2019,
            "I/O error writing script/environment to file",
            "slurm_submit_batch_job()",
        )
        raise Unreadable(500, [failed])
    if not job.get("current_working_directory"):
        raise Refused(2063)
    fields = _common({"script": script}, job, user, default_time_min)
    nodes = _number(str(job.get("nodes") or _number(job.get("minimum_nodes"), 1)).partition("-")[0], 1)
    gpu_type, gpus = _gpus(job.get("tres_per_node"))
    excluded = job.get("excluded_nodes") or []
    fields |= {
        "environment": dict(str(item).partition("=")[::2] for item in environment),
        "node_count": nodes,
        "gpu_type": gpu_type,
        "gpus_per_node": gpus,
        "requeue": bool(job.get("requeue", True)),
        # This version runs one task a node when only tasks_per_node is given.
        "tasks": _number(job.get("tasks"), nodes),
        "excluded": expand(excluded) if isinstance(excluded, str) else [str(name) for name in excluded],
    }
    return Submission(fields, warnings)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "64 bit integer"
    return {str: "string", list: "list", dict: "dictionary", float: "floating point number"}.get(type(value), "null")


def _entry(description: str, number: int, error: str, source: str) -> dict[str, Any]:
    return {"description": description, "error_number": number, "error": error, "source": source}
