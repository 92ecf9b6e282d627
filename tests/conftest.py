"""People, teams and the test database's own rules, shared by every test."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _ledger_can_be_emptied(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that empty their tables afterwards must get past the trigger that protects postings on SQLite."""
    if not {"transactional_db", "live_server", "django_db_serialized_rollback"} & set(request.fixturenames) and not (
        (mark := request.node.get_closest_marker("django_db")) and mark.kwargs.get("transaction")
    ):
        yield
        return
    request.getfixturevalue("transactional_db")
    _freeze(1)
    yield
    _freeze(0)


def _freeze(value: int) -> None:
    from django.db import connection

    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("UPDATE costs_guard SET frozen = %s", [value])


@pytest.fixture(scope="session", autouse=True)
def _rows_of_migrations() -> Iterator[None]:
    """What a test's flush removed and migrations had made is there again before the next test, whichever it is."""
    from django.apps import apps as registry
    from django.db.models.signals import post_migrate

    last = [config for config in registry.get_app_configs() if config.models_module is not None][-1]
    post_migrate.connect(_reseed, sender=last)
    yield
    post_migrate.disconnect(_reseed, sender=last)


def _reseed(**_told: Any) -> None:
    """Sent after a flush, and once after the migrations themselves, when all of it is there."""
    import importlib

    from django.apps import apps as registry

    from apps.health.models import XidCode
    from apps.jobs.models import JobTemplate

    if not XidCode.objects.exists():
        importlib.import_module("apps.health.migrations.0003_xid_catalogue").forwards(registry, None)
    if not JobTemplate.objects.exists():
        importlib.import_module("apps.jobs.migrations.0003_templates").forwards(registry, None)
        _first_versions()


def _first_versions() -> None:
    """As migrations leave the built-in templates: at version 1."""
    from apps.jobs.models import JobTemplate
    from apps.jobs.template_models import JobTemplateVersion

    for row in JobTemplate.objects.filter(number=0):
        said = {n: getattr(row, n) for n in ("title", "description", "script", "parameters", "defaults", "locked")}
        JobTemplateVersion.objects.create(template=row, number=1, **said)
    JobTemplate.objects.filter(number=0).update(number=1)


@pytest.fixture
def team(db: None) -> Any:
    """Team nlp with 64 GPUs and $50,000 a month."""
    from apps.costs.services import budget_set
    from apps.quotas.services import quota_set
    from apps.teams.models import Team
    from apps.teams.permissions import system_actor

    found = Team.objects.create(slug="nlp", name="Language models")
    actor = system_actor("test")
    quota_set(actor=actor, team=found, gpus=64)
    budget_set(actor=actor, team=found, usd_per_month=Decimal(50_000))
    return found


def _user(name: str, **columns: Any) -> Any:
    from apps.teams.models import User

    user = User(username=name, **columns)
    user.set_password("correct horse battery")
    user.save()
    return user


@pytest.fixture
def owner(team: Any) -> Any:
    """A researcher of the team who owns the jobs."""
    user = _user("owner")
    user.memberships.create(team=team, role="researcher")
    return user


@pytest.fixture
def member(team: Any) -> Any:
    """A viewer of the team: sees, changes nothing."""
    user = _user("member")
    user.memberships.create(team=team, role="viewer")
    return user


@pytest.fixture
def outsider(db: None) -> Any:
    """A researcher of another team."""
    from apps.teams.models import Team

    other = Team.objects.create(slug="vision", name="Vision")
    user = _user("outsider")
    user.memberships.create(team=other, role="researcher")
    return user


@pytest.fixture
def operator(db: None) -> Any:
    """A platform operator."""
    return _user("operator", platform_role="operator")


@pytest.fixture
def admin(db: None) -> Any:
    """A platform administrator."""
    return _user("admin", platform_role="admin", is_staff=True, is_superuser=True)


def actor_of(user: Any) -> Any:
    """The actor of a person as the pages see it."""
    from apps.teams.permissions import actor_for_user

    return actor_for_user(user)


@pytest.fixture
def cluster(db: None) -> Any:
    """A ready Slurm cluster with four nodes of 8 H100 and no cloud account."""
    from apps.clusters.models import Cluster, Node

    found = Cluster.objects.create(
        name="lab",
        api_url="http://127.0.0.1:9",
        user_name="qd",
        token_ref="env:TEST_TOKEN",
        working_root="/tmp/qd",
        phase="READY",
        partition="gpu",
        observed_partitions=[{"name": "gpu", "max_time_min": 10080, "nodes": 4}],
        observed_max_time_min=10080,
    )
    for number in range(1, 5):
        Node.objects.create(
            cluster=found,
            name=f"p5-{number}",
            instance_type="p5.48xlarge",
            gpu_type="h100",
            gpus=8,
            cpus=192,
            memory_mib=2_000_000,
            phase="READY",
            partitions=["gpu"],
        )
    return found


@pytest.fixture
def spec() -> Any:
    """Two nodes of 8 GPUs for one hour."""
    from apps.jobs.services import JobSpec

    return JobSpec(
        name="train", script="#!/bin/bash\ntrue\n", nodes=2, gpus_per_node=8, gpu_type="h100", time_limit_min=60
    )


@pytest.fixture
def job(team: Any, owner: Any, cluster: Any, spec: Any) -> Any:
    """An accepted job of the owner."""
    from apps.jobs.services import job_submit

    return job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=spec)
