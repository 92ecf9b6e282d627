"""Objects checked against the structural schemas of their CustomResourceDefinitions, as an API server would.

The schemas are those of tests/data/kubernetes/crd-schemas.json.gz, which says whose they are. The pod template,
batch/v1 Job and PyTorchJob are checked by the JobSet's own copy of the pod template and Job spec.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "data" / "kubernetes" / "crd-schemas.json.gz"
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253},
        "namespace": {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
        "generateName": {"type": "string"},
        "labels": {
            "type": "object",
            "additionalProperties": {
                "type": "string",
                "pattern": r"^(|[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)$",
            },
        },
        "annotations": STRINGS,
        "finalizers": {"type": "array", "items": {"type": "string"}},
    },
}


@lru_cache(maxsize=1)
def schemas() -> dict[str, Any]:
    """By "group/version Kind"; those of the API server itself are put together from the JobSet's parts."""
    found = {name: row["schema"] for name, row in json.loads(gzip.decompress(DATA.read_bytes()))["schemas"].items()}
    jobset = found["jobset.x-k8s.io/v1alpha2 JobSet"]["properties"]["spec"]["properties"]
    job = jobset["replicatedJobs"]["items"]["properties"]["template"]["properties"]["spec"]
    pods = job["properties"]["template"]
    replica = {
        "type": "object",
        "properties": {
            "replicas": {"type": "integer"},
            "restartPolicy": {"type": "string", "enum": ["Always", "OnFailure", "Never", "ExitCode"]},
            "template": pods,
        },
    }
    run_policy = {
        "type": "object",
        "properties": {
            "suspend": {"type": "boolean"},
            "activeDeadlineSeconds": {"type": "integer"},
            "backoffLimit": {"type": "integer"},
            "cleanPodPolicy": {"type": "string", "enum": ["All", "Running", "None"]},
        },
    }
    ports = {"type": "array"}
    service = {
        "clusterIP": {"type": "string"},
        "publishNotReadyAddresses": {"type": "boolean"},
        "selector": STRINGS,
        "ports": ports,
    }
    pytorch = {
        "nprocPerNode": {"type": "string"},
        "runPolicy": run_policy,
        "pytorchReplicaSpecs": {
            "type": "object",
            "properties": {"Master": replica, "Worker": replica},
            "required": ["Master"],
        },
    }
    group = {
        "minMember": {"type": "integer", "minimum": 1},
        "queue": {"type": "string"},
        "priorityClassName": {"type": "string"},
    }
    found |= {
        "batch/v1 Job": whole(spec=job),
        "v1 Service": whole(spec={"type": "object", "properties": service}),
        "v1 ConfigMap": whole(data=STRINGS, immutable={"type": "boolean"}),
        "v1 Secret": whole(stringData=STRINGS, type={"type": "string"}, immutable={"type": "boolean"}),
        "kubeflow.org/v1 PyTorchJob": whole(spec={"type": "object", "properties": pytorch}),
        "scheduling.volcano.sh/v1beta1 PodGroup": whole(spec={"type": "object", "properties": group}),
        "scheduling.run.ai/v2alpha2 PodGroup": whole(spec={"type": "object", "properties": group}),
    }
    return found


def whole(**properties: Any) -> dict[str, Any]:
    head = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": METADATA}
    return {"type": "object", "properties": head | properties, "required": ["apiVersion", "kind", "metadata"]}


def faults(made: dict[str, Any]) -> list[str]:
    """What an API server would refuse of the object, each with its path; none of an object that is right."""
    name = f"{made['apiVersion']} {made['kind']}"
    if name not in schemas():
        return [f"{name}: no such kind"]
    schema = schemas()[name]
    properties = schema["properties"] | {"metadata": METADATA}
    return list(_walk(made, schema | {"properties": properties}, made["kind"]))


def _walk(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if value is None:
        if not schema.get("nullable"):
            yield f"{path}: null"
        return
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, (int, str)) or isinstance(value, bool):
            yield f"{path}: neither integer nor string"
            return
    elif (wanted := schema.get("type")) and not _is_a(value, wanted):
        yield f"{path}: {type(value).__name__}, not {wanted}"
        return
    yield from _limits(value, schema, path)
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{path}.{key}: missing" for key in schema.get("required", []) if key not in value)
        for key, inner in value.items():
            if key in known:
                yield from _walk(inner, known[key], f"{path}.{key}")
            elif isinstance(others, dict):
                yield from _walk(inner, others, f"{path}.{key}")
            elif known and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{path}.{key}: unknown field"
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _walk(inner, schema.get("items", {}), f"{path}[{number}]")
        keys = schema.get("x-kubernetes-list-map-keys", [])
        seen = [tuple(row.get(key) for key in keys) for row in value] if keys else []
        yield from (f"{path}: {key} twice" for key in {key for key in seen if seen.count(key) > 1})


def _is_a(value: Any, wanted: str) -> bool:
    return isinstance(value, TYPES[wanted]) and not (isinstance(value, bool) and wanted != "boolean")


def _limits(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            yield f"{path}: {value} out of range"
        if schema.get("format") == "int32" and abs(value) >= 2**31:
            yield f"{path}: {value} is no int32"
    if isinstance(value, str):
        if len(value) > schema.get("maxLength", len(value)) or len(value) < schema.get("minLength", 0):
            yield f"{path}: length {len(value)}"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{path}: {value!r} does not match {schema['pattern']}"
    if isinstance(value, list) and not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield f"{path}: {len(value)} items"
    if isinstance(value, dict) and len(value) > schema.get("maxProperties", len(value)):
        yield f"{path}: {len(value)} properties"
