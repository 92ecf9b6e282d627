"""Fields of a new job for Slurm options: each reads and writes the option of its name and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django import forms
from django.utils.translation import gettext_lazy
from rest_framework import serializers

from apps.core.errors import FieldProblem, InvalidInput
from apps.core.forms import NamingForm
from apps.jobs.option_rules import EXCLUSIVE, FIELDS, fields_of, with_fields

#: Longest value: a list of nodes or mounts of a large job.
MAX_VALUE: Final = 1900

EXCLUSIVE_WORDS: Final = {
    "": gettext_lazy("Shared with other jobs"),
    "node": gettext_lazy("Whole nodes"),
    "user": gettext_lazy("Only with my own jobs"),
    "mcs": gettext_lazy("Only with jobs of my security label"),
    "topo": gettext_lazy("Whole segments of the topology"),
}


def _text(label: Any, help_text: Any) -> forms.CharField:
    attributes = {"spellcheck": "false", "autocapitalize": "off"}
    widget = forms.TextInput(attrs=attributes)
    return forms.CharField(label=label, required=False, max_length=MAX_VALUE, widget=widget, help_text=help_text)


class OptionFields(NamingForm):
    """The fields; ``clean`` puts their options beside those of the text box."""

    reservation = _text(gettext_lazy("Reservation"), gettext_lazy("A Slurm reservation that you may use."))
    constraint = _text(gettext_lazy("Constraint"), gettext_lazy("Features of the nodes, such as h100&ib."))
    begin = _text(
        gettext_lazy("Not before"),
        gettext_lazy("UTC: 16:00, tomorrow, now+2hours or 2030-01-31T08:00."),
    )
    qos = _text(gettext_lazy("QOS"), gettext_lazy("Empty: the one of your account."))
    licenses = _text(gettext_lazy("Licences"), gettext_lazy("Such as matlab:2,ansys:4."))
    exclusive = forms.ChoiceField(
        label=gettext_lazy("Sharing of nodes"),
        required=False,
        choices=tuple(EXCLUSIVE_WORDS.items()),
        help_text=gettext_lazy("Whole nodes are paid whole."),
    )
    nodelist = _text(gettext_lazy("On these nodes"), gettext_lazy("Such as p5-[1-4]; the job gets all of them."))
    exclude = _text(gettext_lazy("Not on these nodes"), gettext_lazy("Such as p5-7,p5-9."))
    container_image = _text(
        gettext_lazy("Container image"),
        gettext_lazy("For pyxis and enroot: nvcr.io#nvidia/pytorch:25.10-py3 or a .sqsh file. Every srun runs in it."),
    )
    container_mounts = _text(gettext_lazy("Container mounts"), gettext_lazy("Such as /fsx:/fsx,/data:/data:ro."))

    def clean(self) -> dict[str, Any]:
        """Their options among the others; what cannot be is told at its field."""
        data: dict[str, Any] = super().clean() or self.cleaned_data
        given = {name: str(data.get(name) or "") for name in FIELDS}
        options, problems = with_fields(data.get("slurm_options") or [], given)
        for name, text in problems.items():
            self.add_error(name, text)
        data["slurm_options"] = options
        return data

    @property
    def options_shown(self) -> bool:
        """Whether one of the fields says something, so that the fold is open."""
        return any(self[name].errors or self[name].value() for name in FIELDS)


def option_values(options: Sequence[str]) -> dict[str, str]:
    """Values of the form's fields and of its text box for a job's options."""
    fields, others = fields_of(options)
    return {**{name: fields.get(name, "") for name in FIELDS}, "slurm_options": "\n".join(others)}


def option_members() -> dict[str, serializers.CharField]:
    """The members of a submit that write an option, by name."""
    words = {
        "begin": "Not before: 16:00, tomorrow, now+2hours or 2030-01-31T08:00 (UTC).",
        "container_image": "For pyxis and enroot: every srun of the script runs in it.",
        "container_mounts": "For pyxis, such as /fsx:/fsx,/data:/data:ro.",
        "exclusive": f"{', '.join(EXCLUSIVE)}; empty: nodes are shared.",
        "nodelist": "The job gets all of these nodes.",
    }
    return {
        name: serializers.CharField(
            max_length=MAX_VALUE,
            required=False,
            default="",
            allow_blank=True,
            help_text=words.get(name, f"As sbatch's --{option}.") + " The same as this option in slurm_options.",
        )
        for name, option in FIELDS.items()
    }


def with_members(body: Mapping[str, Any]) -> dict[str, Any]:
    """A submit's body with its members in ``slurm_options``. Raises InvalidInput naming the member."""
    given = {name: str(body.get(name, "")) for name in FIELDS}
    rest = {name: value for name, value in body.items() if name not in FIELDS}
    rest["slurm_options"], problems = with_fields(body.get("slurm_options", ()), given)
    if problems:
        found = [FieldProblem(f"/{name}", "invalid", text) for name, text in problems.items()]
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in found), problems=found)
    return rest
