"""The pages of templates: list, one of them, its versions, its form with preview; and a team's rules for failures."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django_filters import ChoiceFilter, FilterSet

from apps.audit.models import Entry
from apps.clusters.selectors import clusters_visible_to
from apps.core.errors import BadQuery, NotFound, Refusal, StaleVersion
from apps.core.filters import TextFilter
from apps.core.forms import posted_version
from apps.core.lists import listing
from apps.core.pages import Page
from apps.jobs.models import Job, JobTemplate
from apps.jobs.permissions import can_manage_template
from apps.jobs.retry_rules import INFRASTRUCTURE, USER_ERRORS
from apps.jobs.selectors import job_for
from apps.jobs.states import JobOrigin
from apps.jobs.template_forms import (
    STATES,
    RetryForm,
    TemplateForm,
    content_from_job,
    initial_of,
    row_of,
)
from apps.jobs.template_models import JobTemplateVersion
from apps.jobs.template_rules import KINDS, LABELS, Content, fill_template, quote_for
from apps.jobs.template_selectors import (
    content_of,
    default_words,
    jobs_from,
    team_retry,
    template_for,
    templates_seen_by,
    version_for,
    with_use,
)
from apps.jobs.template_services import (
    content_checked,
    team_retry_set,
    template_create,
    template_edit,
    template_offer,
    template_restore,
)
from apps.jobs.template_words import content_changes, kind_words, parameter_words
from apps.teams.selectors import team_for, teams_visible_to

OFFERED, RETIRED = "offered", "retired"


class TemplateFilter(FilterSet):  # type: ignore[misc]
    """By text and by whether it is offered."""

    q = TextFilter("name", "title", "description")
    state = ChoiceFilter(
        choices=((OFFERED, gettext_lazy("Offered")), (RETIRED, gettext_lazy("Retired"))), method="by_state"
    )

    class Meta:
        model = JobTemplate
        fields: list[str] = []

    def by_state(self, rows: Any, _name: str, value: str) -> Any:
        """Those on offer, or those that are no more."""
        return rows.filter(is_enabled=value == OFFERED)


class TemplateList(Page):
    """All that one may see."""

    right = "templates.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page."""
        found = listing(
            request,
            with_use(templates_seen_by(self.actor), self.actor),
            TemplateFilter,
            sorts={"title": "title", "-title": "-title", "-created_at": "-created_at", "created_at": "created_at"},
            labels={"q": gettext_lazy("Text"), "state": gettext_lazy("State")},
        )
        context = {
            "list": found,
            "states": ((OFFERED, _("Offered")), (RETIRED, _("Retired"))),
            "may_make": self.actor.holds("templates.manage"),
            "may_submit": self.actor.holds("jobs.submit"),
            "retry_teams": list(teams_visible_to(self.actor, "templates.view")[:50]),
        }
        return render(request, "jobs/templates.html", context)


def _what_it_says(content: Content) -> dict[str, Any]:
    """Parameters and defaults of a version as the pages show them."""
    return {
        "parameters": [(p, parameter_words(p)) for p in content.parameters],
        "defaults": [
            (label, default_words(name, content.defaults[name]), name in content.locked)
            for name, label in LABELS.items()
            if name in content.defaults
        ],
    }


class TemplatePage(Page):
    """One template as its newest version says it."""

    right = "templates.view"

    def get(self, request: HttpRequest, name: str) -> HttpResponse:
        """The page."""
        template = template_for(actor=self.actor, may="templates.view", name=name)
        versions = list(template.versions.all()[:50])
        used = with_use(JobTemplate.objects.filter(pk=template.pk), self.actor).get()
        context = {
            "template": template,
            "versions": versions,
            "newest": versions[0] if versions else None,
            "used": used,
            "locks": len(template.locked) + sum(1 for p in template.parameters if p.get("locked")),
            "jobs": jobs_from(self.actor, template),
            "may_manage": can_manage_template(self.actor, template),
            "may_make": self.actor.holds("templates.manage"),
            "may_submit": self.actor.holds("jobs.submit"),
            **_what_it_says(content_of(template)),
        }
        return render(request, "jobs/template.html", context)


class VersionPage(Page):
    """One version and what it changed."""

    right = "templates.view"

    def get(self, request: HttpRequest, name: str, number: int) -> HttpResponse:
        """Compared with the version before it, or with ``?against=``."""
        template = template_for(actor=self.actor, may="templates.view", name=name)
        version = version_for(template, number)
        asked = request.GET.get("against", "")
        if set(request.GET) - {"against"} or (asked and not (asked.isdecimal() and len(asked) < 9)):
            raise BadQuery(_("against: the number of a version"))
        other: JobTemplateVersion | None
        other = version_for(template, int(asked)) if asked else template.versions.filter(number=number - 1).first()
        context = {
            "template": template,
            "version": version,
            "other": other,
            "versions": template.versions.exclude(number=number).values_list("number", flat=True)[:50],
            "changes": content_changes(content_of(other), content_of(version)) if other else None,
            "may_manage": can_manage_template(self.actor, template),
            **_what_it_says(content_of(version)),
        }
        return render(request, "jobs/template_version.html", context)


class _TemplateForm(Page):
    """What making and editing share."""

    right = "templates.manage"
    abstract = True

    def form(self, request: HttpRequest, *, is_new: bool, sent: bool, **more: Any) -> TemplateForm:
        """The form with what this person may choose."""
        return TemplateForm(
            request.POST if sent else None,
            teams=list(teams_visible_to(self.actor, "templates.manage")),
            clusters=[c for c in clusters_visible_to(self.actor) if c.takes_jobs],
            is_new=is_new,
            is_admin=self.actor.everywhere("templates.manage"),
            **more,
        )

    def answer(
        self,
        request: HttpRequest,
        form: TemplateForm,
        template: JobTemplate | None,
        status: int = 200,
        of_parts: Job | None = None,
    ) -> HttpResponse:
        """The page of the form; ``of_parts`` is the job it was filled from where a template does not hold all of it."""
        context = {"form": form, "template": template, "of_parts": of_parts, **row_words()}
        return render(request, "jobs/template_edit.html", context, status=status)


def row_words() -> dict[str, Any]:
    """What a row of a parameter offers."""
    words = kind_words()
    return {"kinds": [(kind, words[kind]) for kind in KINDS], "row_states": STATES}


class NewTemplate(_TemplateForm):
    """Make one: empty, from a past job, or as a copy."""

    right = "templates.manage"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The form; ``?job=<uid>`` or ``?copy=<name>`` fill it."""
        if unknown := set(request.GET) - {"job", "copy"}:
            raise BadQuery(_("unknown query parameter %(names)s") % {"names": ", ".join(sorted(unknown))})
        mine = list(teams_visible_to(self.actor, "templates.manage"))
        content = Content(title="", script="#!/bin/bash\n")
        teams = mine if len(mine) == 1 else []
        name, of_parts = "", None
        if uid := request.GET.get("job"):
            job = job_for(actor=self.actor, may="jobs.view", uid=uid)
            if job.origin == JobOrigin.OUTSIDE:
                raise NotFound(_("job %(name)s was submitted past the portal") % {"name": job.name})
            content, teams = content_from_job(job, self.actor), [t for t in mine if t.pk == job.team_id]
            of_parts = job if job.parts else None
        elif wanted := request.GET.get("copy"):
            template = template_for(actor=self.actor, may="templates.view", name=wanted)
            content = content_of(template)
            teams = [t for t in template.teams.all() if t in mine] or teams
            name = f"{template.name}-copy"[:60]
        rows = [row_of(p) for p in content.parameters]
        initial = {**initial_of(content, teams), "name": name}
        form = self.form(request, is_new=True, sent=False, initial=initial, rows=rows)
        return self.answer(request, form, None, of_parts=of_parts)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Make it; what is wrong shows at its field."""
        form = self.form(request, is_new=True, sent=True)
        is_valid = form.is_valid()
        if not is_valid:
            form.show(content_checked(self.actor, form.content())[1])
            return self.answer(request, form, None, status=422)
        try:
            template = template_create(
                actor=self.actor,
                name=form.cleaned_data["name"],
                teams=form.chosen_teams,
                content=form.content(),
                why=form.cleaned_data["why"],
            )
        except Refusal as refusal:
            form.show_refusal(refusal)
            return self.answer(request, form, None, status=refusal.status)
        self.say(_("Template %(name)s is made.") % {"name": template.name})
        return HttpResponseRedirect(reverse("template", args=[template.name]))


class EditTemplate(_TemplateForm):
    """A new version of one."""

    right = "templates.manage"

    def get(self, request: HttpRequest, name: str) -> HttpResponse:
        """The form as the newest version says it."""
        template = template_for(actor=self.actor, may="templates.manage", name=name)
        content = content_of(template)
        initial = {**initial_of(content, list(template.teams.all())), "version": template.version}
        rows = [row_of(p) for p in content.parameters]
        form = self.form(request, is_new=False, sent=False, initial=initial, rows=rows)
        return self.answer(request, form, template)

    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        """Save; nothing different is no version."""
        template = template_for(actor=self.actor, may="templates.manage", name=name)
        form = self.form(request, is_new=False, sent=True)
        if not form.is_valid():
            form.show(content_checked(self.actor, form.content())[1])
            return self.answer(request, form, template, status=422)
        before = template.number
        try:
            changed = template_edit(
                actor=self.actor,
                template=template,
                content=form.content(),
                teams=form.chosen_teams,
                why=form.cleaned_data["why"],
                expected_version=posted_version(request),
            )
        except Refusal as refusal:
            if isinstance(refusal, StaleVersion):
                form.add_error(None, _("Someone else changed this template meanwhile. Reload the page and look again."))
            else:
                form.show_refusal(refusal)
            return self.answer(request, form, template, status=refusal.status)
        template.refresh_from_db()
        if not changed:
            self.say(_("Nothing differs: no new version."))
        elif template.number == before:
            self.say(_("%(name)s is saved.") % {"name": template.name})
        else:
            self.say(_("%(name)s has version %(number)s.") % {"name": template.name, "number": template.number})
        return HttpResponseRedirect(reverse("template", args=[template.name]))


class TemplateRow(Page):
    """One more row of a parameter."""

    right = "templates.manage"

    def get(self, request: HttpRequest) -> HttpResponse:
        """An empty row."""
        return render(request, "jobs/template_row.html", {"row": row_of(), **row_words()})


class TemplatePreview(_TemplateForm):
    """What the script becomes with the defaults, and what is wrong so far."""

    right = "templates.manage"

    def post(self, request: HttpRequest) -> HttpResponse:
        """A fragment."""
        form = self.form(request, is_new=False, sent=True)
        form.is_valid()
        content, problems = content_checked(self.actor, form.content())
        readable = [p for p in content.parameters if p.get("name")]
        script, _found = fill_template(content.script, readable, {}, quote=quote_for(content.defaults))
        unread = [(form.fields[n].label, e[0]) for n, e in form.errors.items() if n.startswith("d_")]
        context = {"script": script, "problems": [_placed(p.pointer, p.detail, content) for p in problems] + unread}
        return render(request, "jobs/template_preview.html", context)


def _placed(pointer: str, detail: str, content: Content) -> tuple[str, str]:
    """(where, what) of a problem for people."""
    parts = pointer.strip("/").split("/")
    if parts[0] == "parameters" and len(parts) > 1:
        index = int(parts[1])
        name = str(content.parameters[index].get("name") or index + 1)
        return _("Parameter %(name)s") % {"name": name}, detail
    if parts[0] == "defaults" and len(parts) == 2:
        return str(LABELS.get(parts[1], parts[1])), detail
    names = {"script": _("Script"), "title": _("Title"), "description": _("Description")}
    return names.get(parts[0], ""), detail


class RestoreVersion(Page):
    """Bring an old version back."""

    right = "templates.manage"

    def post(self, request: HttpRequest, name: str, number: int) -> HttpResponse:
        """As a new version."""
        template = template_for(actor=self.actor, may="templates.manage", name=name)
        template_restore(actor=self.actor, template=template, number=number, expected_version=posted_version(request))
        self.say(_("Version %(number)s is in force again.") % {"number": number})
        return HttpResponseRedirect(reverse("template", args=[template.name]))


class OfferTemplate(Page):
    """Retire a template or offer it again."""

    right = "templates.manage"
    is_offered = False

    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        """Do it and go back."""
        template = template_for(actor=self.actor, may="templates.manage", name=name)
        template_offer(actor=self.actor, template=template, is_offered=self.is_offered)
        words = _("%(name)s is offered again.") if self.is_offered else _("%(name)s is retired: its jobs keep it.")
        self.say(words % {"name": template.name})
        return HttpResponseRedirect(reverse("template", args=[template.name]))


class TeamRetryPage(Page):
    """A team's rules for failures, and who changed them."""

    right = "templates.view"

    def answer(self, request: HttpRequest, slug: str, form: RetryForm | None = None, status: int = 200) -> HttpResponse:
        """The page."""
        team = team_for(actor=self.actor, may="templates.view", slug=slug)
        row = team_retry(team)
        if form is None:
            form = RetryForm(initial={"version": row.version, "rules": "\n".join(row.rules)})
        changes = Entry.objects.filter(object_uid=team.uid, verb="team.retry").order_by("-created_at", "-id")[:20]
        context = {
            "team": team,
            "row": row,
            "form": form,
            "changes": changes,
            "may_manage": self.actor.may("templates.manage", team.pk),
            "house_stops": USER_ERRORS,
            "house_retries": INFRASTRUCTURE,
        }
        return render(request, "jobs/team_retry.html", context, status=status)

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Read."""
        return self.answer(request, slug)

    def post(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Save, for jobs submitted from now on."""
        team = team_for(actor=self.actor, may="templates.manage", slug=slug)
        form = RetryForm(request.POST)
        if not form.is_valid():
            return self.answer(request, slug, form, status=422)
        try:
            team_retry_set(
                actor=self.actor,
                team=team,
                rules=form.cleaned_data["rules"].splitlines(),
                expected_version=form.cleaned_data["version"],
            )
        except Refusal as refusal:
            form.add_error("rules" if refusal.problems else None, refusal.detail)
            return self.answer(request, slug, form, status=refusal.status)
        self.say(_("The rules of %(team)s are saved.") % {"team": team.slug})
        return HttpResponseRedirect(reverse("team-retry", args=[slug]))
