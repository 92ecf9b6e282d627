"""The form of a template: its words, rows of parameters, defaults of a job's fields and what is fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.clusters.kube_states import WorkloadKind
from apps.clusters.models import Cluster
from apps.core.errors import FieldProblem, Refusal
from apps.core.forms import NamingForm
from apps.jobs.manifests import text_for
from apps.jobs.models import Job
from apps.jobs.template_fields import read_typed, typed
from apps.jobs.template_rules import LABELS, MAX_PARAMETERS, Content, shown
from apps.teams.models import Team
from apps.teams.permissions import Actor

FREE, DEFAULT, LOCKED = "free", "default", "locked"
STATES = (
    (FREE, gettext_lazy("Up to the job")),
    (DEFAULT, gettext_lazy("Default")),
    (LOCKED, gettext_lazy("Fixed")),
)
_TEXTS = ("name", "label", "type", "state", "default", "minimum", "maximum", "choices", "on", "off", "help")
_LONG = ("retry_rules", "environment", "slurm_options")


@dataclass
class Row:
    """One parameter as it is typed: ``values`` by member as text, ``problems`` by member."""

    key: str
    values: dict[str, str]
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def is_required(self) -> bool:
        """A value is needed."""
        return self.values.get("required", "1") == "1"


def row_of(parameter: Mapping[str, Any] | None = None) -> Row:
    """The row of a parameter; an empty one for None."""
    if parameter is None:
        return Row(uuid4().hex[:8], {"type": "text", "state": DEFAULT, "required": "1", "on": "1", "off": "0"})
    values = {name: shown(parameter[name]) for name in _TEXTS if parameter.get(name) not in (None, "")}
    values["type"] = str(parameter.get("type", "text"))
    values |= {"on": str(parameter.get("on", "1")), "off": str(parameter.get("off", "0"))}
    values["choices"] = "\n".join(parameter.get("choices", []))
    is_free = parameter.get("default") in (None, "")
    values["state"] = LOCKED if parameter.get("locked") else FREE if is_free else DEFAULT
    values["required"] = "1" if parameter.get("required", True) else "0"
    return Row(uuid4().hex[:8], values)


def rows_of(data: QueryDict) -> list[Row]:
    """The rows of a sent form, in their order."""
    rows: list[Row] = []
    for key in dict.fromkeys(data.getlist("row")):
        if key.isalnum() and len(key) <= 16 and len(rows) <= MAX_PARAMETERS:
            values = {name: data.get(f"p-{key}-{name}", "").strip() for name in _TEXTS}
            values["required"] = "1" if data.get(f"p-{key}-required") else "0"
            rows.append(Row(key, values))
    return rows


def parameter_of(row: Row) -> dict[str, Any]:
    """The parameter of a row. What is no number stays text: the schema's own check names it."""
    kind = row.values["type"]
    found: dict[str, Any] = {"name": row.values["name"], "type": kind}
    for name in ("label", "help"):
        if row.values[name]:
            found[name] = row.values[name]
    if kind in ("integer", "number"):
        for name in ("minimum", "maximum"):
            if row.values[name]:
                found[name] = _number(row.values[name])
    if kind == "choice":
        found["choices"] = [line.strip() for line in row.values["choices"].splitlines() if line.strip()]
    if kind == "switch":
        found |= {"on": row.values["on"], "off": row.values["off"]}
    if row.values["state"] != FREE and (default := row.values["default"]):
        found["default"] = _number(default) if kind in ("integer", "number") else default
    if kind == "switch":
        found.setdefault("default", "false")
        if row.values["default"].lower() in ("true", "on", "yes", "1"):
            found["default"] = "true"
    if row.values["state"] == LOCKED:
        found["locked"] = True
    if not row.is_required and kind != "switch":
        found["required"] = False
    return found


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


class TemplateForm(NamingForm):
    """A template's words and the defaults of a job's fields: ``d_NAME`` and ``s_NAME``."""

    version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=60,
        help_text=gettext_lazy("Small letters, digits, - and _, such as eval-array. It stays."),
    )
    title = forms.CharField(label=gettext_lazy("Title"), max_length=80)
    description = forms.CharField(label=gettext_lazy("Description"), max_length=300, required=False)
    teams = forms.MultipleChoiceField(
        label=gettext_lazy("For teams"), required=False, widget=forms.CheckboxSelectMultiple
    )
    script = forms.CharField(
        label=gettext_lazy("Script"),
        strip=False,
        widget=forms.Textarea(
            attrs={"rows": 14, "spellcheck": "false", "autocapitalize": "off", "class": "script-box"}
        ),
        help_text=gettext_lazy("{{ name }} stands for the parameter of this name."),
    )
    why = forms.CharField(
        label=gettext_lazy("Why"),
        max_length=200,
        required=False,
        help_text=gettext_lazy("What this version is for; shown among the versions."),
    )

    def __init__(
        self,
        *args: Any,
        teams: Sequence[Team],
        clusters: Sequence[Cluster],
        is_new: bool = True,
        is_admin: bool = False,
        rows: Sequence[Row] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.team_rows = {t.slug: t for t in teams}
        self.rows = rows_of(self.data) if self.is_bound and isinstance(self.data, QueryDict) else list(rows)
        chosen = self.fields["teams"]
        assert isinstance(chosen, forms.MultipleChoiceField)
        chosen.choices = [(t.slug, f"{t.name} ({t.slug})") for t in teams]
        if is_admin:
            chosen.help_text = _("None: for every team.")
        if not is_new:
            del self.fields["name"]
        names = [(c.uid, c.name) for c in clusters]
        for name, label in LABELS.items():
            widget: forms.Widget = forms.TextInput(attrs={"spellcheck": "false", "autocapitalize": "off"})
            if name == "cluster":
                widget = forms.Select(choices=[("", "–"), *names])
            elif name == "workload_kind":
                widget = forms.Select(choices=[("", _("Automatic")), *WorkloadKind.choices])
            elif name in _LONG:
                widget = forms.Textarea(attrs={"rows": 2, "spellcheck": "false", "autocapitalize": "off"})
            self.fields[f"d_{name}"] = forms.CharField(label=label, required=False, max_length=8000, widget=widget)
            self.fields[f"s_{name}"] = forms.ChoiceField(label=label, choices=STATES, required=False)
        for name in LABELS:
            for start, what in (("d_", _("value")), ("s_", _("free, default or fixed"))):
                words = {"aria-label": f"{LABELS[name]}: {what}", "aria-describedby": f"d_{name}-problem"}
                self.fields[start + name].widget.attrs.update(words)

    @property
    def default_rows(self) -> list[tuple[Any, Any, Any]]:
        """(label, state, value) of each field of a job."""
        return [(LABELS[name], self[f"s_{name}"], self[f"d_{name}"]) for name in LABELS]

    def clean(self) -> dict[str, Any]:
        """Defaults as values; what cannot be read is told at its field."""
        data = super().clean() or self.cleaned_data
        defaults: dict[str, Any] = {}
        locked: list[str] = []
        for name in LABELS:
            state = data.get(f"s_{name}") or FREE
            if state == FREE:
                continue
            try:
                defaults[name] = read_typed(name, data.get(f"d_{name}", ""))
            except ValueError as error:
                self.add_error(f"d_{name}", str(error))
                continue
            if state == LOCKED:
                locked.append(name)
        data["defaults"], data["locked"] = defaults, locked
        return data

    def content(self) -> Content:
        """What the form says, as far as it could be read."""
        data = self.cleaned_data
        return Content(
            title=data.get("title", ""),
            description=data.get("description", ""),
            script=data.get("script", ""),
            parameters=[parameter_of(row) for row in self.rows],
            defaults=data.get("defaults", {}),
            locked=data.get("locked", []),
        )

    @property
    def chosen_teams(self) -> list[Team]:
        """The teams that are ticked."""
        return [self.team_rows[slug] for slug in self.cleaned_data.get("teams", []) if slug in self.team_rows]

    def show(self, problems: Sequence[FieldProblem]) -> None:
        """Put problems at their fields and rows; what has neither goes to the whole form."""
        names = list(self.cleaned_data.get("locked", []))
        for problem in problems:
            parts = problem.pointer.strip("/").split("/")
            if parts[0] == "parameters" and len(parts) == 3 and parts[1].isdigit() and int(parts[1]) < len(self.rows):
                self.rows[int(parts[1])].problems.setdefault(parts[2], problem.detail)
                # A form with a problem in a row is no valid form.
                self.add_error(None, f"{self.rows[int(parts[1])].values['name'] or '?'}: {problem.detail}")
                continue
            name = parts[0]
            if name == "defaults" and len(parts) == 2:
                name = f"d_{parts[1]}"
            elif name == "locked" and parts[-1].isdigit() and int(parts[-1]) < len(names):
                name = f"d_{names[int(parts[-1])]}"
            self.add_error(name if name in self.fields else None, problem.detail)

    def show_refusal(self, refusal: Refusal) -> None:
        """What a service refused."""
        self.show(refusal.problems or [FieldProblem("", refusal.code, refusal.detail)])


def initial_of(content: Content, teams: Sequence[Team]) -> dict[str, Any]:
    """Form values of what a template says."""
    values: dict[str, Any] = {
        "title": content.title,
        "description": content.description,
        "script": content.script,
        "teams": [t.slug for t in teams],
    }
    for name in LABELS:
        values[f"s_{name}"] = FREE
    for name, value in content.defaults.items():
        if name in LABELS:
            values[f"d_{name}"] = typed(name, value)
            values[f"s_{name}"] = LOCKED if name in content.locked else DEFAULT
    return values


def content_from_job(job: Job, actor: Actor) -> Content:
    """A template that would make the same job again: its script, and all it asked for as defaults.

    Further parts are no field that a template has; the page says so.
    """
    defaults: dict[str, Any] = {"cluster": job.cluster.uid}
    if job.manifest:
        defaults |= {"workload_kind": str(job.workload_kind), "time_limit_min": job.time_limit_min}
        return Content(title=job.name[:80], script=text_for(actor, job), defaults=defaults)
    for name in LABELS:
        if name in ("cluster", "name"):
            continue
        value = getattr(job, name)
        # What was left to the cluster stays so.
        if value not in ("", [], {}, 0) or name in ("gpus_per_node", "max_recoveries"):
            defaults[name] = value
    return Content(title=job.name[:80], script=job.script, defaults=defaults)


class RetryForm(NamingForm):
    """A team's rules for failures."""

    version = forms.IntegerField(widget=forms.HiddenInput)
    rules = forms.CharField(
        label=gettext_lazy("Rules"),
        required=False,
        max_length=5000,
        widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false", "autocapitalize": "off"}),
        help_text=gettext_lazy(
            "Lines such as retry exit 75, stop signal SEGV, retry log NCCL*timeout. The first decides."
        ),
    )
