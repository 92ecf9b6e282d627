"""What a pod starts: the person's script, run by the runner that reports on it, unpacked from a ConfigMap."""

from __future__ import annotations

import shlex
from typing import Any

from worker.providers.kubernetes.names import annotations_of, labels_of, object_name
from worker.providers.workload_values import WorkloadSpec

#: Where the ConfigMap is mounted.
FOLDER = "/quarterdeck"
#: A ConfigMap holds one MiB with all its keys.
CONFIG_MAP_MAX = 1_000_000

_ARRAY = """\
# The task's own number by the completion index of its pod.
set -- $QD_ARRAY_TASKS
shift "${JOB_COMPLETION_INDEX:-0}"
export QD_ARRAY_TASK="$1" SLURM_ARRAY_TASK_ID="$1"
[ -z "${QD_CHECKPOINT_DIR:-}" ] || export QD_CHECKPOINT_DIR="$QD_CHECKPOINT_DIR/task-$1"
"""


def interpreter(script: str) -> str:
    """What the script's first line asks for, /bin/bash without one."""
    first = script.split("\n", 1)[0].rstrip("\r")
    return first[2:].strip() or "/bin/bash" if first.startswith("#!") else "/bin/bash"


def start_script(spec: WorkloadSpec) -> str:
    """The text of /quarterdeck/start, by plain sh.

    The first rank reports as the job, every other one as its rank. In an image without Python the script runs without
    the runner: reporting is lost, the job is not.
    """
    command = f"{interpreter(spec.script)} {FOLDER}/script" if spec.script else shlex.join(spec.command)
    lines = ["#!/bin/sh", "set -u", 'export NODE_RANK="${NODE_RANK:-${PET_NODE_RANK:-${RANK:-0}}}"']
    if spec.array:
        lines.append(_ARRAY.rstrip("\n"))
    lines.append('[ -z "${QD_CHECKPOINT_DIR:-}" ] || mkdir -p "$QD_CHECKPOINT_DIR"')
    if spec.runner:
        lines += [
            f'export QD_RUNNER={FOLDER}/quarterdeck_runner.py SLURMD_NODENAME="${{QD_NODE_NAME:-}}"',
            "if command -v python3 >/dev/null 2>&1; then",
            "  role=batch",
            '  [ "$NODE_RANK" = 0 ] || role=rank'
            if not spec.array
            else "  # Each task of an array reports for itself.",
            f'  exec python3 -I "$QD_RUNNER" --role "$role" -- {command}',
            "fi",
            'echo "quarterdeck: no python3 in this image; running without live reports" >&2',
        ]
    return "\n".join([*lines, f"exec {command}", ""])


def needs_files(spec: WorkloadSpec) -> bool:
    """Whether the pods need the ConfigMap: a bare command runs as it is."""
    return bool(spec.script or spec.runner or spec.array)


def config_map(spec: WorkloadSpec) -> dict[str, Any] | None:
    """The ConfigMap of the start script, the person's script and the runner; None where a command runs as it is."""
    if not needs_files(spec):
        return None
    files = {"start": start_script(spec)}
    if spec.script:
        files["script"] = spec.script
    if spec.runner:
        files["quarterdeck_runner.py"] = spec.runner
    size = sum(len(text.encode()) for text in files.values())
    if size > CONFIG_MAP_MAX:
        raise ValueError(f"the script is too long: {size} bytes with the runner, a ConfigMap holds {CONFIG_MAP_MAX}")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(spec),
        "immutable": True,
        "data": files,
    }


def secret(spec: WorkloadSpec) -> dict[str, Any] | None:
    """The Secret of the environment that nobody else may read; None where there is none."""
    if not spec.secret_environment:
        return None
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(spec),
        "immutable": True,
        "type": "Opaque",
        "stringData": dict(spec.secret_environment),
    }


def service(spec: WorkloadSpec, selector: dict[str, str]) -> dict[str, Any]:
    """The headless Service that gives each pod its name; found before the pods are ready, for they wait for it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(spec),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector},
    }


def metadata(spec: WorkloadSpec, **more: Any) -> dict[str, Any]:
    """Name, namespace, labels and annotations of an object of this workload."""
    return {
        "name": object_name(spec.uid),
        "namespace": spec.namespace,
        "labels": labels_of(spec) | more.get("labels", {}),
        "annotations": annotations_of(spec) | more.get("annotations", {}),
    }
