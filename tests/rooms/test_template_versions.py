"""Templates in full: versions, locks, defaults, rules for failures, who may keep them, what differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apps.audit.models import Entry
from apps.clusters.models import Node
from apps.core.errors import Forbidden, InvalidInput, NotFound, StaleVersion
from apps.jobs.models import JobTemplate
from apps.jobs.retry_rules import Failure, decide, rules_of
from apps.jobs.services import job_preview, job_submit
from apps.jobs.template_models import JobTemplateVersion
from apps.jobs.template_rules import Content, check_content, fill_template
from apps.jobs.template_selectors import content_of, last_run_of, team_retry, template_for
from apps.jobs.template_services import (
    team_retry_set,
    template_create,
    template_edit,
    template_offer,
    template_restore,
)
from apps.jobs.template_words import content_changes, run_changes
from apps.teams.models import Team
from tests.conftest import _user, actor_of

pytestmark = pytest.mark.django_db

CONTENT = Content(
    title="Sweep",
    script="#!/bin/bash\npython train.py --lr {{ lr }} {{ compile }}\n",
    parameters=[
        {"name": "lr", "type": "number", "default": 0.1, "minimum": 0.01, "maximum": 1},
        {"name": "compile", "type": "switch", "default": False, "on": "--compile", "off": ""},
    ],
    defaults={
        "nodes": 2,
        "gpus_per_node": 8,
        "time_limit_min": 60,
        "partition": "gpu",
        "retry_rules": ["retry exit 75"],
    },
    locked=["partition"],
)


@pytest.fixture
def lead(team: Any) -> Any:
    user = _user("lead")
    user.memberships.create(team=team, role="lead")
    return user


@pytest.fixture
def kept(team: Any, lead: Any, cluster: Any) -> JobTemplate:
    return template_create(actor=actor_of(lead), name="sweep", teams=[team], content=CONTENT, why="first")


def codes(error: Any) -> list[tuple[str, str]]:
    return [(p.pointer, p.code) for p in error.value.problems]


def test_who_may_keep_templates(team: Any, lead: Any, owner: Any, outsider: Any, admin: Any, kept: JobTemplate) -> None:
    for who in (owner, outsider):
        with pytest.raises(Forbidden):
            template_create(actor=actor_of(who), name="other", teams=[team], content=CONTENT)
        with pytest.raises(NotFound):
            template_for(actor=actor_of(who), may="templates.manage", name="sweep")
        with pytest.raises(Forbidden):
            template_edit(actor=actor_of(who), template=kept, content=replace(CONTENT, title="Mine"))
    with pytest.raises(NotFound):
        template_for(actor=actor_of(outsider), may="templates.view", name="sweep")
    assert template_for(actor=actor_of(owner), may="templates.view", name="sweep") == kept
    # For everyone, or for a team one does not lead: administrators.
    vision = Team.objects.get(slug="vision")
    for teams in ([], [vision], [team, vision]):
        with pytest.raises(Forbidden):
            template_create(actor=actor_of(lead), name="other", teams=teams, content=CONTENT)
        with pytest.raises(Forbidden):
            template_edit(actor=actor_of(lead), template=kept, content=CONTENT, teams=teams)
    template_edit(actor=actor_of(admin), template=kept, content=CONTENT, teams=[team, vision])
    assert template_for(actor=actor_of(outsider), may="templates.view", name="sweep") == kept
    with pytest.raises(Forbidden):
        template_edit(actor=actor_of(lead), template=kept, content=replace(CONTENT, title="Mine"))


def test_an_edit_is_a_new_version_and_an_old_one_comes_back_as_another(lead: Any, kept: JobTemplate) -> None:
    actor = actor_of(lead)
    new = replace(CONTENT, script=CONTENT.script.replace("train.py", "tune.py"))
    assert template_edit(actor=actor, template=kept, content=new, why="tune", expected_version=1)
    assert not template_edit(actor=actor, template=kept, content=new)
    with pytest.raises(StaleVersion):
        template_edit(actor=actor, template=kept, content=CONTENT, expected_version=1)
    template_restore(actor=actor, template=kept, number=1)
    kept.refresh_from_db()
    rows = list(kept.versions.order_by("number"))
    assert [(r.number, r.by, r.why) for r in rows] == [
        (1, "lead", "first"),
        (2, "lead", "tune"),
        (3, "lead", "version 1 again"),
    ]
    assert (kept.number, kept.script) == (3, CONTENT.script)
    assert content_of(rows[0]) == content_of(rows[2]) == content_of(kept)
    changes = content_changes(content_of(rows[0]), content_of(rows[1]))
    assert changes.values == []
    assert [line for kind, line in changes.script if kind == "add"] == ["+python tune.py --lr {{ lr }} {{ compile }}"]
    with pytest.raises(TypeError, match="never changes"):
        rows[0].save()
    assert Entry.objects.filter(object_uid=kept.uid).count() == 3


def test_two_editors_at_once_make_one_version(lead: Any, kept: JobTemplate) -> None:
    mine, other = (JobTemplate.objects.get(pk=kept.pk) for _turn in range(2))
    template_edit(actor=actor_of(lead), template=mine, content=replace(CONTENT, title="A"))
    with pytest.raises(StaleVersion):
        template_edit(actor=actor_of(lead), template=other, content=replace(CONTENT, title="B"))
    assert JobTemplateVersion.objects.filter(template=kept).count() == 2


def test_a_job_keeps_its_version_and_what_it_was_made_with(
    owner: Any, lead: Any, team: Any, cluster: Any, spec: Any, kept: JobTemplate
) -> None:
    given = replace(spec, script="", template=kept, partition="gpu", template_parameters={"compile": "on"})
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    template_edit(actor=actor_of(lead), template=kept, content=replace(CONTENT, title="Later"))
    job.refresh_from_db()
    assert (job.template_version, job.script) == (1, "#!/bin/bash\npython train.py --lr 0.1 --compile\n")
    # The last run is one's own, else the team's.
    assert last_run_of(actor_of(owner), kept, team) == job
    assert last_run_of(actor_of(lead), kept, team) == job
    again = replace(given, nodes=3, template_parameters={"lr": 0.2, "compile": "on"})
    script = fill_template(kept.script, kept.parameters, again.template_parameters)[0]
    changes = run_changes(job, again, cluster, script)
    assert [(c.kind, c.name, c.before, c.after) for c in changes.values] == [
        ("parameter", "lr", "0.1", "0.2"),
        ("field", "nodes", "2", "3"),
    ]
    assert [line for kind, line in changes.script if kind][-2:] == [
        "-python train.py --lr 0.1 --compile",
        "+python train.py --lr 0.2 --compile",
    ]
    assert run_changes(job, given, cluster, job.script).count == 0
    more = run_changes(job, replace(given, parts=[{"nodes": 1, "cpus_per_task": 4}]), cluster, job.script)
    assert [(c.name, c.before) for c in more.values] == [("parts", "–")]


def test_the_service_holds_the_locks(
    owner: Any, team: Any, cluster: Any, spec: Any, kept: JobTemplate, lead: Any
) -> None:
    given = replace(spec, script="", template=kept, partition="debug")
    with pytest.raises(InvalidInput, match="Partition is fixed to gpu by template sweep") as error:
        job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert ("/partition", "locked") in codes(error)
    values = {"partition": "gpu", "environment": {"A": "1"}, "slurm_options": ["-C h100"], "cluster": cluster.name}
    values |= {"gpus_per_node": 8, "retry_rules": ["retry exit 75"], "array": "0-3"}
    template_edit(actor=actor_of(lead), template=kept, content=replace(CONTENT, defaults=values, locked=list(values)))
    good = replace(
        given, partition="gpu", environment={"A": "1"}, slurm_options=["--constraint=h100"], gpu_type="", array="0-3"
    )
    assert job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=good).problems == ()
    bad = replace(good, environment={}, slurm_options=[], gpus_per_node=4, array="", retry_rules=["stop exit 1"])
    found = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=bad).problems
    assert [p.pointer for p in found if p.code == "locked"] == [
        "/environment",
        "/slurm_options",
        "/gpus_per_node",
        "/retry_rules",
        "/array",
    ]
    assert all("by template sweep" in p.detail for p in found if p.code == "locked")


@pytest.mark.parametrize(
    ("locks", "option", "pointer"),
    [
        ({"gpus_per_node": 1}, "--exclusive", "/exclusive"),
        ({"gpus_per_node": 1}, "--exclusive=TOPO", "/exclusive"),
        ({"gpus_per_node": 1}, "--core-spec=2", "/slurm_options/0"),
        ({"tasks_per_node": 1}, "--ntasks=64", "/slurm_options/0"),
        ({"tasks_per_node": 1}, "--ntasks-per-gpu=2", "/slurm_options/0"),
        ({"cpus_per_task": 1}, "--tres-per-task=cpu:96", "/slurm_options/0"),
        ({"cpus_per_task": 1}, "--mincpus=96", "/slurm_options/0"),
        ({"memory_per_node_mib": 1024}, "--mem-per-cpu=64G", "/slurm_options/0"),
        ({"time_limit_min": 60}, "--time-min=10", "/slurm_options/0"),
    ],
)
def test_an_option_does_not_decide_in_the_place_of_a_lock(
    owner: Any, team: Any, cluster: Any, spec: Any, kept: JobTemplate, lead: Any, locks: Any, option: str, pointer: str
) -> None:
    def found(*options: str) -> list[tuple[str, str]]:
        fields = {"nodes": 1, "gpus_per_node": 1, "time_limit_min": 60, **locks, "slurm_options": options}
        given = replace(spec, script="", template=kept, **fields)
        preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
        return [(p.pointer, p.code) for p in preview.problems]

    content = replace(CONTENT, defaults=locks, locked=list(locks))
    template_edit(actor=actor_of(lead), template=kept, content=content)
    assert found() == found("--tres-per-task=license/matlab:1") == found("--exclusive=user") == []
    assert found(option) == [(pointer, "locked")]
    # What the template itself gives is what it means; without the lock anybody may.
    own = replace(content, defaults={**locks, "slurm_options": [option]})
    template_edit(actor=actor_of(lead), template=kept, content=own)
    assert "locked" not in {code for _pointer, code in found(option)}
    template_edit(actor=actor_of(lead), template=kept, content=replace(content, locked=[]))
    assert found(option) == []


def test_whole_nodes_pass_a_lock_only_where_they_take_more(
    owner: Any, team: Any, cluster: Any, spec: Any, kept: JobTemplate, lead: Any
) -> None:
    def found(gpus: int) -> list[str]:
        locks = {"gpus_per_node": gpus, "cpus_per_task": 1}
        content = replace(CONTENT, defaults=locks, locked=list(locks))
        template_edit(actor=actor_of(lead), template=kept, content=content)
        options = ("--exclusive",)
        given = replace(spec, script="", template=kept, nodes=1, slurm_options=options, gpu_type="", **locks)
        preview = job_preview(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
        return [p.detail for p in preview.problems]

    assert found(8) == []
    (text,) = found(4)
    assert text == "--exclusive would pass it by: GPUs per node is fixed to 4 by template sweep"
    # On machines without GPUs it takes all the CPUs, which are what is paid for there.
    Node.objects.update(gpus=0, gpu_type="")
    (text,) = found(0)
    assert text == "--exclusive would pass it by: CPUs per task is fixed to 1 by template sweep"


def test_a_retired_template_is_kept_and_not_offered(
    owner: Any, lead: Any, team: Any, cluster: Any, spec: Any, kept: JobTemplate
) -> None:
    given = replace(spec, script="", template=kept, partition="gpu")
    template_offer(actor=actor_of(lead), template=kept, is_offered=False)
    template_offer(actor=actor_of(lead), template=kept, is_offered=False)
    with pytest.raises(InvalidInput, match="template sweep is retired"):
        job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    template_offer(actor=actor_of(lead), template=kept, is_offered=True)
    assert job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given).template == kept
    verbs = Entry.objects.filter(object_uid=kept.uid).order_by("id").values_list("verb", flat=True)
    assert list(verbs) == ["template.create", "template.retire", "template.offer"]


@pytest.mark.parametrize(
    ("part", "pointer"),
    [
        ({"parameters": [{"name": "Bad name"}]}, "/parameters/0/name"),
        ({"parameters": [*CONTENT.parameters, {"name": "lr"}]}, "/parameters/2/name"),
        ({"parameters": [{"name": "lr", "type": "colour"}]}, "/parameters/0/type"),
        ({"parameters": [{"name": "lr", "type": "integer", "minimum": 5, "maximum": 2}]}, "/parameters/0/maximum"),
        ({"parameters": [{"name": "lr", "type": "integer", "default": "many"}]}, "/parameters/0/default"),
        ({"parameters": [{"name": "lr", "type": "number", "default": float("inf")}]}, "/parameters/0/default"),
        ({"parameters": [{"name": "lr", "type": "integer", "default": 10**400}]}, "/parameters/0/default"),
        ({"parameters": [{"name": "lr", "type": "integer", "maximum": 10**400}]}, "/parameters/0/maximum"),
        ({"parameters": [{"name": "lr", "type": "number", "minimum": float("-inf")}]}, "/parameters/0/minimum"),
        ({"parameters": [{"name": "lr", "type": "choice", "choices": []}]}, "/parameters/0/choices"),
        ({"parameters": [{"name": "lr", "type": "choice", "choices": ["a\nb"]}]}, "/parameters/0/choices"),
        ({"parameters": [{"name": "lr", "type": "choice", "choices": [" a"]}]}, "/parameters/0/choices"),
        ({"parameters": [{"name": "lr", "type": "choice", "choices": ["a"], "default": "b"}]}, "/parameters/0/default"),
        ({"parameters": [{"name": "lr", "type": "path", "default": "/a;b"}]}, "/parameters/0/default"),
        ({"parameters": [{"name": "lr", "type": "text", "locked": True}]}, "/parameters/0/default"),
        ({"parameters": [{"name": "lr", "colour": "red"}]}, "/parameters/0/colour"),
        ({"parameters": ["lr"]}, "/parameters/0"),
        ({"script": "#!/bin/bash\necho {{ other }}\n"}, "/script"),
        ({"script": "\n"}, "/script"),
        ({"title": " "}, "/title"),
        ({"defaults": {"nodes": 0}}, "/defaults/nodes"),
        ({"defaults": {"nodes": "two"}}, "/defaults/nodes"),
        ({"defaults": {"colour": "red"}}, "/defaults/colour"),
        ({"defaults": {"environment": {"QD_TOKEN": "x"}}}, "/defaults/environment"),
        ({"defaults": {"slurm_options": ["what"]}}, "/defaults/slurm_options"),
        ({"defaults": {"retry_rules": ["maybe exit 1"]}}, "/defaults/retry_rules"),
        ({"defaults": {"array": "x"}}, "/defaults/array"),
        ({"defaults": {"cluster": "moon"}}, "/defaults/cluster"),
        ({"locked": ["gpu_type"]}, "/locked/0"),
    ],
)
def test_a_bad_template_is_refused_by_where_it_is_wrong(lead: Any, team: Any, part: Any, pointer: str) -> None:
    base = replace(CONTENT, defaults={}, locked=[])
    with pytest.raises(InvalidInput) as error:
        template_create(actor=actor_of(lead), name="bad", teams=[team], content=replace(base, **part))
    assert pointer in [p for p, _code in codes(error)], codes(error)
    assert not JobTemplate.objects.filter(name="bad").exists()


@pytest.mark.parametrize("name", ["", "A", "a b", "a/b", "x" * 61, "-a", "sweep"])
def test_a_bad_or_taken_name(lead: Any, team: Any, kept: JobTemplate, name: str) -> None:
    with pytest.raises(InvalidInput) as error:
        template_create(actor=actor_of(lead), name=name, teams=[team], content=CONTENT)
    assert codes(error)[0][0] == "/name"


@pytest.mark.parametrize(
    ("kind", "raw", "filled"),
    [
        ({"type": "switch"}, "true", "1"),
        ({"type": "switch"}, False, "0"),
        ({"type": "switch", "on": "-v"}, "yes", "-v"),
        ({"type": "switch"}, "perhaps", None),
        ({"type": "text", "required": False}, "", "''"),
        ({"type": "integer", "required": False}, "", ""),
        ({"type": "integer"}, "", None),
        ({"type": "integer", "minimum": 2}, 1, None),
        ({"type": "integer"}, 2**128, str(2**128)),
        ({"type": "integer"}, "1" + "0" * 400, None),
        ({"type": "number"}, "nan", None),
        ({"type": "text"}, "a\nb", None),
    ],
)
def test_values_of_each_kind(kind: Any, raw: Any, filled: str | None) -> None:
    text, problems = fill_template("x={{ a }}", [{"name": "a", **kind}], {"a": raw}, "t")
    if filled is None:
        assert [p.pointer for p in problems] == ["/template_parameters/a"]
    else:
        assert (text, problems) == (f"x={filled}", [])


def test_rules_of_job_template_team_and_house_in_this_order(
    owner: Any, lead: Any, team: Any, cluster: Any, spec: Any, kept: JobTemplate, outsider: Any
) -> None:
    with pytest.raises(Forbidden):
        team_retry_set(actor=actor_of(owner), team=team, rules=[], expected_version=0)
    with pytest.raises(Forbidden):
        team_retry_set(actor=actor_of(outsider), team=team, rules=[], expected_version=0)
    with pytest.raises(InvalidInput, match="line 1"):
        team_retry_set(actor=actor_of(lead), team=team, rules=["always"], expected_version=0)
    rules = ["stop exit 75", "retry exit 76", "retry log *flaky*"]
    team_retry_set(actor=actor_of(lead), team=team, rules=rules, expected_version=0)
    with pytest.raises(StaleVersion):
        team_retry_set(actor=actor_of(lead), team=team, rules=[], expected_version=0)
    assert Entry.objects.get(verb="team.retry").after == {"rules": rules}
    given = replace(spec, script="", template=kept, partition="gpu", retry_rules=["stop exit 77"])
    job = job_submit(actor=actor_of(owner), team=team, cluster=cluster, spec=given)
    assert [(r["rule"], r["source"], r["name"]) for r in job.retry_defaults] == [
        ("retry exit 75", "template", "sweep v1"),
        *((rule, "team", "nlp") for rule in rules),
    ]
    # Changed later: jobs under way keep what they were submitted with.
    team_retry_set(actor=actor_of(lead), team=team, rules=[], expected_version=team_retry(team).version)
    chain = rules_of(job.retry_rules, job.retry_defaults)
    for code, verb, words in (
        (77, "stop", "its own rule decides: stop exit 77"),
        (75, "retry", "a rule of template sweep v1 decides: retry exit 75"),
        (76, "retry", "a rule of team nlp decides: retry exit 76"),
        (1, "stop", "it failed by itself: that is not repeated"),
    ):
        found = decide(Failure(phase="FAILED", exit_code=code), chain)
        assert (found.verb, str(found.words)) == (verb, words)


def test_the_shipped_templates_keep_their_own_rules(db: Any) -> None:
    rows = list(JobTemplate.objects.all())
    assert {"pytorch-ddp", "charlm"} <= {row.name for row in rows}
    for row in rows:
        assert check_content(content_of(row)) == [], row.name
        assert row.number == row.versions.count() == 1
