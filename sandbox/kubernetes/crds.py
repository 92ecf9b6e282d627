"""The CRDs that the pretend server brings, packed without their descriptions, and how they are packed."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import yaml

from sandbox.kubernetes.status import Object

FOLDER: Final = Path(__file__).resolve().parent / "crds"


def _bare(schema: Any) -> Any:
    """Without the prose: a description is a string; a field that is called so is an object."""
    if isinstance(schema, Mapping):
        return {
            key: _bare(value) for key, value in schema.items() if not (key == "description" and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [_bare(value) for value in schema]
    return schema


def pack(source: Path, target: Path) -> int:
    """Write one CRD from YAML into ``target`` as gzip of JSON; its size in bytes. The same input, the same bytes."""
    crd = _bare(yaml.safe_load(source.read_text()))
    crd.pop("status", None)
    content = gzip.compress(json.dumps(crd, separators=(",", ":"), sort_keys=True).encode(), 9, mtime=0)
    target.write_bytes(content)
    return len(content)


def packed(wanted: Sequence[str] | None = None) -> list[Object]:
    """The CRDs by name, all or those of the API groups ``wanted``."""
    found = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(FOLDER.glob("*.json.gz"))]
    found.append(pytorch_job())
    return [crd for crd in found if wanted is None or crd["spec"]["group"] in wanted]


def groups() -> list[str]:
    """The API groups of all CRDs that are known."""
    return sorted({str(crd["spec"]["group"]) for crd in packed()})


def schema_of(file_name: str, version: str) -> Mapping[str, Any]:
    """The schema of one version of one packed CRD, by its file's stem, for instance ``jobset.x-k8s.io_jobsets``."""
    crd = json.loads(gzip.decompress((FOLDER / f"{file_name}.json.gz").read_bytes()))
    for one in crd["spec"]["versions"]:
        if one["name"] == version:
            return cast(Mapping[str, Any], one["schema"]["openAPIV3Schema"])
    raise KeyError(f"{file_name} has no version {version}")


def pytorch_job() -> Object:
    """Kubeflow's PyTorchJob (training-operator v1), reduced to the fields that a submitter writes."""
    count = {"type": "integer", "format": "int32", "minimum": 0}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    replica = {
        "type": "object",
        "properties": {
            "replicas": count,
            "restartPolicy": {"type": "string", "enum": ["Always", "OnFailure", "Never", "ExitCode"]},
            "template": anything,
        },
    }
    policy = {
        "type": "object",
        "properties": {
            "suspend": {"type": "boolean", "default": False},
            "cleanPodPolicy": {"type": "string"},
            "ttlSecondsAfterFinished": count,
            "activeDeadlineSeconds": {"type": "integer", "format": "int64"},
            "backoffLimit": count,
            "managedBy": {"type": "string"},
            "schedulingPolicy": anything,
        },
    }
    spec = {
        "type": "object",
        "required": ["pytorchReplicaSpecs"],
        "properties": {
            "pytorchReplicaSpecs": {"type": "object", "additionalProperties": replica},
            "runPolicy": policy,
            "elasticPolicy": anything,
            "nprocPerNode": {"type": "string"},
        },
    }
    schema = {"type": "object", "properties": {"spec": spec, "status": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org",
            "names": {
                "kind": "PyTorchJob",
                "listKind": "PyTorchJobList",
                "plural": "pytorchjobs",
                "singular": "pytorchjob",
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


if __name__ == "__main__":
    # python -m sandbox.kubernetes.crds FOLDER: pack every CRD of a folder of YAML files.
    for each in sorted(Path(sys.argv[1]).glob("*.yaml")):
        print(each.name, pack(each, FOLDER / f"{each.stem}.json.gz"))
