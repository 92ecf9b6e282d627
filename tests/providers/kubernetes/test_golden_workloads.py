"""Ten jobs as the objects of each kind that fits, compared with files and checked against the schemas.

``QD_REWRITE_GOLDEN=1 .venv/bin/pytest tests/providers/kubernetes/test_golden_workloads.py`` writes the files anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.providers.kubernetes.schemas import faults
from tests.providers.kubernetes.specs import CLUSTER_RUNTIME, JOBS, KAI_GANG
from worker.providers.kubernetes.render import kinds_for, render
from worker.providers.workload_values import KINDS

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "kubernetes"
CASES = [
    *((name, kind, spec) for name, spec in JOBS.items() for kind in kinds_for(spec)),
    ("cluster-runtime", "trainjob", CLUSTER_RUNTIME),
    ("kai-gang", "pytorchjob", KAI_GANG),
]


class Dumper(yaml.SafeDumper):
    """Scripts as they are written, line by line."""


Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


@pytest.mark.parametrize(("name", "kind", "spec"), CASES, ids=[f"{name}-{kind}" for name, kind, _ in CASES])
def test_objects_are_exactly_these(name, kind, spec):
    objects = render(spec, kind)
    path = GOLDEN / f"{name}.{kind}.yaml"
    if os.environ.get("QD_REWRITE_GOLDEN"):
        path.write_text(yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=110, explicit_start=True))

    assert [fault for made in objects for fault in faults(made)] == []
    assert list(yaml.safe_load_all(path.read_text())) == [*objects]


def test_each_kind_and_each_job_has_its_files():
    assert len(JOBS) == 10
    assert {kind for _, kind, _ in CASES} == set(KINDS)
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}.{kind}.yaml" for name, kind, _ in CASES}


def test_the_check_finds_what_a_server_refuses():
    (job, *_) = render(JOBS["p5en-4-topology"], "jobset")
    job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["imagen"] = "x"
    job["spec"]["failurePolicy"]["restartStrategy"] = "Sometimes"
    job["spec"]["suspend"] = "yes"

    assert [fault.rsplit(":", 1)[0].split(": ")[0] for fault in faults(job)] == [
        "JobSet.spec.suspend",
        "JobSet.spec.failurePolicy.restartStrategy",
        "JobSet.spec.replicatedJobs[0].template.spec.template.spec.containers[0].imagen",
    ]
