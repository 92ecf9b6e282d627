"""Options that would pass others in the queue, or take GPUs that nobody holds money for, are refused at the submit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apps.jobs.services import job_preview, job_submit
from apps.teams.models import Membership
from tests.conftest import actor_of
from tests.worker.fakes import FakeScheduler

pytestmark = pytest.mark.django_db


@pytest.fixture
def keeper(operator: Any, team: Any) -> Any:
    """An operator who is in the team, too."""
    Membership.objects.create(team=team, user=operator, role="researcher")
    return operator


def problems(actor: Any, team: Any, cluster: Any, spec: Any) -> list[str]:
    found = job_preview(actor=actor_of(actor), team=team, cluster=cluster, spec=spec).problems
    return [p.code for p in found]


@pytest.mark.parametrize("option", ["--nice=-5000", "--nice=' -1'", "--priority=900000", "--priority=TOP", "--prio=7"])
def test_only_operators_pass_others(team: Any, owner: Any, keeper: Any, cluster: Any, spec: Any, option: str) -> None:
    given = replace(spec, slurm_options=(option,))
    assert problems(owner, team, cluster, given) == ["operators"]
    assert problems(keeper, team, cluster, given) == []


@pytest.mark.parametrize("option", ["--nice", "--nice=50", "--nice=0"])
def test_whoever_lets_others_pass_may(team: Any, owner: Any, cluster: Any, spec: Any, option: str) -> None:
    assert problems(owner, team, cluster, replace(spec, slurm_options=(option,))) == []


@pytest.mark.parametrize(
    "option", ["--ntasks-per-gpu=1", "--ntasks-per-tres=1", "--cpus-per-gpu=4", "--mem-per-gpu=16G"]
)  # fmt: skip
def test_what_counts_by_gpus_needs_gpus(
    team: Any, owner: Any, keeper: Any, cluster: Any, spec: Any, option: str
) -> None:
    none = replace(spec, gpus_per_node=0, gpu_type="", slurm_options=("--ntasks=16", option))
    for person in (owner, keeper):
        assert problems(person, team, cluster, none) == ["no-gpus"]
    assert problems(owner, team, cluster, replace(spec, slurm_options=(option,))) == []


def test_a_container_is_for_the_steps_of_the_script_alone(
    team: Any, owner: Any, cluster: Any, spec: Any, work: Any, scheduler: FakeScheduler
) -> None:
    asked = ("--container-image=nvcr.io#nvidia/pytorch:25.10-py3", "--container-mounts=/fsx:/fsx", "--constraint=h100")
    job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=replace(spec, slurm_options=asked))
    work("job.reconcile")
    request = scheduler.requests["100"]
    # REST has no member for what belongs to a plugin.
    assert request.options == ("--constraint=h100",)
    before, _line, after = request.script.partition("export PYXIS_CONTAINER_IMAGE='nvcr.io#nvidia/pytorch:25.10-py3'; ")
    assert after.startswith("export PYXIS_CONTAINER_MOUNTS=/fsx:/fsx; exec python3 -I")
    assert "srun" not in after.split("exec", 1)[0]
    assert "PYXIS" not in before
