"""Jobs, nodes and partitions as each REST version writes them: v0.0.38 from 22.05, v0.0.42 from 24.11."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sandbox.slurm.hostlists import compress
from sandbox.slurm.model import Job, NodeMarks
from sandbox.world import Node

CLUSTER = "sandbox"
OLD_META = {
    "plugin": {"type": "openapi/v0.0.38", "name": "Slurm OpenAPI v0.0.38"},
    "Slurm": {"version": {"major": 22, "micro": 8, "minor": 5}, "release": "22.05.8"},
}
NEW_META = {
    "plugin": {
        "type": "openapi/slurmctld",
        "name": "Slurm OpenAPI slurmctld",
        "data_parser": "data_parser/v0.0.42",
        "accounting_storage": "accounting_storage/slurmdbd",
    },
    "client": {"source": "[localhost]", "user": "root", "group": "root"},
    "command": [],
    "slurm": {
        "version": {"major": "24", "micro": "5", "minor": "11"},
        "release": "24.11.5",
        "cluster": CLUSTER,
    },
}
_SIGNALS = {1: "HUP", 2: "INT", 6: "ABRT", 9: "KILL", 11: "SEGV", 15: "TERM"}
_SIGNAL_TEXTS = {1: "Hangup", 2: "Interrupt", 6: "Aborted", 9: "Killed", 11: "Segmentation fault", 15: "Terminated"}


def number(value: float | None, *, infinite: bool = False) -> dict[str, Any]:
    """A number as v0.0.40 and later write it."""
    known = value is not None and not infinite
    return {"set": known, "infinite": infinite, "number": int(value) if known and value is not None else 0}


def _tres(job: Job, *, allocated: bool) -> str:
    if allocated and not job.nodes:
        return ""
    count = len(job.nodes) if allocated else job.node_count
    cpus = job.cpus_per_node * count if allocated else job.tasks * job.cpus_per_task
    parts = [f"cpu={cpus}"]
    if job.memory_mib:
        parts.append(f"mem={job.memory_mib * count}M")
    parts += [f"node={count}", f"billing={cpus}"]
    if job.gpus_per_node:
        parts.append(f"gres/gpu={job.gpus_per_node * count}")
    return ",".join(parts)


def _gres_detail(job: Job, gpu_type: str) -> list[str]:
    if job.state != "RUNNING" or not job.gpus_per_node:
        return []
    last = job.gpus_per_node - 1
    where = f"0-{last}" if last else "0"
    return [f"gpu:{gpu_type}:{job.gpus_per_node}(IDX:{where})" for _ in job.nodes]


def _times(job: Job) -> tuple[int, int]:
    """(start, end) as the queue shows them: expected ones while waiting, the time limit's end while running."""
    limit_s = job.time_limit_min * 60
    if job.state == "PENDING":
        start = int(job.expected_at)
        return start, start + limit_s if start else 0
    if job.state == "RUNNING":
        return int(job.started_at), int(job.started_at) + limit_s
    return int(job.started_at), int(job.ended_at)


def _shown_status(job: Job) -> int:
    return 0 if job.completing or job.state == "RUNNING" else job.exit_status


def old_job(job: Job, gpu_type: str) -> dict[str, Any]:
    """A job of the queue in v0.0.38: plain values, one state word."""
    start, end = _times(job)
    return {
        "account": job.account,
        "array_job_id": job.array_id,
        "array_max_tasks": job.array_limit,
        "array_task_id": job.array_task,
        "array_task_string": job.array_pending,
        "batch_host": job.nodes[0] if job.nodes else "",
        "cluster": CLUSTER,
        "comment": job.comment,
        "cpus": job.cpus_per_node * max(1, len(job.nodes)),
        "current_working_directory": job.work_dir,
        "dependency": job.dependency,
        "derived_exit_code": 0,
        "eligible_time": int(job.eligible_at or job.submitted_at),
        "end_time": end,
        "excluded_nodes": compress(job.excluded),
        "exit_code": _shown_status(job),
        "features": job.features,
        "gres_detail": _gres_detail(job, gpu_type),
        "het_job_id": job.het_id,
        "het_job_id_set": "",
        "het_job_offset": job.het_offset,
        "job_id": job.job_id,
        "job_state": "COMPLETING" if job.completing else job.state,
        "max_nodes": job.node_count,
        "memory_per_node": job.memory_mib or None,
        "name": job.name,
        "node_count": job.node_count,
        "nodes": compress(job.nodes),
        "partition": job.partition,
        "priority": job.priority,
        "qos": job.qos,
        "requeue": job.requeue,
        "restart_cnt": job.restarts,
        "resv_name": job.reservation,
        "standard_error": job.stderr,
        "standard_input": "",
        "standard_output": job.stdout,
        "start_time": start,
        "state_description": job.description,
        "state_reason": job.reason,
        "submit_time": int(job.submitted_at),
        "tasks": job.tasks,
        "tasks_per_node": job.tasks_per_node,
        "time_limit": job.time_limit_min,
        "tres_alloc_str": _tres(job, allocated=True),
        "tres_per_node": f"gres:{job.gres}" if job.gres else "",
        "tres_req_str": _tres(job, allocated=False),
        "user_id": os.getuid(),
        "user_name": job.user,
    }


def _new_exit(status: int) -> dict[str, Any]:
    signal = status & 0x7F
    code = (status >> 8) & 0xFF
    word = "SIGNALED" if signal else "ERROR" if code else "SUCCESS"
    return {
        "status": [word],
        "return_code": number(None if signal else code),
        "signal": {"id": number(signal or None), "name": _SIGNALS.get(signal, "") if signal else ""},
    }


def new_states(job: Job) -> list[str]:
    """The state words of v0.0.40 and later."""
    return [job.state, "COMPLETING"] if job.completing else [job.state]


def new_job(job: Job, gpu_type: str) -> dict[str, Any]:
    """A job of the queue in v0.0.42: numbers as structures, states as a list."""
    start, end = _times(job)
    return {
        **old_job(job, gpu_type),
        "array_job_id": number(job.array_id),
        "array_max_tasks": number(job.array_limit),
        "array_task_id": number(job.array_task),
        "cpus": number(job.cpus_per_node * max(1, len(job.nodes))),
        "derived_exit_code": _new_exit(0),
        "eligible_time": number(job.eligible_at or job.submitted_at),
        "end_time": number(end),
        "exit_code": _new_exit(_shown_status(job)),
        "hold": bool(job.held),
        "het_job_id": number(job.het_id),
        "het_job_offset": number(job.het_offset),
        "job_state": new_states(job),
        "max_nodes": number(job.node_count),
        "memory_per_node": number(job.memory_mib or None),
        "node_count": number(job.node_count),
        "priority": number(job.priority),
        "start_time": number(start),
        "submit_time": number(job.submitted_at),
        "tasks": number(job.tasks),
        "tasks_per_node": number(job.tasks_per_node),
        "time_limit": number(job.time_limit_min),
        "tres_per_node": f"gres/{job.gres}" if job.gres else "",
    }


def _accounting_tres(job: Job, *, allocated: bool) -> list[dict[str, Any]]:
    text = _tres(job, allocated=allocated)
    entries = []
    for item in text.split(",") if text else []:
        name, _, count = item.partition("=")
        kind, _, sub = name.partition("/")
        entries.append({"type": kind, "name": sub or None, "id": 1001 if sub else 1, "count": int(count.rstrip("M"))})
    return entries


def _accounting(job: Job) -> dict[str, Any]:
    ended = int(job.ended_at) if job.ended else 0
    return {
        "account": job.account,
        "array": {
            "job_id": job.array_id,
            "limits": {"max": {"running": {"tasks": job.array_limit}}},
            "task": None,
            "task_id": job.array_task,
        },
        "comment": {"administrator": None, "job": job.comment or None, "system": None},
        "constraints": job.features,
        "allocation_nodes": len(job.nodes),
        "association": {"account": job.account, "cluster": CLUSTER, "partition": None, "user": job.user},
        "cluster": CLUSTER,
        "het": {"job_id": job.het_id, "job_offset": job.het_offset if job.het_id else None},
        "job_id": job.job_id,
        "name": job.name,
        "nodes": compress(job.nodes) or "None assigned",
        "partition": job.partition,
        "qos": job.qos,
        "reservation": {"id": 0, "name": job.reservation or 0},
        "steps": [],
        "time": {
            "elapsed": max(0, ended - int(job.started_at)) if job.started_at and ended else 0,
            "eligible": int(job.eligible_at or job.submitted_at),
            "end": ended,
            "start": int(job.started_at),
            "submission": int(job.submitted_at),
            "suspended": 0,
        },
        "tres": {
            "allocated": _accounting_tres(job, allocated=True),
            "requested": _accounting_tres(job, allocated=False),
        },
        "user": job.user,
        "working_directory": job.work_dir,
    }


def old_accounting_job(job: Job) -> dict[str, Any]:
    """A job of slurmdb in v0.0.38, which says SUCCESS and 0 for every exit code but a signal."""
    record = _accounting(job)
    signal = job.exit_status & 0x7F
    record["exit_code"] = {"status": "SUCCESS", "return_code": 0}
    if signal and job.nodes:
        record["exit_code"] = {
            "status": "SIGNALED",
            "return_code": None,
            "signal": {"signal_id": signal, "name": _SIGNAL_TEXTS.get(signal, f"Signal {signal}")},
        }
    record["state"] = {"current": job.state, "reason": "None"}
    record["time"]["limit"] = job.time_limit_min
    record["priority"] = job.priority
    return record


def new_accounting_job(job: Job) -> dict[str, Any]:
    """A job of slurmdb in v0.0.42."""
    record = _accounting(job)
    record["comment"] = {"administrator": "", "job": job.comment, "system": ""}
    record["exit_code"] = _new_exit(job.exit_status if job.ended else 0)
    record["state"] = {"current": [job.state], "reason": "None"}
    record["time"]["limit"] = number(job.time_limit_min)
    record["priority"] = number(job.priority)
    record["restart_cnt"] = job.restarts
    record["array"] = {**record["array"], "task": "", "task_id": number(job.array_task)}
    record["het"] = {"job_id": job.het_id, "job_offset": number(job.het_offset if job.het_id else None)}
    record["reservation"] = {"id": 0, "name": job.reservation}
    return record


def state_keys(job: Job) -> list[str]:
    """How the list of states names a job: its number, with the part of a heterogeneous job or each task behind it."""
    if job.het_id:
        return [f"{job.job_id}+{job.het_offset}"]
    if job.array_task is not None:
        return [f"{job.job_id}_{job.array_task}"]
    if job.array_pending:
        return [f"{job.job_id}_{task}" for task in tasks_of(job.array_pending)]
    return [str(job.job_id)]


def tasks_of(text: str) -> list[int]:
    """The tasks in Slurm's words: "0-20%3" or "1,3,5-9:2"."""
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def _node_state(node: Node, marks: NodeMarks, jobs: list[Job]) -> tuple[str, list[str]]:
    running = [job for job in jobs if job.state == "RUNNING"]
    used = sum(job.cpus_per_node for job in running)
    if not node.up:
        word = "DOWN"
    elif used >= node.cpus:
        word = "ALLOCATED"
    elif running:
        word = "MIXED"
    else:
        word = "IDLE"
    flags = []
    if any(job.completing for job in jobs):
        flags.append("COMPLETING")
    if marks.drained:
        flags.append("DRAIN")
    if not node.up:
        flags.append("NOT_RESPONDING")
    return word, flags


def old_node(node: Node, marks: NodeMarks, jobs: list[Job]) -> dict[str, Any]:
    """A node in v0.0.38."""
    word, flags = _node_state(node, marks, jobs)
    gpus = sum(job.gpus_per_node for job in jobs)
    cpus = sum(job.cpus_per_node for job in jobs)
    used = f"gpu:{node.gpu_type}:{gpus}(IDX:{f'0-{gpus - 1}' if gpus > 1 else '0' if gpus else 'N/A'})"
    return {
        "address": "127.0.0.1",
        "alloc_cpus": cpus,
        "cpus": node.cpus,
        "gres": f"gpu:{node.gpu_type}:{len(node.gpus)}" if node.gpus else "",
        "gres_used": used if node.gpus else "",
        "hostname": node.name,
        "idle_cpus": max(0, node.cpus - cpus),
        "name": node.name,
        "partitions": [node.partition],
        "real_memory": node.memory_mib,
        "reason": marks.reason,
        "reason_changed_at": int(marks.reason_at),
        "reason_set_by_user": marks.reason_user or None,
        "slurmd_start_time": int(node.joined_at),
        "slurmd_version": "22.05.8",
        "state": word.lower(),
        "state_flags": flags,
        "tres": f"cpu={node.cpus},mem={node.memory_mib}M,billing={node.cpus},gres/gpu={len(node.gpus)}",
        "tres_used": f"cpu={cpus}" if cpus else None,
    }


def new_node(node: Node, marks: NodeMarks, jobs: list[Job]) -> dict[str, Any]:
    """A node in v0.0.42."""
    record = old_node(node, marks, jobs)
    word, flags = _node_state(node, marks, jobs)
    del record["state_flags"], record["idle_cpus"], record["slurmd_version"]
    return {
        **record,
        "alloc_idle_cpus": max(0, node.cpus - record["alloc_cpus"]),
        "instance_id": node.instance_id,
        "instance_type": node.instance_type,
        "reason_changed_at": number(marks.reason_at),
        "reason_set_by_user": marks.reason_user,
        "slurmd_start_time": number(node.joined_at),
        "state": [word, *flags],
        "tres_used": record["tres_used"] or "",
        "version": "24.11.5",
    }


def old_partition(name: str, nodes: list[Node], max_time_min: int, *, default: bool) -> dict[str, Any]:
    """A partition in v0.0.38."""
    return {
        "flags": ["default"] if default else [],
        "default_time_limit": 60,
        "max_time_limit": max_time_min,
        "maximum_nodes_per_job": -1,
        "name": name,
        "nodes": compress(node.name for node in nodes),
        "state": "UP",
        "total_cpus": sum(node.cpus for node in nodes),
        "total_nodes": len(nodes),
    }


def new_partition(name: str, nodes: list[Node], max_time_min: int) -> dict[str, Any]:
    """A partition in v0.0.42, which does not say which one is the default."""
    return {
        "name": name,
        "nodes": {"allowed_allocation": "", "configured": compress(node.name for node in nodes), "total": len(nodes)},
        "cpus": {"task_binding": 0, "total": sum(node.cpus for node in nodes)},
        "defaults": {"time": number(60)},
        "maximums": {"time": number(max_time_min), "nodes": number(None, infinite=True)},
        "partition": {"state": ["UP"]},
    }


def entry(description: str, code: int, error: str, source: str) -> Mapping[str, Any]:
    """An entry of ``errors`` in its full form."""
    return {"description": description, "error_number": code, "error": error, "source": source}
