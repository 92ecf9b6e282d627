"""Jobs that wait for jobs: kept by the portal, given to Slurm when the condition holds, ended when it never will."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apps.core import clock
from apps.core.errors import InvalidInput
from apps.costs.selectors import ledger_check, standing_of
from apps.costs.states import Unit
from apps.intents.models import Intent
from apps.jobs.dependency_rules import parse_dependency, state_of_wait
from apps.jobs.dependency_selectors import graph_of
from apps.jobs.models import Job
from apps.jobs.selectors import current_attempt
from apps.jobs.sentences import job_sentence
from apps.jobs.services import job_submit
from tests.conftest import actor_of
from tests.worker.fakes import FakeScheduler

pytestmark = pytest.mark.django_db


def fresh(job: Job) -> Job:
    return Job.objects.select_related("team", "cluster").get(pk=job.pk)


def due(work: Any) -> None:
    Intent.objects.update(due_at=clock.now(), leased_until=None)
    work("job.reconcile")


def after(owner: Any, team: Any, cluster: Any, spec: Any, text: str, name: str = "second") -> Job:
    return job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=replace(spec, name=name, dependency=text))


@pytest.mark.parametrize(
    "text", ["afterok", "before:1", "afterok:", "afterok:a/b", "afterok:1?afterok:2", "aftercorr:x"]
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ValueError, match="condition|commas|names no job"):
        parse_dependency(text)


@pytest.mark.parametrize(
    ("kind", "phase", "state"),
    [
        ("afterok", "RUNNING", "waits"),
        ("afterok", "SUCCEEDED", "ready"),
        ("afterok", "FAILED", "never"),
        ("afternotok", "FAILED", "ready"),
        ("afternotok", "SUCCEEDED", "never"),
        ("afterany", "CANCELLED", "ready"),
        ("afterany", "RECOVERING", "waits"),
        ("after", "QUEUED", "waits"),
    ],
)
def test_conditions(kind: str, phase: str, state: str) -> None:
    assert state_of_wait(kind, phase, has_started=False) == state
    assert state_of_wait("after", "RUNNING", has_started=True) == "ready"


def test_it_is_given_to_slurm_when_the_first_succeeded(
    job: Job, owner: Any, team: Any, cluster: Any, spec: Any, work: Any, tick: Any, scheduler: FakeScheduler
) -> None:
    second = after(owner, team, cluster, spec, "afterok:train")
    work("job.reconcile")
    assert list(scheduler.requests) == ["100"]
    assert "it waits for train (afterok)" in job_sentence(fresh(second))
    scheduler.run("100", ["p5-1", "p5-2"])
    tick(job.cluster)
    # A node failure in the first does not break the chain.
    scheduler.end("100", "NODE_FAIL")
    tick(job.cluster)
    due(work)
    assert fresh(second).phase == "QUEUED"
    assert fresh(job).phase in ("RECOVERING", "QUEUED")
    again = current_attempt(job)
    assert again is not None
    scheduler.run(again.scheduler_id, ["p5-3", "p5-4"])
    tick(job.cluster)
    scheduler.end(again.scheduler_id, "COMPLETED", 0)
    tick(job.cluster)
    assert fresh(job).phase == "SUCCEEDED"
    due(work)
    assert current_attempt(second).scheduler_id  # type: ignore[union-attr]


def test_it_ends_when_the_condition_never_holds(
    job: Job, owner: Any, team: Any, cluster: Any, spec: Any, work: Any, tick: Any, scheduler: FakeScheduler
) -> None:
    second = after(owner, team, cluster, spec, f"afterok:{job.uid}")
    work("job.reconcile")
    scheduler.end("100", "FAILED", 1)
    tick(job.cluster)
    due(work)
    ended = fresh(second)
    assert (ended.phase, ended.reason) == ("FAILED", "DependencyNeverSatisfied")
    assert "cannot come true any more" in job_sentence(ended)
    assert standing_of(team, Unit.USD).held == 0
    assert ledger_check().is_balanced


def test_slurms_ids_go_to_slurm_and_unknown_names_are_refused(
    job: Job, owner: Any, outsider: Any, team: Any, cluster: Any, spec: Any, work: Any, scheduler: FakeScheduler
) -> None:
    third = after(owner, team, cluster, spec, "afterok:4711,singleton", "third")
    work("job.reconcile")
    assert "--dependency=afterok:4711,singleton" in scheduler.requests[current_attempt(third).scheduler_id].options  # type: ignore[union-attr]
    with pytest.raises(InvalidInput, match="no job nobody-knows"):
        after(owner, team, cluster, spec, "afterok:nobody-knows")
    graph = graph_of(actor_of(owner), fresh(third), None)
    assert graph is not None
    assert {box.name for box in graph.boxes} == {"third", "Slurm 4711"}


def test_the_graph_shows_both_sides_and_hides_what_one_may_not_see(
    job: Job, owner: Any, outsider: Any, team: Any, cluster: Any, spec: Any
) -> None:
    second = after(owner, team, cluster, spec, "afterany:train")
    third = after(owner, team, cluster, spec, "after:second", "third")
    graph = graph_of(actor_of(owner), second, None)
    assert graph is not None
    assert [(link.source.name, link.kind, link.target.name) for link in graph.links] == [
        ("train", "afterany", "second"),
        ("second", "after", "third"),
    ]
    xs = {box.name: box.x for box in graph.boxes}
    assert xs["train"] < xs["second"] < xs["third"]
    hidden = graph_of(actor_of(outsider), third, None)
    assert hidden is not None
    assert {box.name for box in hidden.boxes} == {"–"}
