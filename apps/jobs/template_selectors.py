"""Named reads of templates: what one may use, versions, the jobs made from them, locks and rules that a job gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db.models import Count, Max, Q, QuerySet
from django.utils.translation import gettext as _

from apps.clusters.models import Cluster
from apps.core.errors import FieldProblem, NotFound
from apps.jobs.models import Job, JobTemplate
from apps.jobs.option_rules import FIELD_OF
from apps.jobs.permissions import can_manage_template
from apps.jobs.pricing import TASK_CPUS, takes_whole_nodes
from apps.jobs.retry_rules import TEAM, TEMPLATE, parse_rules
from apps.jobs.sbatch import check_options, kept_options
from apps.jobs.selectors import jobs_visible_to
from apps.jobs.template_fields import field_words
from apps.jobs.template_models import JobTemplateVersion, TeamRetry
from apps.jobs.template_rules import LABELS, Content, is_locked_to
from apps.teams.models import Team
from apps.teams.permissions import Actor

if TYPE_CHECKING:
    from apps.jobs.services import JobSpec

#: Field → options of Slurm that decide in its place.
_PASSED_BY: Mapping[str, tuple[str, ...]] = {
    "time_limit_min": ("time-min",),
    "tasks_per_node": ("ntasks", "ntasks-per-gpu"),
    "cpus_per_task": ("cpus-per-gpu", "mincpus", "tres-per-task"),
    "memory_per_node_mib": ("mem-per-cpu", "mem-per-gpu"),
}


def templates_seen_by(actor: Actor) -> QuerySet[JobTemplate]:
    """Templates of the actor's teams and those for everyone, retired ones too."""
    if not actor.holds("templates.view"):
        return JobTemplate.objects.none()
    rows = JobTemplate.objects.all()
    if actor.everywhere("templates.view"):
        return rows
    # One that names teams is theirs alone.
    return rows.filter(Q(teams__isnull=True) | Q(teams__in=actor.team_ids("templates.view"))).distinct()


def templates_visible_to(actor: Actor) -> QuerySet[JobTemplate]:
    """Templates one may submit with."""
    return templates_seen_by(actor).filter(is_enabled=True)


def template_for(*, actor: Actor, may: str, name: str) -> JobTemplate:
    """The template of this name or uid in which the actor holds the right. Raises NotFound."""
    found = templates_seen_by(actor).filter(Q(name=name) | Q(uid=name)).prefetch_related("teams").first()
    if found is None or (may == "templates.manage" and not can_manage_template(actor, found)):
        raise NotFound(_("no template %(name)s in which you may do this") % {"name": name})
    return found


def version_for(template: JobTemplate, number: int) -> JobTemplateVersion:
    """A version of a template. Raises NotFound."""
    found = template.versions.filter(number=number).first()
    if found is None:
        raise NotFound(_("template %(name)s has no version %(number)s") % {"name": template.name, "number": number})
    return found


def content_of(row: JobTemplate | JobTemplateVersion) -> Content:
    """What a template or one of its versions says."""
    return Content(
        title=row.title,
        script=row.script,
        description=row.description,
        parameters=row.parameters,
        defaults=row.defaults,
        locked=row.locked,
    )


def with_use(rows: QuerySet[JobTemplate], actor: Actor) -> QuerySet[JobTemplate]:
    """With ``uses`` and ``used_at``: how many visible jobs were made from each, and when the newest."""
    seen = Q()
    if not actor.everywhere("jobs.view"):
        seen = Q(jobs__team__in=actor.team_ids("jobs.view"))
    return rows.annotate(
        uses=Count("jobs", filter=seen, distinct=True), used_at=Max("jobs__created_at", filter=seen)
    ).prefetch_related("teams")


def jobs_from(actor: Actor, template: JobTemplate, most: int = 10) -> list[Job]:
    """The newest visible jobs that were made from a template."""
    return list(jobs_visible_to(actor).filter(template=template).order_by("-created_at", "-id")[:most])


def last_run_of(actor: Actor, template: JobTemplate, team: Team | None) -> Job | None:
    """The actor's newest job from a template, else the newest of the team."""
    rows = jobs_visible_to(actor).filter(template=template).order_by("-created_at", "-id")
    mine = rows.filter(owner_id=actor.user_id).first() if actor.user_id is not None else None
    return mine or (rows.filter(team=team).first() if team is not None else None)


def use_problems(spec: JobSpec, team: Team, cluster: Cluster, gpus_taken: int) -> list[FieldProblem]:
    """Why the template of a spec may not be used so: retired, another team's, or a field that it fixes.

    ``gpus_taken`` are the GPUs of a node that the spec gets by its options, whatever it names.
    """
    template = spec.template
    if template is None:
        return []
    problems = []
    if not template.is_enabled:
        text = _("template %(name)s is retired") % {"name": template.name}
        problems.append(FieldProblem("/template", "retired", text))
    if template.teams.exists() and not template.teams.filter(pk=team.pk).exists():
        text = _("template %(name)s is not for team %(team)s") % {"name": template.name, "team": team.slug}
        problems.append(FieldProblem("/template", "other-team", text))
    for name in template.locked:
        wanted = template.defaults.get(name)
        given = cluster.uid if name == "cluster" else getattr(spec, name, None)
        if not is_locked_to(name, wanted, given):
            facts = {"field": LABELS[name], "value": default_words(name, wanted), "template": template.name}
            text = _("%(field)s is fixed to %(value)s by template %(template)s") % facts
            problems.append(FieldProblem(f"/{name}", "locked", text))
    return problems + _options_past_locks(spec, template, gpus_taken)


def _options_past_locks(spec: JobSpec, template: JobTemplate, gpus_taken: int) -> list[FieldProblem]:
    """Options that would give a job something else than a field says that its template fixes.

    Those that the template itself gives are what it means.
    """
    options, found = check_options(spec.slurm_options)
    if found:
        return []
    own, _found = check_options(template.defaults.get("slurm_options", []))
    problems = []
    for option in kept_options([text for text in options if text not in own]):
        passed = {name for name in template.locked if option.name in _PASSED_BY.get(name, ())}
        if option.name == "tres-per-task" and not TASK_CPUS.search(option.value):
            passed.clear()
        if takes_whole_nodes([option.words]):
            # All the GPUs of a node, or where it takes none all its CPUs.
            passed |= {"gpus_per_node"} if gpus_taken != spec.gpus_per_node else set()
            passed |= {"cpus_per_task"} if not gpus_taken else set()
        for name in (name for name in template.locked if name in passed):
            facts = {"field": LABELS[name], "value": default_words(name, template.defaults.get(name))}
            facts |= {"template": template.name, "option": option.name}
            text = _("--%(option)s would pass it by: %(field)s is fixed to %(value)s by template %(template)s") % facts
            problems.append(FieldProblem(f"/{FIELD_OF.get(option.name, 'slurm_options/0')}", "locked", text))
    return problems


def default_words(name: str, value: Any) -> str:
    """A default in a sentence; a cluster by its name."""
    if name == "cluster":
        found = Cluster.objects.filter(uid=value).values_list("name", flat=True).first()
        return found or str(value)
    return field_words(name, value)


def inherited_rules(template: JobTemplate | None, team: Team) -> list[dict[str, str]]:
    """Rules that follow a job's own: its template's, then its team's, as {rule, source, name}."""
    found = []
    if template is not None:
        name = f"{template.name} v{template.number}" if template.number else template.name
        found += [_inherited(line, TEMPLATE, name) for line in _lines(template.defaults.get("retry_rules", []))]
    found += [_inherited(line, TEAM, team.slug) for line in _lines(team_retry(team).rules)]
    return found


def _lines(rules: Sequence[str]) -> list[str]:
    return [rule.text for rule in parse_rules(rules)]


def _inherited(line: str, source: str, name: str) -> dict[str, str]:
    return {"rule": line, "source": source, "name": name}


def team_retry(team: Team) -> TeamRetry:
    """A team's rules for failures; an unsaved row without any where it has none."""
    return TeamRetry.objects.filter(team=team).first() or TeamRetry(team=team, version=0)


def unlocked(parameters: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that a template still takes: of parameters that it has and does not fix."""
    free = {str(p["name"]) for p in parameters if not p.get("locked")}
    return {name: value for name, value in values.items() if name in free}
