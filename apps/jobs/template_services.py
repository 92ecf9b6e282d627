"""What the keepers of templates do: make, edit, bring a version back, retire, and a team's rules for failures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from apps.audit.services import record
from apps.clusters.selectors import clusters_visible_to
from apps.core import clock
from apps.core.errors import FieldProblem, Forbidden, InvalidInput, StaleVersion, field_refusal
from apps.jobs.models import JobTemplate
from apps.jobs.permissions import can_keep_for, can_manage_template
from apps.jobs.retry_rules import parse_rules
from apps.jobs.rules import check_script
from apps.jobs.template_models import JobTemplateVersion, TeamRetry
from apps.jobs.template_rules import Content, check_content, plain
from apps.jobs.template_selectors import content_of, team_retry, version_for
from apps.teams.models import Team
from apps.teams.permissions import Actor

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")
#: Words that are addresses beside the templates.
_PLACES = frozenset({"new", "row", "preview", "retries"})


def content_checked(actor: Actor, content: Content) -> tuple[Content, list[FieldProblem]]:
    """The content as it would be kept (cluster by uid, options and rules as they are read), and what is wrong."""
    script, problems = check_script(content.script)
    content = replace(content, script=script or content.script)
    problems += check_content(content)
    defaults = dict(content.defaults)
    if cluster := defaults.get("cluster"):
        rows = clusters_visible_to(actor)
        found = rows.filter(uid=cluster).first() or rows.filter(name=cluster).first()
        if found is None:
            text = _("no cluster %(name)s") % {"name": cluster}
            problems.append(FieldProblem("/defaults/cluster", "unknown", text))
        else:
            defaults["cluster"] = found.uid
    if not problems:
        defaults = {name: plain(name, value) for name, value in defaults.items()}
        locked = [name for name in defaults if name in content.locked]
        content = replace(content, defaults=defaults, locked=locked, title=content.title.strip())
    return content, problems


def _refuse(problems: Sequence[FieldProblem]) -> None:
    if problems:
        text = "; ".join(f"{p.pointer}: {p.detail}" for p in problems[:5])
        raise InvalidInput(text, problems=problems)


def _may_keep(actor: Actor, teams: Sequence[Team]) -> None:
    if not can_keep_for(actor, teams):
        if not teams:
            text = _("only administrators keep templates that are for every team: name yours")
        else:
            text = _("you keep no templates of these teams: %(teams)s") % {"teams": ", ".join(t.slug for t in teams)}
        raise Forbidden(text, problems=[FieldProblem("/teams", "forbidden", text)])


def _add_version(actor: Actor, template: JobTemplate, number: int, content: Content, why: str) -> JobTemplateVersion:
    version = JobTemplateVersion(
        template=template,
        number=number,
        by=actor.name[:150],
        why=why[:200],
        **_columns(content),
    )
    version.save()
    return version


def _columns(content: Content) -> dict[str, Any]:
    return {
        "title": content.title,
        "description": content.description,
        "script": content.script,
        "parameters": [dict(p) for p in content.parameters],
        "defaults": dict(content.defaults),
        "locked": list(content.locked),
    }


def _slugs(teams: Iterable[Team]) -> list[str]:
    return sorted(team.slug for team in teams)


def _team_id(teams: Sequence[Team]) -> int | None:
    return teams[0].pk if len(teams) == 1 else None


def template_create(*, actor: Actor, name: str, teams: Sequence[Team], content: Content, why: str = "") -> JobTemplate:
    """A template with its first version. Raises Forbidden, InvalidInput."""
    _may_keep(actor, teams)
    content, problems = content_checked(actor, content)
    if not _NAME.fullmatch(name) or name in _PLACES:
        text = _("small letters, digits, - and _, at most 60, such as eval-array")
        problems = [FieldProblem("/name", "invalid", text), *problems]
    elif JobTemplate.objects.filter(name=name).exists():
        text = _("there is a template %(name)s already") % {"name": name}
        problems = [FieldProblem("/name", "taken", text), *problems]
    _refuse(problems)
    try:
        with transaction.atomic():
            template = JobTemplate.objects.create(name=name, number=1, **_columns(content))
            template.teams.set(teams)
            _add_version(actor, template, 1, content, why)
            after = {"name": name, "version": 1, "teams": _slugs(teams), "locked": list(content.locked), "why": why}
            record(actor, "template.create", "template", template.uid, team_id=_team_id(teams), after=after)
    except IntegrityError:
        raise field_refusal("/name", _("there is a template %(name)s already") % {"name": name}, "taken") from None
    return template


def template_edit(
    *,
    actor: Actor,
    template: JobTemplate,
    content: Content,
    teams: Sequence[Team] | None = None,
    why: str = "",
    expected_version: int | None = None,
) -> bool:
    """A new version where the content differs, other teams where they do; False where nothing did.

    ``teams`` None leaves them. Raises Forbidden, InvalidInput, StaleVersion.
    """
    before = list(template.teams.all())
    if not can_manage_template(actor, template):
        raise Forbidden(_("you do not keep template %(name)s") % {"name": template.name})
    if teams is not None:
        _may_keep(actor, teams)
    content, problems = content_checked(actor, content)
    _refuse(problems)
    is_new = _columns(content) != _columns(content_of(template))
    is_moved = teams is not None and _slugs(teams) != _slugs(before)
    if not is_new and not is_moved:
        if expected_version is not None and expected_version != template.version:
            raise StaleVersion(_("template %(name)s was changed by someone else") % {"name": template.name})
        return False
    old = template.number
    number = old + 1 if is_new else old
    with transaction.atomic():
        columns = {**_columns(content), "number": number} if is_new else {}
        template.spec_update(expected_version, **columns)
        if is_new:
            _add_version(actor, template, number, content, why)
        if teams is not None and is_moved:
            template.teams.set(teams)
        after = {"version": number, "teams": _slugs(template.teams.all()), "locked": list(content.locked), "why": why}
        record(
            actor,
            "template.edit",
            "template",
            template.uid,
            team_id=_team_id(before),
            before={"version": old, "teams": _slugs(before)},
            after=after,
        )
    return True


def template_restore(
    *, actor: Actor, template: JobTemplate, number: int, why: str = "", expected_version: int | None = None
) -> bool:
    """Bring an old version back as a new one. Raises Forbidden, InvalidInput, NotFound, StaleVersion."""
    content = content_of(version_for(template, number))
    words = why or _("version %(number)s again") % {"number": number}
    return template_edit(actor=actor, template=template, content=content, why=words, expected_version=expected_version)


def template_offer(
    *, actor: Actor, template: JobTemplate, is_offered: bool, expected_version: int | None = None
) -> None:
    """Offer a template or retire it: its jobs keep it, nobody gets it for new ones. Twice is once. Raises Forbidden."""
    if not can_manage_template(actor, template):
        raise Forbidden(_("you do not keep template %(name)s") % {"name": template.name})
    if template.is_enabled == is_offered:
        return
    with transaction.atomic():
        template.spec_update(expected_version, is_enabled=is_offered)
        verb = "template.offer" if is_offered else "template.retire"
        record(actor, verb, "template", template.uid, after={"name": template.name, "version": template.number})


def team_retry_set(*, actor: Actor, team: Team, rules: Sequence[str], expected_version: int) -> TeamRetry:
    """A team's rules for failures of its jobs from now on; ``expected_version`` 0 where it has none yet.

    Raises Forbidden, InvalidInput, StaleVersion.
    """
    if not actor.may("templates.manage", team.pk):
        raise Forbidden(_("you may not change how jobs of team %(team)s are repeated") % {"team": team.slug})
    try:
        lines = [rule.text for rule in parse_rules(rules)]
    except ValueError as error:
        raise field_refusal("/rules", str(error)) from None
    row = team_retry(team)
    stale = StaleVersion(_("someone else changed the rules of team %(team)s") % {"team": team.slug})
    if row.version != expected_version:
        raise stale
    before = list(row.rules)
    if before == lines:
        return row
    try:
        with transaction.atomic():
            who = actor.name[:150]
            if row.pk is None:
                row = TeamRetry.objects.create(team=team, rules=lines, changed_by=who)
            else:
                row.spec_update(expected_version, rules=lines, changed_by=who, changed_at=clock.now())
            change = {"before": {"rules": before}, "after": {"rules": lines}}
            record(actor, "team.retry", "team", team.uid, team_id=team.pk, **change)
    except IntegrityError:
        raise stale from None
    return row
