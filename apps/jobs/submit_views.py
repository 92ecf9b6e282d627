"""The page of a new job: fields filled from a script, what will happen, and the submit."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.clusters.kube_states import WorkloadKind
from apps.clusters.models import Cluster
from apps.clusters.selectors import clusters_visible_to, gpu_types_of
from apps.clusters.states import ClusterPhase
from apps.core.errors import FieldProblem, NotFound, Refusal
from apps.core.pages import Page, once
from apps.jobs.candidates import Candidate, Candidates, asked_by, candidates_for
from apps.jobs.exact_request import ExactRequest, exact_request
from apps.jobs.forms import JobForm, field_of, initial_from_job, initial_from_sbatch
from apps.jobs.kube_forms import ON_KUBERNETES, image_fill
from apps.jobs.manifests import is_manifest, manifest_read, text_for
from apps.jobs.models import Job, JobTemplate
from apps.jobs.sbatch import read_sbatch
from apps.jobs.sbatch_shape import completed
from apps.jobs.selectors import job_for, jobs_visible_to
from apps.jobs.services import Preview, job_of, job_preview, job_submit
from apps.jobs.start_selectors import what_if
from apps.jobs.start_words import what_if_words
from apps.jobs.template_fields import initial_from_template, minutes_text
from apps.jobs.template_selectors import last_run_of, templates_visible_to
from apps.jobs.template_words import Changes, run_changes
from apps.teams.models import Team
from apps.teams.permissions import Actor
from apps.teams.selectors import teams_visible_to

TEMPLATE = "jobs/new.html"
#: Fields that show no problem of their own while the form is being filled.
_SILENT = frozenset({"key", "source", "upload", "manifest_file"})
DEFAULTS = {
    "nodes": 1,
    "gpus_per_node": 8,
    "time_limit": "1:00:00",
    "tasks_per_node": 1,
    "cpus_per_task": 1,
    "max_recoveries": 3,
}


@dataclass(frozen=True)
class Verdict:
    """What the right column shows: the preview where one can be made, and what still stands in the way."""

    preview: Preview | None
    missing: list[str]
    problems: list[str]
    at_fields: dict[str, str]
    start: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def is_accepted(self) -> bool:
        """A submit now would be accepted."""
        fits = self.preview is not None and self.preview.usd_left >= 0 and self.preview.gpus_left >= 0
        return fits and not self.missing and not self.problems and not self.at_fields


def verdict_of(actor: Actor, form: JobForm) -> Verdict:
    """Judge a half-filled form: fields that are merely empty are missing, not wrong."""
    form.is_valid()
    missing, at_fields, problems = [], {}, []
    for name, errors in form.errors.as_data().items():
        if name == "__all__":
            problems += [str(m) for e in errors for m in e.messages]
        elif name in form.fields and not form[name].value() and name not in ("upload", "manifest_file"):
            missing.append(str(form.fields[name].label))
        else:
            at_fields[name] = " · ".join(str(m) for e in errors for m in e.messages)
    team = form.teams.get(form.cleaned_data.get("team", ""))
    cluster = form.clusters.get(form.cleaned_data.get("cluster", ""))
    sized = all(form.cleaned_data.get(name) is not None for name in ("nodes", "gpus_per_node", "time_limit"))
    if team is None or cluster is None or not sized or (form.is_manifest and "manifest" in form.errors):
        return Verdict(None, missing, problems, at_fields)
    preview = job_preview(actor=actor, team=team, cluster=cluster, spec=form.spec())
    for problem in preview.problems:
        name = field_of(problem.pointer)
        if name in form.errors or (name == "script" and form["script"].value() in ("", None)):
            continue
        if name == "manifest" and preview.manifest is not None and preview.manifest.flaws:
            if form.chosen_template is not None:
                problems.append(problem.detail)
                continue
            # Each stands beside the text, at its line.
            count = len(preview.manifest.flaws)
            text = ngettext("%(n)s problem, listed at its line", "%(n)s problems, listed at their lines", count)
            at_fields.setdefault(name, text % {"n": count})
            continue
        if name in form.fields:
            at_fields.setdefault(name, problem.detail)
        else:
            problems.append(problem.detail)
    start = "" if at_fields or problems else _start_words(cluster, form, preview)
    return Verdict(preview, missing, problems, at_fields, start, form.left_out)


def _start_words(cluster: Cluster, form: JobForm, preview: Preview) -> str:
    """When it would start, from the mirror of the cluster's queue; empty before that was ever read."""
    if cluster.queue_read_at is None:
        return ""
    asked = asked_by(form.spec(), preview, cluster)
    return what_if_words(what_if(cluster, asked), asked.partition)


class _NewJob(Page):
    """What the three addresses of the page share."""

    right = "jobs.submit"
    abstract = True

    def form(self, data: QueryDict | None = None, files: Any = None, initial: dict[str, Any] | None = None) -> JobForm:
        """The form with what this person may choose."""
        found = clusters_visible_to(self.actor).exclude(phase=ClusterPhase.DELETING)
        clusters = [cluster for cluster in found if cluster.takes_jobs]
        return JobForm(
            data,
            files,
            initial=initial,
            teams=list(teams_visible_to(self.actor, "jobs.submit")),
            clusters=clusters,
            templates=list(templates_visible_to(self.actor)),
            gpu_types=gpu_types_of(clusters),
        )


class NewJob(_NewJob):
    """The page itself."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """An empty form, or one filled from ``?from=<job>`` or ``?template=<name>``."""
        initial: dict[str, Any] = {**DEFAULTS, "source": "script", "key": uuid.uuid4().hex}
        probe = self.form()
        for name in ("team", "cluster", "template"):
            choices = list(getattr(probe, f"{name}s"))
            initial[name] = choices[0] if choices else ""
        if uid := request.GET.get("from"):
            job = job_for(actor=self.actor, may="jobs.view", uid=uid)
            initial |= initial_from_job(job) | {"manifest": text_for(self.actor, job)}
        if wanted := request.GET.get("template"):
            if wanted not in probe.templates:
                raise NotFound(_("There is no template %(name)s.") % {"name": wanted})
            initial |= {"source": "template", "template": wanted}
            initial |= _filled_by(probe.templates[wanted])
            initial |= _moved(probe, str(initial.get("cluster") or ""), probe.templates[wanted])
        cluster = probe.clusters.get(str(initial.get("cluster") or ""))
        initial |= image_fill(probe.clusters, cluster, str(initial.get("image") or ""))
        form = self.form(initial=initial)
        context = {"form": form, "seen": "{}", "can_submit": bool(form.teams and form.clusters)}
        return render(request, TEMPLATE, context)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Submit. A second click gets the first one's job; a refusal shows the form with its reasons."""
        form = self.form(request.POST, request.FILES)
        if form.is_valid():
            team, cluster = form.teams[form.cleaned_data["team"]], form.clusters[form.cleaned_data["cluster"]]

            def effect() -> str:
                job = job_submit(actor=self.actor, team=team, cluster=cluster, spec=form.spec())
                return reverse("job", args=[job.uid])

            try:
                return HttpResponseRedirect(once(request, form.cleaned_data["key"], effect))
            except Refusal as refusal:
                form.show(refusal.problems or [FieldProblem("", refusal.code, refusal.detail)])
        context = {"form": form, "seen": request.POST.get("seen", "{}"), "can_submit": True}
        return render(request, TEMPLATE, context, status=422)


class ReadScript(_NewJob):
    """Reads a script, a template or a cluster as it is chosen, and fills the fields it decides.

    Values travel in a header that the page's script writes into the fields one by one, so that
    nothing is swapped under the hands of a person who types elsewhere in the form.
    """

    def post(self, request: HttpRequest) -> HttpResponse:
        """A fragment of what changed around the fields. Only what changed in the script changes a field."""
        data = request.POST
        what = data.get("what", "script")
        form = self.form(data, request.FILES)
        text, problems = form.given
        if what == "manifest":
            return self._manifest(request, form)
        if what == "template":
            text = form.chosen_template.script if form.chosen_template else ""
        reading = read_sbatch(text)
        if (reading.fields or reading.options) and not reading.problems:
            # A script that speaks to Slurm is taken at its word, also for what it leaves out; a file names it.
            name = reading.fields.get("name")
            reading = completed(reading)
            if name is None:
                del reading.fields["name"]
        values = initial_from_sbatch(reading) if what != "cluster" else {}
        if what == "template" and form.chosen_template:
            values |= _filled_by(form.chosen_template)
            values |= _moved(form, str(values.get("cluster") or data.get("cluster", "")), form.chosen_template)
        seen = _object(data.get("seen", "{}"))
        if what == "template" and data.get("name", "") not in ("", seen.get("name")) and "name" not in form.locked:
            # A name that a person gave stays; a template's is only a first word.
            values.pop("name", None)
        changes = {
            name: str(value)[:8000]
            for name, value in values.items()
            if seen.get(name, "" if name == "parts" else None) != value
        }
        # What has left the script leaves its field too, unless a person wrote over it. A text that cannot be read says
        # nothing of that.
        knows = what != "cluster" and not problems
        left = (name for name in seen if knows and name in form.fields and name not in values)
        changes |= {name: str(DEFAULTS.get(name, "")) for name in left if data.get(name, "") == str(seen[name])}
        upload = request.FILES.get("upload")
        if upload is not None and not data.get("name") and "name" not in values:
            changes["name"] = _name_from(upload.name or "")
        uploaded = upload is not None and bool(text)
        if what == "cluster":
            changes |= image_fill(form.clusters, form.clusters.get(data.get("cluster", "")), data.get("image", ""))
        shown = self.form(initial={name: data.get(name, "") for name in data} | changes)
        context = {
            "form": shown,
            "what": what,
            # An empty text box is no mistake before the submit.
            "problems": [p.detail for p in problems] if data.get("script", "").strip() or upload is not None else [],
            "from_file": upload is not None,
            "uploaded": uploaded,
            "script": text,
            "remarks": reading.remarks,
            "filled": [str(form.fields[name].label) for name in changes if name in form.fields],
        }
        response = render(request, f"{TEMPLATE}#read", context)
        fill = (
            changes if what == "cluster" else {**changes, "seen": json.dumps(values if knows else {**seen, **values})}
        )
        said: dict[str, Any] = {"qd:fill": fill, "qd:scheduler": {"name": shown.scheduler}, "qd:preview": ""}
        if what == "template":
            said["qd:manifest"] = {"is": form.is_manifest}
            said["qd:lock"] = {"names": form.locked, "words": _("Fixed by the template.")}
        response["HX-Trigger-After-Settle"] = json.dumps(said)
        return response

    def _manifest(self, request: HttpRequest, form: JobForm) -> HttpResponse:
        """A manifest fills name and time limit where nobody has, and a file lands in the text box."""
        text, flaws = form.given_manifest
        cluster = form.clusters.get(request.POST.get("cluster", ""))
        team = form.teams.get(request.POST.get("team", ""))
        fill: dict[str, str] = {}
        if text and cluster is not None and cluster.is_kubernetes and team is not None:
            read = manifest_read(text, cluster, team)
            if read.name and not request.POST.get("name"):
                fill["name"] = read.name[:100]
        context = {
            "what": "manifest",
            "form": form,
            "uploaded": "manifest_file" in request.FILES and bool(text),
            "manifest": text,
            "flaws": flaws if "manifest_file" in request.FILES else (),
        }
        response = render(request, f"{TEMPLATE}#read", context)
        response["HX-Trigger-After-Settle"] = json.dumps({"qd:fill": fill, "qd:preview": ""})
        return response


def _filled_by(template: JobTemplate) -> dict[str, Any]:
    """What a template fills in: its #SBATCH lines, then its own defaults."""
    read = initial_from_sbatch(read_sbatch(template.script))
    return {"name": template.name, **read, **initial_from_template(template)}


def _moved(form: JobForm, cluster: str, template: JobTemplate) -> dict[str, str]:
    """A template that is a manifest moves the form to a cluster that can take it, where there is one."""
    chosen = form.clusters.get(cluster)
    if not is_manifest(template) or (chosen is not None and chosen.is_kubernetes):
        return {}
    return next(({"cluster": uid} for uid, one in form.clusters.items() if one.is_kubernetes), {})


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _name_from(file_name: str) -> str:
    stem = file_name.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem).strip("-._")[:60]


class PreviewJob(_NewJob):
    """What will happen: the right column."""

    def post(self, request: HttpRequest) -> HttpResponse:
        """A fragment, with the problems put at their fields."""
        form = self.form(request.POST, request.FILES)
        verdict = verdict_of(self.actor, form)
        preview = verdict.preview
        script = preview.script if preview else ""
        last = _last_run(self.actor, form)
        changes = _changes(last, form, script)
        context = {
            "form": form,
            "verdict": verdict,
            "preview": preview,
            "kind_label": WorkloadKind(preview.workload_kind).label if preview and preview.workload_kind else "",
            # Fields of a template that was chosen this moment are not on the page yet.
            "field_problems": [
                (name, verdict.at_fields.get(name, ""))
                for name in form.fields
                if name not in _SILENT and (name not in form.parameters or name in request.POST)
            ],
            "flaws": preview.manifest.flaws if preview and preview.manifest and not form.chosen_template else (),
            "is_flawed": _is_flawed(form, preview),
            "offered": minutes_text(preview.offered_limit_min) if preview and preview.offered_limit_min else "",
            "last": last,
            "changes": changes,
            "is_anothers": last is not None and last.owner_id != self.actor.user_id,
        }
        return render(request, f"{TEMPLATE}#preview", context)


def _is_flawed(form: JobForm, preview: Preview | None) -> bool:
    """Whether there is a manifest of which no size is known."""
    return form.is_manifest and preview is not None and (preview.manifest is None or bool(preview.manifest.flaws))


class RequestOfNewJob(_NewJob):
    """The very request that a submit would send, shown when someone opens it."""

    def post(self, request: HttpRequest) -> HttpResponse:
        """A fragment; without a request while something is missing or wrong."""
        form = self.form(request.POST, request.FILES)
        found: ExactRequest | None = None
        if form.is_valid():
            team, cluster = form.teams[form.cleaned_data["team"]], form.clusters[form.cleaned_data["cluster"]]
            spec = form.spec()
            preview = job_preview(actor=self.actor, team=team, cluster=cluster, spec=spec)
            if not preview.problems:
                job = job_of(actor=self.actor, team=team, cluster=cluster, spec=spec, preview=preview)
                found = exact_request(job)
        return render(request, "jobs/exact_request.html", {"exact": found})


class CandidatesOfNewJob(_NewJob):
    """The same job asked of every cluster, and both ways in which it would be written."""

    def post(self, request: HttpRequest) -> HttpResponse:
        """A fragment; without rows while something of the job itself is missing."""
        form = self.form(request.POST, request.FILES)
        form.is_valid()
        # A cluster that cannot take it is no mistake here: the others are asked all the same.
        wrong = [name for name in form.errors if name not in ("cluster", "gpu_type", "partition", *ON_KUBERNETES)]
        team = form.teams.get(form.cleaned_data.get("team", ""))
        found = Candidates()
        if not wrong and team is not None:
            found = candidates_for(
                actor=self.actor,
                team=team,
                clusters=list(form.clusters.values()),
                spec=form.whole_spec(),
                chosen=form.cleaned_data.get("cluster", ""),
            )
        context = {"found": found, "renderings": renderings(self.actor, team, found) if team else []}
        return render(request, "jobs/candidates.html", context)


def renderings(actor: Actor, team: Team, found: Candidates) -> list[tuple[Candidate, ExactRequest]]:
    """How the job would be written for each scheduler: on the chosen cluster or else the best that takes it."""
    shown: list[tuple[Candidate, ExactRequest]] = []
    for is_kubernetes in (False, True):
        rows = [row for row in found.rows if row.is_valid and row.cluster.is_kubernetes == is_kubernetes]
        row = next((row for row in rows if row.is_chosen), rows[0] if rows else None)
        if row is not None:
            job = job_of(actor=actor, team=team, cluster=row.cluster, spec=row.spec, preview=row.preview)
            shown.append((row, exact_request(job)))
    return shown


def _last_run(actor: Actor, form: JobForm) -> Job | None:
    """The last run from the chosen template, by the person or else the team; of a script, the person's by its name."""
    template = form.chosen_template
    if template is not None:
        return last_run_of(actor, template, form.teams.get(form.cleaned_data.get("team", "")))
    name = form.cleaned_data.get("name", "")
    mine = jobs_visible_to(actor).filter(owner_id=actor.user_id).order_by("-created_at", "-id")
    return mine.filter(name=name).first() if name else None


def _changes(last: Job | None, form: JobForm, script: str) -> Changes | None:
    """What the job would do differently from the last; None where one of the two is not there yet."""
    cluster = form.clusters.get(form.cleaned_data.get("cluster", ""))
    sized = all(form.cleaned_data.get(name) is not None for name in ("nodes", "gpus_per_node", "time_limit"))
    if last is None or cluster is None or not script or not sized or form.is_manifest:
        return None
    return run_changes(last, form.spec(), cluster, script)
