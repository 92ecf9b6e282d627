"""Every state machine: its table covers every state, and a walk over all pairs agrees with it and with the database."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.checkpoints import states as checkpoints
from apps.clusters import states as clusters
from apps.connections import states as connections
from apps.core.errors import TransitionConflict
from apps.core.states import may_move, move
from apps.health import states as health
from apps.jobs import states as jobs

MACHINES: list[tuple[Any, dict[str, frozenset[str]], dict[str, str]]] = [
    (connections.AccountPhase, connections.TRANSITIONS, connections.COLOURS),
    (clusters.ClusterPhase, clusters.CLUSTER_TRANSITIONS, clusters.CLUSTER_COLOURS),
    (clusters.FleetPhase, clusters.FLEET_TRANSITIONS, clusters.FLEET_COLOURS),
    (clusters.NodePhase, clusters.NODE_TRANSITIONS, clusters.NODE_COLOURS),
    (checkpoints.CheckpointState, checkpoints.TRANSITIONS, checkpoints.COLOURS),
    (health.FindingPhase, health.TRANSITIONS, health.COLOURS),
    (jobs.JobPhase, jobs.JOB_TRANSITIONS, jobs.JOB_COLOURS),
    (jobs.AttemptPhase, jobs.ATTEMPT_TRANSITIONS, jobs.ATTEMPT_COLOURS),
]


@pytest.mark.parametrize(("choices", "table", "colours"), MACHINES)
def test_the_table_and_the_colours_cover_every_state(choices: Any, table: Any, colours: Any) -> None:
    assert set(table) == set(choices.values)
    assert set(colours) == set(choices.values)
    assert set(colours.values()) <= {"good", "busy", "warn", "bad", "wait", "off"}
    for old, targets in table.items():
        assert targets <= set(choices.values)
        assert old not in targets


@pytest.mark.parametrize(("choices", "table", "colours"), MACHINES)
def test_every_state_can_be_reached_from_the_first(choices: Any, table: Any, colours: Any) -> None:
    seen, frontier = set(), {choices.values[0]}
    while frontier:
        seen |= frontier
        frontier = {t for s in frontier for t in table[s]} - seen
    assert seen == set(choices.values)


@pytest.mark.django_db
def test_a_move_of_every_pair_of_a_job(job: Any) -> None:
    model = type(job)
    for old in jobs.JobPhase.values:
        for new in jobs.JobPhase.values:
            model.objects.filter(pk=job.pk).update(phase=old)
            row = model.objects.get(pk=job.pk)
            if may_move(jobs.JOB_TRANSITIONS, old, new):
                move(row, jobs.JOB_TRANSITIONS, new)
                assert model.objects.get(pk=job.pk).phase == new
            else:
                with pytest.raises(TransitionConflict):
                    move(row, jobs.JOB_TRANSITIONS, new)
                assert model.objects.get(pk=job.pk).phase == old


@pytest.mark.django_db
def test_the_second_of_two_movers_is_refused(job: Any) -> None:
    first, second = type(job).objects.get(pk=job.pk), type(job).objects.get(pk=job.pk)
    move(first, jobs.JOB_TRANSITIONS, "QUEUED")
    with pytest.raises(TransitionConflict, match="changed while we looked"):
        move(second, jobs.JOB_TRANSITIONS, "CANCELLING")


@pytest.mark.django_db
def test_the_database_knows_the_states_too(job: Any) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        type(job).objects.filter(pk=job.pk).update(phase="SLEEPING")
