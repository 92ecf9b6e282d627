"""A template in the form of a new job: fields of its parameters, its defaults as people type them, what is locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext as _

from apps.jobs.models import JobTemplate
from apps.jobs.option_forms import option_values
from apps.jobs.option_rules import FIELDS
from apps.jobs.rules import parse_memory, parse_time
from apps.jobs.template_rules import LABELS, shown

#: Field of a template's defaults → field of the form, where the two differ.
FORM_NAMES: Mapping[str, str] = {"memory_per_node_mib": "memory", "time_limit_min": "time_limit"}
_LINES = ("retry_rules", "slurm_options")
_NUMBERS = ("nodes", "gpus_per_node", "tasks_per_node", "cpus_per_task", "max_recoveries")


def minutes_text(minutes: int) -> str:
    """Minutes as people type them for Slurm: ``2:00:00`` or ``1-04:00:00``."""
    days, rest = divmod(minutes, 1440)
    hours, mins = divmod(rest, 60)
    clock = f"{hours:02d}:{mins:02d}:00" if days else f"{hours}:{mins:02d}:00"
    return f"{days}-{clock}" if days else clock


def memory_text(mib: int) -> str:
    """MiB as people type them: ``64G``, ``500M``; empty for no limit."""
    if not mib:
        return ""
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def typed(name: str, value: Any) -> Any:
    """A field's value as people type it."""
    if name == "time_limit_min":
        return minutes_text(int(value))
    if name == "memory_per_node_mib":
        return memory_text(int(value))
    if name == "environment":
        return "\n".join(f"{k}={v}" for k, v in value.items())
    return "\n".join(value) if name in _LINES else value


def field_words(name: str, value: Any) -> str:
    """A field's value in a sentence: times and memory as people type them."""
    is_measure = name in FORM_NAMES and isinstance(value, int) and value
    return str(typed(name, value)) if is_measure else shown(value)


def read_typed(name: str, text: str) -> Any:
    """What people typed as a field's value. Raises ValueError."""
    text = text.replace("\r\n", "\n").strip()
    if name == "time_limit_min":
        return parse_time(text)
    if name == "memory_per_node_mib":
        return parse_memory(text) if text and text != "0" else 0
    if name in _LINES:
        return [line for line in text.split("\n") if line.strip()]
    if name == "environment":
        found: dict[str, str] = {}
        for number, line in enumerate(text.split("\n"), start=1):
            key, eq, value = line.partition("=")
            if line.strip() and (not eq or not key.strip()):
                raise ValueError(_("line %(number)s is not NAME=value") % {"number": number})
            if line.strip():
                found[key.strip()] = value.strip()
        return found
    if name in _NUMBERS:
        try:
            return int(text)
        except ValueError:
            raise ValueError(_("must be a whole number, not %(text)s") % {"text": repr(text[:40])}) from None
    return text


def initial_from_template(template: JobTemplate, only: Sequence[str] | None = None) -> dict[str, Any]:
    """Form values of a template's defaults; its rules for failures are no job's own and stay out."""
    found: dict[str, Any] = {}
    for name, value in template.defaults.items():
        if name not in LABELS or name == "retry_rules" or (only is not None and name not in only):
            continue
        found |= option_values(value) if name == "slurm_options" else {FORM_NAMES.get(name, name): typed(name, value)}
    return found


def locked_fields(template: JobTemplate) -> list[str]:
    """Names of the form's fields that a template fixes; its options are all the fields that write one."""
    found = [FORM_NAMES.get(name, name) for name in template.locked if name in LABELS]
    return [*found, *FIELDS] if "slurm_options" in found else found


def lock(field: forms.Field) -> None:
    """Show that a field is fixed. It is still sent and judged: the refusal is the service's."""
    field.widget.attrs["data-locked"] = "true"
    field.help_text = _("Fixed by the template.")
    if isinstance(field.widget, forms.Select):
        field.widget.attrs["aria-readonly"] = "true"
    else:
        field.widget.attrs["readonly"] = True


def parameter_field(parameter: Mapping[str, Any], label: str, help_text: str) -> forms.Field:
    """The field of one parameter. Its value is judged by the template, in the words of its refusal."""
    kind, is_required = parameter.get("type", "text"), bool(parameter.get("required", True))
    choices: list[tuple[str, str]] = []
    if kind == "choice":
        choices = [(str(c), str(c)) for c in parameter.get("choices", [])]
        if not is_required:
            choices = [("", "–"), *choices]
    elif kind == "switch":
        choices = [("true", _("On")), ("false", _("Off"))]
    field = forms.CharField(label=label, help_text=help_text, max_length=500, required=is_required and kind != "switch")
    if choices:
        if parameter.get("locked"):
            default = shown(parameter.get("default"))
            choices = [pair for pair in choices if pair[0] == default] or choices
        field.widget = forms.Select(choices=choices)
    elif kind in ("integer", "number"):
        field.widget = forms.TextInput(attrs={"inputmode": "decimal"})
    if parameter.get("locked"):
        lock(field)
    return field


def parameter_initial(parameter: Mapping[str, Any]) -> Any:
    """A parameter's default as its field shows it."""
    default = parameter.get("default")
    if parameter.get("type") == "switch":
        return "true" if default in (True, "true", "on", "yes", "1") else "false"
    return default
