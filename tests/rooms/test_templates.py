"""Templates: whose they are, and what their keepers fixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apps.core.errors import InvalidInput
from apps.jobs.models import JobTemplate
from apps.jobs.services import job_preview, job_submit
from apps.jobs.template_rules import fill_template
from apps.jobs.template_selectors import templates_visible_to
from apps.teams.models import Team
from tests.conftest import actor_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def kept(team: Any) -> JobTemplate:
    template = JobTemplate.objects.create(
        name="sweep",
        title="Sweep",
        script="#!/bin/bash\npython train.py --lr {{ lr }} --bucket {{ bucket }}\n",
        parameters=[
            {"name": "lr", "type": "number", "default": 0.1, "minimum": 0.01, "maximum": 1},
            {"name": "bucket", "type": "text", "default": "nlp-data", "locked": True},
        ],
    )
    template.teams.add(team)
    return template


def test_a_locked_value_cannot_be_changed(kept: JobTemplate) -> None:
    script, problems = fill_template(kept.script, kept.parameters, {"lr": "0.2"})
    assert problems == []
    assert "--bucket nlp-data" in script
    assert fill_template(kept.script, kept.parameters, {"bucket": "nlp-data"})[1] == []
    _script, problems = fill_template(kept.script, kept.parameters, {"bucket": "elsewhere"})
    assert [(p.pointer, p.code) for p in problems] == [("/template_parameters/bucket", "locked")]


def test_a_template_that_names_teams_is_theirs_alone(
    kept: JobTemplate, owner: Any, outsider: Any, admin: Any, team: Any, cluster: Any, spec: Any
) -> None:
    assert kept in templates_visible_to(actor_of(owner))
    assert kept not in templates_visible_to(actor_of(outsider))
    assert kept in templates_visible_to(actor_of(admin))
    given = replace(spec, script="", template=kept)
    assert job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given).problems == ()
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert "--bucket nlp-data" in job.script
    other = Team.objects.get(slug="vision")
    with pytest.raises(InvalidInput, match="not for team vision"):
        job_submit(actor=actor_of(admin), team=other, cluster=cluster, spec=given)
