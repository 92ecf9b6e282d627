"""The field of a heterogeneous job's further parts: one line a part, as sbatch takes options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from rest_framework import serializers

from apps.jobs.option_forms import OptionFields
from apps.jobs.part_rules import MAX_PARTS, MEMBERS, told_part, words_of_part
from apps.jobs.sbatch_parts import read_part


class PartFields(OptionFields):
    """The text box; ``clean_parts`` makes members of a submit of it."""

    parts = forms.CharField(
        label=gettext_lazy("Further parts"),
        required=False,
        max_length=20_000,
        widget=forms.Textarea(attrs={"rows": 2, "spellcheck": "false", "autocapitalize": "off"}),
        help_text=gettext_lazy(
            "Of a heterogeneous job: one part a line, such as --nodes=1 --gpus-per-node=1 --ntasks-per-node=16. The "
            "fields above are its first part."
        ),
    )

    def clean_parts(self) -> list[dict[str, Any]]:
        """A row a line; what is no part is refused by its number."""
        rows = []
        lines = [line for line in self.cleaned_data["parts"].splitlines() if line.strip()]
        for number, line in enumerate(lines, start=1):
            try:
                row = read_part(line).row()
            except ValueError as error:
                raise forms.ValidationError(_("part %(part)s: %(text)s") % {"part": number, "text": error}) from None
            rows.append({name: row[name] for name in MEMBERS})
        return rows


def parts_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of parts as the text box shows them."""
    return "\n".join(words_of_part(told_part(row)) for row in rows)


class PartMembersSerializer(serializers.Serializer[Any]):
    """A further part of a heterogeneous job, as a submit tells it."""

    nodes = serializers.IntegerField(default=1)
    gpus_per_node = serializers.IntegerField(default=0)
    gpu_type = serializers.CharField(max_length=40, required=False, default="", allow_blank=True)
    tasks_per_node = serializers.IntegerField(default=1)
    cpus_per_task = serializers.IntegerField(default=1)
    memory_per_node_mib = serializers.IntegerField(default=0)
    partition = serializers.CharField(max_length=60, required=False, default="", allow_blank=True)
    time_limit_min = serializers.IntegerField(default=0, help_text="0: the job's.")
    slurm_options = serializers.ListField(
        child=serializers.CharField(max_length=2000), required=False, default=list, max_length=100
    )
    name = serializers.CharField(
        max_length=100, required=False, default="", allow_blank=True, help_text="Empty: the job's."
    )


def part_members() -> dict[str, serializers.Field[Any, Any, Any, Any]]:
    """The member of a submit that tells further parts."""
    text = "Further parts of a heterogeneous job; its own members are the first part, where the script runs."
    return {
        "parts": serializers.ListField(
            child=PartMembersSerializer(), required=False, default=list, max_length=MAX_PARTS - 1, help_text=text
        )
    }
