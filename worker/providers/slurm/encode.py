"""From a submit request to slurmrestd's JSON, in v0.0.38's dialect and in that of all later versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from worker.providers import errors as e
from worker.providers import values as v
from worker.providers.slurm import options
from worker.providers.slurm.errors import SOURCE
from worker.providers.slurm.versions import OLD

#: What slurmctld takes at most with its default max_script_size.
MAX_SCRIPT_BYTES = 4 * 1024 * 1024
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}")
#: A job, or a task of an array by the array's id: "21_9".
_JOB_ID = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,7})?")
_PARTITION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,-]{0,253}")


def node_name(name: str) -> str:
    """The name, if it can be one. Raises InvalidRequest, so that no odd text reaches a command line or a path."""
    if not _NODE_NAME.fullmatch(name):
        raise e.InvalidRequest(f"{name[:80]!r} cannot be a node name", source=SOURCE, code="node")
    return name


def job_id(scheduler_id: str) -> str:
    """The id, if it can be one. Raises NotFound: a job with another kind of id does not exist."""
    if not _JOB_ID.fullmatch(scheduler_id):
        raise e.NotFound(f"{scheduler_id[:80]!r} is no Slurm job id", source=SOURCE, code="job")
    return scheduler_id


def _refuse(message: str) -> e.InvalidRequest:
    return e.InvalidRequest(message, source=SOURCE, code="submit")


def _check(request: v.SubmitRequest) -> None:
    """Refuse what Slurm would take and then fail without a word."""
    if not request.script.startswith("#!"):
        raise _refuse("the script's first line must name its interpreter, for example #!/bin/bash")
    if "\0" in request.script:
        raise _refuse("the script holds a NUL byte")
    if len(request.script.encode()) > MAX_SCRIPT_BYTES:
        raise _refuse(f"the script is over {MAX_SCRIPT_BYTES // 1024**2} MiB")
    if not request.working_directory.startswith("/"):
        raise _refuse(f"the working directory {request.working_directory!r} is not an absolute path")
    for label, value, least in (
        ("nodes", request.nodes, 1),
        ("gpus_per_node", request.gpus_per_node, 0),
        ("tasks_per_node", request.tasks_per_node, 1),
        ("cpus_per_task", request.cpus_per_task, 1),
        ("memory_per_node_mib", request.memory_per_node_mib, 0),
        ("time_limit_min", request.time_limit_min, 1),
    ):
        if value < least:
            raise _refuse(f"{label} must be at least {least}, not {value}")
    for key, content in request.environment.items():
        if not key or "=" in key or "\0" in key or "\0" in content:
            raise _refuse(f"the environment variable {key[:80]!r} has a name or value that no process can have")
    for name in request.excluded_nodes:
        node_name(name)


def _environment(request: v.SubmitRequest) -> dict[str, str]:
    """The job's environment, with what sbatch would have put there itself and REST does not."""
    told = {
        "SLURM_SUBMIT_DIR": request.working_directory,
        "SLURM_NTASKS_PER_NODE": str(request.tasks_per_node),
        "SLURM_CPUS_PER_TASK": str(request.cpus_per_task),
        "SRUN_CPUS_PER_TASK": str(request.cpus_per_task),
    }
    return {"PATH": _DEFAULT_PATH, **told, **request.environment}


def _warned(request: v.SubmitRequest) -> v.SubmitRequest:
    """For v0.0.38, which cannot warn the batch script: the script warns itself, so long before its limit.

    The shell that waits has left the job's way: it holds none of its descriptors and dies with it.
    """
    for option in request.options:
        found = re.fullmatch(r"--signal=R?BR?:(?:SIG)?([A-Za-z0-9]+)(?:@(\d+))?", option)
        if found is None:
            continue
        after_s = max(0, request.time_limit_min * 60 - int(found[2] or 60))
        first, newline, rest = request.script.partition("\n")
        warning = (
            f'(sleep {after_s}; exec scancel --batch --signal={found[1].upper()} "$SLURM_JOB_ID")'
            " </dev/null >/dev/null 2>&1 &"
        )
        options = tuple(one for one in request.options if one != option)
        return replace(request, script=f"{first}\n{warning}\n{rest}" if newline else request.script, options=options)
    return request


def submit(request: v.SubmitRequest, version: str, ahead_s: int = 0) -> Mapping[str, Any]:
    """The body of a submit in this REST version. Raises InvalidRequest for what no Slurm would run.

    ``ahead_s`` is by how much Slurm's clock is ahead of ours, for its options that are an instant.
    """
    _check(request)
    if request.parts and request.array:
        raise _refuse("a heterogeneous job cannot be an array")
    if version == OLD:
        request = _warned(request)
    job = _job(request, version, ahead_s)
    if not request.parts:
        return {"script": request.script, "job": job}
    parts = [_of_part(request, part, version) for part in request.parts]
    for part in parts:
        _check(part)
    return {"script": request.script, "jobs": [job, *(_job(part, version, ahead_s) for part in parts)]}


def _of_part(request: v.SubmitRequest, part: v.SubmitPart, version: str) -> v.SubmitRequest:
    """A further part as a request by itself. Every part carries the comment, so that a search finds all of them."""
    options = part.options
    if version == OLD:
        # No script runs there that could be warned.
        options = tuple(one for one in options if not re.match(r"--signal=R?BR?:", one))
    return replace(
        request,
        partition=part.partition,
        nodes=part.nodes,
        gpus_per_node=part.gpus_per_node,
        gpu_type=part.gpu_type,
        tasks_per_node=part.tasks_per_node,
        cpus_per_task=part.cpus_per_task,
        memory_per_node_mib=part.memory_per_node_mib,
        time_limit_min=part.time_limit_min or request.time_limit_min,
        name=part.name or request.name,
        options=options,
        stdout_path="",
        parts=(),
    )


def _job(request: v.SubmitRequest, version: str, ahead_s: int) -> dict[str, Any]:
    """What is asked for, without the script."""
    old = version == OLD
    environment = _environment(request)
    job: dict[str, Any] = {
        "name": request.name,
        "comment": request.comment,
        # Both releases start too few tasks when only tasks_per_node is given.
        "tasks": request.nodes * request.tasks_per_node,
        "tasks_per_node": request.tasks_per_node,
        "cpus_per_task": request.cpus_per_task,
        "time_limit": request.time_limit_min,
        "current_working_directory": request.working_directory,
    }
    for key, value in (
        # 24.11 takes an empty name for a partition's.
        ("partition", request.partition),
        ("account", request.account),
        ("qos", request.qos),
        ("standard_output", request.stdout_path),
        ("array", request.array),
    ):
        if value:
            job[key] = value
    gpu = f"{request.gpu_type}:{request.gpus_per_node}" if request.gpu_type else str(request.gpus_per_node)
    if old:
        # A list [least, most] is described for this version, and read as one node by it.
        job["nodes"] = request.nodes
        job["environment"] = environment
        if not request.requeue:
            # "requeue": false is taken by this version and does nothing.
            job["no_requeue"] = True
        if request.gpus_per_node:
            job["gres"] = f"gpu:{gpu}"
        if request.memory_per_node_mib:
            job["memory_per_node"] = request.memory_per_node_mib
        if request.excluded_nodes:
            # Not in v0.0.38's own description, whose "excluded_nodes" is refused; read as sbatch's --exclude.
            job["exclude_nodes"] = ",".join(request.excluded_nodes)
    else:
        job["nodes"] = str(request.nodes)
        job["requeue"] = request.requeue
        job["time_limit"] = _set(request.time_limit_min)
        job["environment"] = [f"{key}={value}" for key, value in environment.items()]
        if request.gpus_per_node:
            job["tres_per_node"] = f"gres/gpu:{gpu}"
        if request.memory_per_node_mib:
            job["memory_per_node"] = _set(request.memory_per_node_mib)
        if request.excluded_nodes:
            job["excluded_nodes"] = list(request.excluded_nodes)
    options.apply(job, request.options, version, ahead_s)
    return job


def submit_path(version: str) -> str:
    """Where a submit goes in this REST version."""
    return f"/slurm/{version}/job/submit"


def change(wanted: v.JobChange, version: str) -> Mapping[str, Any]:
    """The body of an update in this REST version. Raises InvalidRequest for nothing or the impossible."""
    old = version == OLD
    body: dict[str, Any] = {}
    if wanted.time_limit_min is not None:
        if wanted.time_limit_min < 1:
            raise e.InvalidRequest("a time limit is at least a minute", source=SOURCE, code="update")
        body["time_limit"] = wanted.time_limit_min if old else _set(wanted.time_limit_min)
    if wanted.partition is not None:
        body["partition"] = partition_name(wanted.partition)
    if wanted.nice is not None:
        body["nice"] = wanted.nice
    if not body:
        raise e.InvalidRequest("nothing is to be changed", source=SOURCE, code="update")
    return body


def change_words(wanted: v.JobChange) -> list[str]:
    """The same for scontrol's command line."""
    words = []
    if wanted.time_limit_min is not None:
        words.append(f"timelimit={wanted.time_limit_min}")
    if wanted.partition is not None:
        words.append(f"partition={partition_name(wanted.partition)}")
    if wanted.nice is not None:
        words.append(f"nice={wanted.nice}")
    return words


def partition_name(name: str) -> str:
    """The name, if it can be one or several. Raises InvalidRequest, so that no odd text reaches a command line."""
    if not _PARTITION.fullmatch(name):
        raise e.InvalidRequest(f"{name[:80]!r} cannot be a partition", source=SOURCE, code="partition")
    return name


def _set(number: int) -> Mapping[str, Any]:
    return {"set": True, "infinite": False, "number": number}
