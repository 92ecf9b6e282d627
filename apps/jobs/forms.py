"""The form of a new job: from what a person types, pastes or uploads to a JobSpec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop

from apps.clusters.kube_states import WorkloadKind
from apps.clusters.models import Cluster
from apps.core.errors import FieldProblem
from apps.jobs.array_rules import parse_array
from apps.jobs.dependency_selectors import dependency_text
from apps.jobs.kube_forms import IN_MANIFEST, KubernetesFields, kubernetes_values, scheduler_word, strange_fields
from apps.jobs.manifests import is_manifest
from apps.jobs.models import Job, JobTemplate
from apps.jobs.option_forms import option_values
from apps.jobs.part_forms import parts_text
from apps.jobs.retry_rules import parse_rules
from apps.jobs.rules import MAX_SCRIPT_BYTES, check_script, parse_memory, parse_time
from apps.jobs.sbatch import SbatchReading, check_options, read_sbatch
from apps.jobs.services import JobSpec
from apps.jobs.spec_fit import fitted
from apps.jobs.template_fields import (
    initial_from_template,
    lock,
    locked_fields,
    memory_text,
    minutes_text,
    parameter_field,
    parameter_initial,
)
from apps.jobs.template_selectors import unlocked
from apps.teams.models import Team

#: Prefix of a template's parameters among the form's fields.
PARAMETER = "p_"
#: Pointer of a problem → the field that shows it.
FIELD_OF = {"/memory_per_node_mib": "memory", "/time_limit_min": "time_limit"}


#: Words of the templates every installation starts with; they are rows, so their translation is looked up by text.
BUILT_IN_WORDS = (
    gettext_noop("PyTorch DDP with torchrun"),
    gettext_noop("One process a GPU over all nodes, checkpoints as PyTorch DCP, resumes by itself."),
    gettext_noop("Character model (plain Python)"),
    gettext_noop("A small real training run without PyTorch, to try the portal and to test a cluster."),
    gettext_noop("Training program"),
    gettext_noop("Path on the nodes."),
    gettext_noop("Name or path on the nodes."),
    gettext_noop("Processes per node"),
    gettext_noop("Usually one a GPU."),
    gettext_noop("Steps"),
    gettext_noop("Checkpoint every (steps)"),
    gettext_noop("Ranks per node"),
    gettext_noop("At least this long a step (s)"),
    gettext_noop("Slows it down to watch it."),
)


def _row_words(text: str) -> str:
    """Words of a row in the language in force, where it is one of the built-in ones."""
    return _(text) if text else ""


def field_of(pointer: str) -> str:
    """The form field a problem's pointer belongs to; empty for the whole."""
    if pointer.startswith("/template_parameters/"):
        return PARAMETER + pointer.removeprefix("/template_parameters/")
    for name in ("environment", "slurm_options", "retry_rules", "parts"):
        if pointer.startswith(f"/{name}"):
            return name
    return FIELD_OF.get(pointer, pointer.removeprefix("/"))


class JobForm(KubernetesFields):
    """A new job. The script comes from a template or from the text or file given.

    ``teams``, ``clusters`` and ``templates`` are what the person may choose from.
    """

    SOURCES = (
        ("script", gettext_lazy("My script")),
        ("template", gettext_lazy("Template")),
        ("manifest", gettext_lazy("Manifest")),
    )

    key = forms.CharField(max_length=64, widget=forms.HiddenInput)
    source = forms.ChoiceField(choices=SOURCES, widget=forms.HiddenInput)
    team = forms.ChoiceField(label=gettext_lazy("Team"))
    cluster = forms.ChoiceField(label=gettext_lazy("Cluster"))
    template = forms.ChoiceField(label=gettext_lazy("Template"), required=False)
    script = forms.CharField(
        label=gettext_lazy("Script"),
        required=False,
        strip=False,
        widget=forms.Textarea(
            attrs={"rows": 14, "spellcheck": "false", "autocapitalize": "off", "class": "script-box"}
        ),
        help_text=gettext_lazy("Its #SBATCH lines fill the fields below. At most 1 MiB."),
    )
    upload = forms.FileField(label=gettext_lazy("Script file"), required=False)
    name = forms.CharField(label=gettext_lazy("Name"), max_length=100)
    nodes = forms.IntegerField(label=gettext_lazy("Nodes"), min_value=1, max_value=10_000)
    gpus_per_node = forms.IntegerField(label=gettext_lazy("GPUs per node"), min_value=0, max_value=16)
    gpu_type = forms.ChoiceField(label=gettext_lazy("GPU type"), required=False)
    time_limit = forms.CharField(
        label=gettext_lazy("Time limit"),
        max_length=20,
        help_text=gettext_lazy("Minutes, H:M:S or D-H:M:S. The hold is for all of it."),
    )
    partition = forms.ChoiceField(label=gettext_lazy("Partition"), required=False)
    tasks_per_node = forms.IntegerField(label=gettext_lazy("Tasks per node"), min_value=1, max_value=1024)
    cpus_per_task = forms.IntegerField(label=gettext_lazy("CPUs per task"), min_value=1, max_value=1024)
    memory = forms.CharField(
        label=gettext_lazy("Memory per node"),
        required=False,
        max_length=20,
        help_text=gettext_lazy("Such as 512G; empty: no limit."),
    )
    max_recoveries = forms.IntegerField(
        label=gettext_lazy("Recoveries"),
        min_value=0,
        max_value=20,
        help_text=gettext_lazy("How often a node failure may start it again."),
    )
    retry_rules = forms.CharField(
        label=gettext_lazy("When it fails"),
        required=False,
        max_length=4000,
        widget=forms.Textarea(attrs={"rows": 2, "spellcheck": "false", "autocapitalize": "off"}),
        help_text=gettext_lazy(
            "Lines such as retry exit 75, stop signal SEGV, retry log NCCL*timeout. The first decides."
        ),
    )
    environment = forms.CharField(
        label=gettext_lazy("Environment"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        help_text=gettext_lazy("One NAME=value a line."),
    )

    array = forms.CharField(
        label=gettext_lazy("Array"),
        required=False,
        max_length=4000,
        help_text=gettext_lazy("Tasks of the same size, such as 0-9 or 0-99%10 (ten at once); empty: one job."),
    )
    dependency = forms.CharField(
        label=gettext_lazy("After jobs"),
        required=False,
        max_length=2000,
        help_text=gettext_lazy("Such as afterok:NAME,afterany:ID; all of them must hold. Ids may be Slurm's."),
    )
    slurm_options = forms.CharField(
        label=gettext_lazy("More Slurm options"),
        required=False,
        max_length=8000,
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false", "autocapitalize": "off"}),
        help_text=gettext_lazy("As sbatch takes them, one a line, such as --switches=1."),
    )

    #: Fields that #SBATCH lines fill.
    RESOURCES = (
        "name",
        "nodes",
        "gpus_per_node",
        "gpu_type",
        "time_limit",
        "partition",
        "tasks_per_node",
        "cpus_per_task",
        "memory",
        "array",
        "parts",
        "slurm_options",
    )

    fallbacks = {
        "gpu_type": "",
        "tasks_per_node": 1,
        "cpus_per_task": 1,
        "memory": 0,
        "partition": "",
        "environment": {},
        "array": "",
        "parts": [],
        "dependency": "",
        "retry_rules": [],
        "slurm_options": [],
        "image": "",
        "workload_kind": "",
        "priority_class": "",
        "max_recoveries": 0,
    }

    def __init__(
        self,
        *args: Any,
        teams: Sequence[Team],
        clusters: Sequence[Cluster],
        templates: Sequence[JobTemplate],
        gpu_types: Mapping[str, Sequence[str]],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.templates = {t.name: t for t in templates}
        self.teams = {t.slug: t for t in teams}
        self.clusters = {c.uid: c for c in clusters}
        self._choose("team", [(t.slug, f"{t.name} ({t.slug})") for t in teams])
        self._choose("cluster", [(c.uid, c.name) for c in clusters])
        self._choose("template", [(t.name, _row_words(t.title)) for t in templates])
        chosen = self._raw("cluster")
        types = gpu_types.get(chosen, ()) if chosen in self.clusters else ()
        self._choose("gpu_type", [("", _("Any")), *((t, t) for t in types)], keep=self._raw("gpu_type"))
        cluster = self.clusters.get(chosen)
        names = [str(p.get("name")) for p in (cluster.observed_partitions if cluster else [])]
        self._choose("partition", [("", _("Default")), *((n, n) for n in names)], keep=self._raw("partition"))
        self.choose_kinds(cluster)
        self.scheduler = scheduler_word(cluster)
        if self.is_manifest:
            for name in (*IN_MANIFEST, "time_limit"):
                self.fields[name].required = False
        for name in ("script", "template", "gpu_type", "partition", "image", "workload_kind", "manifest"):
            # One of script and template is needed, and the lists say by themselves what empty means.
            self.fields[name].is_unmarked = True  # type: ignore[attr-defined]
        self.parameters = self._add_parameters()
        chosen_template = self.chosen_template
        self.locked = locked_fields(chosen_template) if chosen_template else []
        for name in self.locked:
            lock(self.fields[name])
        for bound in self:
            described = [f"{bound.auto_id}_helptext"] if bound.help_text else []
            bound.field.widget.attrs.setdefault("aria-describedby", " ".join([*described, f"{bound.name}-problem"]))

    def _raw(self, name: str) -> str:
        value = self.data.get(name) if self.is_bound else self.initial.get(name)
        return str(value or "")

    def _choose(self, name: str, choices: list[tuple[str, str]], keep: str = "") -> None:
        """Set choices; a value the cluster does not know stays choosable, so that the refusal can name it."""
        if keep and keep not in {value for value, _label in choices}:
            choices = [*choices, (keep, keep)]
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = choices

    def _add_parameters(self) -> list[str]:
        """Fields of the chosen template's parameters; their names."""
        template = self.templates.get(self._raw("template")) if self._raw("source") == "template" else None
        names = []
        for parameter in template.parameters if template else []:
            name = PARAMETER + str(parameter["name"])
            label = _row_words(str(parameter.get("label") or parameter["name"]))
            text = _row_words(str(parameter.get("help") or ""))
            field = parameter_field(parameter, label, text)
            field.initial = parameter_initial(parameter)
            self.fields[name] = field
            if not self.is_bound:
                self.initial.setdefault(name, parameter_initial(parameter))
            names.append(name)
        return names

    @property
    def size_fields(self) -> list[forms.BoundField]:
        """Fields of the size, which a manifest tells by itself."""
        return [self[name] for name in ("nodes", "gpus_per_node", "gpu_type")]

    @property
    def task_fields(self) -> list[forms.BoundField]:
        """Fields of what a node does, likewise."""
        return [self[name] for name in ("tasks_per_node", "cpus_per_task", "memory", "max_recoveries", "array")]

    @property
    def is_manifest(self) -> bool:
        """Whether objects of a person's own, or of a template's, take the place of a script."""
        return self._raw("source") == "manifest" or is_manifest(self.chosen_template)

    @cached_property
    def given(self) -> tuple[str, list[FieldProblem]]:
        """The script as text, from the file or the text box, and what is wrong with it; empty for another source."""
        if self._raw("source") in ("template", "manifest"):
            return "", []
        upload = self.files.get("upload") if self.files else None
        if upload is None:
            return _read(self._raw("script"))
        if (upload.size or 0) > MAX_SCRIPT_BYTES:
            text = _("%(size)s bytes; at most %(most)s (1 MiB)") % {
                "size": f"{upload.size:,}",
                "most": f"{MAX_SCRIPT_BYTES:,}",
            }
            return "", [FieldProblem("/script", "too-large", text)]
        return _read(upload.read())

    def clean_time_limit(self) -> int:
        """Minutes; 0 where a manifest is to say it."""
        if self.is_manifest and not self.cleaned_data["time_limit"].strip():
            return 0
        try:
            return parse_time(self.cleaned_data["time_limit"])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None

    def clean_memory(self) -> int:
        """MiB; 0 for no limit."""
        text = self.cleaned_data["memory"].strip()
        if not text or text == "0":
            return 0
        try:
            return parse_memory(text)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None

    def clean_environment(self) -> dict[str, str]:
        """Name → value; a line without = is refused by its number."""
        found: dict[str, str] = {}
        for number, line in enumerate(self.cleaned_data["environment"].splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            name, eq, value = line.partition("=")
            if not eq or not name.strip():
                raise forms.ValidationError(_("line %(number)s is not NAME=value") % {"number": number})
            found[name.strip()] = value.strip()
        return found

    def clean_retry_rules(self) -> list[str]:
        """One rule a line; what is none is refused by its number."""
        try:
            return [rule.text for rule in parse_rules(self.cleaned_data["retry_rules"].splitlines())]
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None

    def clean_array(self) -> str:
        """As Slurm reads it."""
        text = self.cleaned_data["array"].strip()
        try:
            return parse_array(text).text if text else ""
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None

    def clean_slurm_options(self) -> list[str]:
        """One option a line; what is none is refused by its words."""
        lines = [line for line in self.cleaned_data["slurm_options"].splitlines() if line.strip()]
        options, problems = check_options(lines)
        if problems:
            raise forms.ValidationError([p.detail for p in problems])
        return options

    def clean(self) -> dict[str, Any]:
        """The script's own problems belong to the script."""
        data = super().clean() or self.cleaned_data
        if self.is_manifest:
            for flaw in self.given_manifest[1]:
                self.add_error("manifest", flaw.words)
        elif data.get("source") == "template":
            if not data.get("template"):
                self.add_error("template", _("Choose a template."))
        else:
            for problem in self.given[1]:
                self.add_error("script", problem.detail)
        if self.is_manifest:
            data |= {"nodes": 1, "gpus_per_node": 0}
        for name in (*strange_fields(self.scheduler), *(IN_MANIFEST if self.is_manifest else ())):
            # Not on the page and not sent: whatever stands there stands in nobody's way.
            self.errors.pop(name, None)
        return data

    @property
    def chosen_template(self) -> JobTemplate | None:
        """The template, when that is the source."""
        return self.templates.get(self._raw("template")) if self._raw("source") == "template" else None

    @property
    def chosen_cluster(self) -> Cluster | None:
        """The cluster, once there is a valid one."""
        return self.clusters.get(str(self.cleaned_data.get("cluster", "")))

    def spec(self) -> JobSpec:
        """What the chosen cluster gets: without what only the other scheduler's fields say."""
        cluster = self.chosen_cluster
        return self.whole_spec() if cluster is None else fitted(self.whole_spec(), cluster)[0]

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was typed that the chosen cluster's scheduler does not know."""
        cluster = self.chosen_cluster
        return () if cluster is None else fitted(self.whole_spec(), cluster)[1]

    def whole_spec(self) -> JobSpec:
        """The JobSpec of the fields that are valid; a preview fills the others with what changes no cost."""
        data = {"name": "unnamed", **self.fallbacks, **self.cleaned_data}
        template = self.chosen_template
        parameters = {n.removeprefix(PARAMETER): data.get(n, "") for n in self.parameters}
        if self.is_manifest:
            return JobSpec(
                name=data["name"],
                nodes=1,
                gpus_per_node=0,
                time_limit_min=data["time_limit"],
                dependency=data["dependency"],
                manifest=self.given_manifest[0],
                workload_kind=WorkloadKind.MANIFEST if template else "",
                template=template,
                template_parameters=parameters,
            )
        return JobSpec(
            name=data["name"],
            nodes=data["nodes"],
            gpus_per_node=data["gpus_per_node"],
            time_limit_min=data["time_limit"],
            script="" if template else self.given[0],
            gpu_type=data["gpu_type"],
            tasks_per_node=data["tasks_per_node"],
            cpus_per_task=data["cpus_per_task"],
            memory_per_node_mib=data["memory"],
            partition=data["partition"],
            environment=data["environment"],
            slurm_options=data["slurm_options"],
            array=data["array"],
            parts=data["parts"],
            dependency=data["dependency"],
            retry_rules=data["retry_rules"],
            max_recoveries=data["max_recoveries"],
            image=data["image"].strip(),
            workload_kind=data["workload_kind"],
            priority_class=data["priority_class"].strip(),
            template=template,
            template_parameters=parameters,
        )

    def show(self, problems: Sequence[FieldProblem]) -> None:
        """Put a refusal's problems at their fields; what has no field goes to the whole form."""
        for problem in problems:
            name = field_of(problem.pointer)
            self.add_error(name if name in self.fields else None, problem.detail)


def _read(data: bytes | str) -> tuple[str, list[FieldProblem]]:
    text, problems = check_script(data)
    return text, problems or read_sbatch(text).problems


def initial_from_sbatch(reading: SbatchReading) -> dict[str, Any]:
    """Form values of what the #SBATCH lines say."""
    values: dict[str, Any] = {**reading.fields, "parts": parts_text(reading.fields.get("parts", ()))}
    if "time_limit_min" in values:
        values["time_limit"] = minutes_text(values.pop("time_limit_min"))
    if "memory_per_node_mib" in values:
        values["memory"] = memory_text(values.pop("memory_per_node_mib"))
    if "environment" in values:
        values["environment"] = "\n".join(f"{k}={v}" for k, v in values["environment"].items())
    if reading.options:
        values |= {name: value for name, value in option_values(reading.options).items() if value}
    return values


def initial_from_job(job: Job) -> dict[str, Any]:
    """Form values that would submit the same again."""
    is_template = job.template is not None and job.template.is_enabled
    values: dict[str, Any] = {
        "source": "template" if is_template else "manifest" if job.manifest else "script",
        "manifest": job.manifest,
        "team": job.team.slug,
        "cluster": job.cluster.uid,
        "template": job.template.name if job.template else "",
        "script": "" if is_template else job.script,
        "name": job.name,
        "nodes": job.nodes,
        "gpus_per_node": job.gpus_per_node,
        "gpu_type": job.gpu_type,
        "time_limit": minutes_text(job.time_limit_min),
        "partition": job.partition,
        "tasks_per_node": job.tasks_per_node,
        "cpus_per_task": job.cpus_per_task,
        "memory": memory_text(job.memory_per_node_mib),
        "max_recoveries": job.max_recoveries,
        "environment": "\n".join(f"{k}={v}" for k, v in job.environment.items()),
        **option_values(job.slurm_options),
        "array": job.array,
        "parts": parts_text(job.parts),
        "dependency": dependency_text(job),
        "retry_rules": "\n".join(job.retry_rules),
        **kubernetes_values(job),
    }
    if job.template is not None and is_template:
        # What the template fixes stays as it fixes it now, whatever it was when the job was made.
        taken = unlocked(job.template.parameters, job.template_parameters)
        values |= {PARAMETER + k: v for k, v in taken.items()}
        values |= initial_from_template(job.template, only=job.template.locked)
    return values
