"""Pure decisions about templates: what a parameter and a default may be, how a script is filled, what is locked."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.clusters.kube_states import WorkloadKind
from apps.core.errors import FieldProblem
from apps.jobs.array_rules import array_of
from apps.jobs.kube_rules import MAX_IMAGE, image_problem
from apps.jobs.option_rules import FIELDS
from apps.jobs.retry_rules import parse_rules
from apps.jobs.sbatch import check_options

KINDS = ("text", "integer", "number", "choice", "switch", "path")
MAX_PARAMETERS, MAX_CHOICES = 40, 50
MAX_TEXT = 500
#: More than any seed or count has; without an end a number would be too long for the database and its readers.
MAX_DIGITS = 40
PLACEHOLDER = re.compile(r"\{\{\s*([\w-]+)\s*\}\}")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_SAFE_PATH = re.compile(r"^[A-Za-z0-9_./${}:@%+=,-]+$")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMBERS = frozenset(
    {"name", "label", "type", "default", "minimum", "maximum", "choices", "on", "off", "help", "required", "locked"}
)
_TRUE, _FALSE = frozenset({"true", "on", "yes", "1"}), frozenset({"false", "off", "no", "0", ""})

#: Fields of a job that a template may give a default or lock: their label and what they hold.
LABELS: Mapping[str, Any] = {
    "name": gettext_lazy("Name"),
    "cluster": gettext_lazy("Cluster"),
    "partition": gettext_lazy("Partition"),
    "nodes": gettext_lazy("Nodes"),
    "gpus_per_node": gettext_lazy("GPUs per node"),
    "gpu_type": gettext_lazy("GPU type"),
    "time_limit_min": gettext_lazy("Time limit"),
    "tasks_per_node": gettext_lazy("Tasks per node"),
    "cpus_per_task": gettext_lazy("CPUs per task"),
    "memory_per_node_mib": gettext_lazy("Memory per node"),
    "array": gettext_lazy("Array"),
    "max_recoveries": gettext_lazy("Recoveries"),
    "retry_rules": gettext_lazy("When it fails"),
    "environment": gettext_lazy("Environment"),
    "slurm_options": gettext_lazy("More Slurm options"),
    "image": gettext_lazy("Image"),
    "workload_kind": gettext_lazy("Written as"),
    "priority_class": gettext_lazy("Priority class"),
}
_WHOLE: Mapping[str, tuple[int, int]] = {
    "nodes": (1, 10_000),
    "gpus_per_node": (0, 16),
    "time_limit_min": (1, 60 * 24 * 90),
    "tasks_per_node": (1, 1024),
    "cpus_per_task": (1, 1024),
    "memory_per_node_mib": (0, 100_000_000),
    "max_recoveries": (0, 20),
}
_TEXT: Mapping[str, int] = {
    **{"name": 100, "cluster": 60, "partition": 60, "gpu_type": 40, "array": 4000},
    **{"image": MAX_IMAGE, "workload_kind": 12, "priority_class": 63},
}


@dataclass(frozen=True)
class Content:
    """What one version of a template says; ``defaults`` and ``locked`` speak of the fields in LABELS."""

    title: str
    script: str
    description: str = ""
    parameters: Sequence[Mapping[str, Any]] = ()
    defaults: Mapping[str, Any] = None  # type: ignore[assignment]
    locked: Sequence[str] = ()

    def __post_init__(self) -> None:
        """No defaults are an empty mapping."""
        if self.defaults is None:
            object.__setattr__(self, "defaults", {})


# --- filling -------------------------------------------------------------------------------------


def yaml_text(text: str) -> str:
    """Text as a value in YAML, whatever is in it."""
    return json.dumps(text, ensure_ascii=False)


def quote_for(defaults: Mapping[str, Any]) -> Callable[[str], str]:
    """How text is put into a template of these defaults: into a manifest as YAML, into a script for the shell."""
    return yaml_text if defaults.get("workload_kind") == WorkloadKind.MANIFEST else shlex.quote


def fill_template(
    script: str,
    parameters: Sequence[Mapping[str, Any]],
    values: Mapping[str, Any],
    template: str = "",
    quote: Callable[[str], str] = shlex.quote,
) -> tuple[str, list[FieldProblem]]:
    """The script with every ``{{ name }}`` replaced by a checked value; text is quoted for the shell, or by ``quote``.

    A missing value takes the default; one of the wrong type, out of range, unknown or locked to another is a problem.
    ``template`` is the name that a refusal gives.
    """
    problems: list[FieldProblem] = []
    known = {str(p["name"]) for p in parameters}
    for name in sorted(set(values) - known):
        problems.append(
            FieldProblem(
                f"/template_parameters/{name}", "unknown", _("the template has no parameter %(name)s") % {"name": name}
            )
        )
    texts: dict[str, str] = {}
    for parameter in parameters:
        name = str(parameter["name"])
        raw = values.get(name, parameter.get("default"))
        if parameter.get("locked") and not _same(parameter, raw, parameter.get("default")):
            facts = {"field": name, "value": shown(parameter.get("default")), "template": template}
            text = _("%(field)s is fixed to %(value)s by template %(template)s") % facts
            problems.append(FieldProblem(f"/template_parameters/{name}", "locked", text))
            continue
        try:
            texts[name] = parameter_text(parameter, raw, quote)
        except ValueError as error:
            text = _("%(name)s: %(what)s") % {"name": name, "what": error}
            problems.append(FieldProblem(f"/template_parameters/{name}", "wrong-type", text))
    # One pass: a value that itself looks like a parameter stays the text it is.
    return PLACEHOLDER.sub(lambda m: texts.get(m[1], m[0]), script), problems


def _same(parameter: Mapping[str, Any], one: Any, other: Any) -> bool:
    if parameter.get("type") == "switch":
        try:
            return read_switch(one) == read_switch(other)
        except ValueError:
            return False
    return ("" if one is None else str(one)) == ("" if other is None else str(other))


def shown(value: Any) -> str:
    """A value in a sentence."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "–" if value is None or value == "" else str(value)


def read_switch(raw: Any) -> bool:
    """Whether a switch is on: true, on, yes, 1 and their opposites. Raises ValueError."""
    if isinstance(raw, bool):
        return raw
    text = "" if raw is None else str(raw).strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError(_("must be true or false, not %(text)s") % {"text": repr(str(raw)[:40])})


def parameter_text(parameter: Mapping[str, Any], raw: Any, quote: Callable[[str], str] = shlex.quote) -> str:
    """A parameter's value as the script gets it, checked and quoted. Raises ValueError."""
    kind = parameter.get("type", "text")
    if kind == "switch":
        return str(parameter.get("on", "1") if read_switch(raw) else parameter.get("off", "0"))
    if raw is None or raw == "":
        if parameter.get("required", True):
            raise ValueError(_("a value is needed"))
        return "" if kind in ("integer", "number") else quote("")
    if kind in ("integer", "number"):
        return _number_text(parameter, raw, is_whole=kind == "integer")
    if not isinstance(raw, str):
        raise ValueError(_("must be text"))
    if kind == "choice":
        if raw not in parameter.get("choices", []):
            raise ValueError(_("must be one of %(choices)s") % {"choices": ", ".join(parameter.get("choices", []))})
        return quote(raw)
    if "\n" in raw or "\x00" in raw or len(raw) > MAX_TEXT:
        raise ValueError(_("one line of at most 500 characters"))
    if kind == "path":
        if not _SAFE_PATH.match(raw):
            raise ValueError(_("a path of letters, digits and ./_- (variables such as ${HOME} are allowed)"))
        return quote(raw) if quote is yaml_text else f'"{raw}"'
    return quote(raw)


def _number_text(parameter: Mapping[str, Any], raw: Any, *, is_whole: bool) -> str:
    if isinstance(raw, bool):
        raise ValueError(_("must be a whole number") if is_whole else _("must be a number"))
    try:
        value: int | float = int(str(raw)) if is_whole else float(str(raw))
    except ValueError:
        text = _("must be a whole number, not %(text)s") if is_whole else _("must be a number, not %(text)s")
        raise ValueError(text % {"text": repr(str(raw)[:40])}) from None
    low, high = parameter.get("minimum"), parameter.get("maximum")
    if isinstance(value, int):
        if abs(value) >= 10**MAX_DIGITS:
            raise ValueError(_("a whole number of at most %(most)s digits") % {"most": MAX_DIGITS})
    elif not math.isfinite(value):
        raise ValueError(_("must be a number, not %(text)s") % {"text": repr(str(raw)[:40])})
    if (low is not None and value < low) or (high is not None and value > high):
        if low is None or high is None:
            text = _("must be at least %(low)s") if high is None else _("must be at most %(high)s")
        else:
            text = _("must be from %(low)s to %(high)s")
        raise ValueError(text % {"low": low, "high": high})
    return str(value)


# --- what a template may say ---------------------------------------------------------------------


def check_content(content: Content) -> list[FieldProblem]:
    """Everything wrong with a version of a template, by where it is wrong."""
    problems = []
    if not content.title.strip() or len(content.title) > 80:
        problems.append(FieldProblem("/title", "invalid", _("one line of text, at most %(most)s") % {"most": 80}))
    if len(content.description) > 300:
        problems.append(FieldProblem("/description", "too-long", _("at most %(most)s characters") % {"most": 300}))
    problems += check_parameters(content.parameters)
    names = {str(p.get("name")) for p in content.parameters if isinstance(p, Mapping)}
    for name in dict.fromkeys(PLACEHOLDER.findall(content.script)):
        if name not in names:
            text = _("the script has {{ %(name)s }}, and there is no parameter of this name") % {"name": name}
            problems.append(FieldProblem("/script", "no-parameter", text))
    return problems + check_defaults(content.defaults, content.locked)


def check_parameters(parameters: Sequence[Any]) -> list[FieldProblem]:
    """Problems of a parameter schema, each at /parameters/N/member."""
    if len(parameters) > MAX_PARAMETERS:
        return [FieldProblem("/parameters", "too-many", _("at most %(most)s parameters") % {"most": MAX_PARAMETERS})]
    problems: list[FieldProblem] = []
    seen: set[str] = set()
    for index, parameter in enumerate(parameters):
        at = f"/parameters/{index}"
        if not isinstance(parameter, Mapping):
            problems.append(FieldProblem(at, "invalid", _("must be an object with a name and a type")))
            continue
        problems += [FieldProblem(f"{at}/{m}", code, text) for m, code, text in _parameter_problems(parameter)]
        name = str(parameter.get("name", ""))
        if name in seen:
            text = _("a second parameter is named %(name)s") % {"name": name}
            problems.append(FieldProblem(f"{at}/name", "twice", text))
        seen.add(name)
    return problems


def _parameter_problems(parameter: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(member, code, sentence) of one parameter."""
    found: list[tuple[str, str, str]] = []
    for member in sorted(set(parameter) - _MEMBERS):
        found.append((member, "unknown", _("unknown member %(name)s") % {"name": member}))
    name = parameter.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        found.append(("name", "invalid", _("a name of small letters, digits and _, such as batch_size")))
    kind = parameter.get("type", "text")
    if kind not in KINDS:
        return [*found, ("type", "unknown", _("must be one of %(choices)s") % {"choices": ", ".join(KINDS)})]
    for member, most in (("label", 80), ("help", 200), ("on", 200), ("off", 200)):
        value = parameter.get(member, "")
        if not isinstance(value, str) or len(value) > most or "\n" in value:
            found.append((member, "invalid", _("one line of text, at most %(most)s") % {"most": most}))
    for member in ("required", "locked"):
        if not isinstance(parameter.get(member, False), bool):
            found.append((member, "invalid", _("must be true or false")))
    bounds = [parameter.get("minimum"), parameter.get("maximum")]
    for member, bound in zip(("minimum", "maximum"), bounds, strict=True):
        if bound is not None and not _is_bound(bound):
            found.append((member, "invalid", _("must be a number")))
        elif bound is not None and kind not in ("integer", "number"):
            found.append((member, "invalid", _("only numbers have bounds")))
    low, high = bounds
    bad = any(m in ("minimum", "maximum") for m, _code, _text in found)
    if not bad and low is not None and high is not None and low > high:
        found.append(("maximum", "invalid", _("must not be below the least value")))
    choices = parameter.get("choices", [])
    if kind == "choice":
        is_list = isinstance(choices, list) and all(isinstance(c, str) and _is_line(c) for c in choices)
        if not is_list or not choices or len(set(choices)) < len(choices) or len(choices) > MAX_CHOICES:
            text = _("1 to %(most)s different texts, each of one line") % {"most": MAX_CHOICES}
            found.append(("choices", "invalid", text))
    elif choices:
        found.append(("choices", "invalid", _("only a choice has choices")))
    if found:
        return found
    default = parameter.get("default")
    is_empty = default is None or default == ""
    if is_empty and kind != "switch":
        if parameter.get("locked") and parameter.get("required", True):
            found.append(("default", "required", _("what is fixed needs a value")))
        return found
    try:
        parameter_text(parameter, default)
    except ValueError as error:
        found.append(("default", "invalid", str(error)))
    return found


def _is_bound(bound: Any) -> bool:
    """Whether it is a number that a value can be held against."""
    if isinstance(bound, bool) or not isinstance(bound, int | float):
        return False
    return abs(bound) < 10**MAX_DIGITS if isinstance(bound, int) else math.isfinite(bound)


def _is_line(text: str) -> bool:
    """Whether a text stays as it is where one is typed a line."""
    return bool(text) and text.strip() == text and text.splitlines() == [text]


def check_defaults(defaults: Mapping[str, Any], locked: Sequence[str]) -> list[FieldProblem]:
    """Problems of the defaults of a job's fields, each at /defaults/field or /locked/N."""
    problems: list[FieldProblem] = []
    for name, value in defaults.items():
        at = f"/defaults/{name}"
        if name not in LABELS:
            text = _("no field %(name)s; there are %(known)s") % {"name": name, "known": ", ".join(LABELS)}
            problems.append(FieldProblem(at, "unknown", text))
            continue
        try:
            _check_default(name, value)
        except ValueError as error:
            problems.append(FieldProblem(at, "invalid", str(error)))
    for index, name in enumerate(locked):
        if name not in defaults:
            text = _("what is fixed needs a value") if name in LABELS else _("no field %(name)s") % {"name": name}
            problems.append(FieldProblem(f"/locked/{index}", "no-default", text))
    return problems


def _check_default(name: str, value: Any) -> None:
    """Raises ValueError saying what is wrong."""
    if name in _WHOLE:
        low, high = _WHOLE[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(_("must be from %(low)s to %(high)s") % {"low": f"{low:,}", "high": f"{high:,}"})
    elif name in _TEXT:
        if not isinstance(value, str) or len(value) > _TEXT[name] or any(ord(c) < 32 for c in value):
            raise ValueError(_("one line of text, at most %(most)s") % {"most": _TEXT[name]})
        if name == "array" and value:
            array_of(value)
        if name == "workload_kind" and value and value not in WorkloadKind.values:
            raise ValueError(_("must be one of %(choices)s") % {"choices": ", ".join(WorkloadKind.values)})
        if name == "image" and value and (words := image_problem(value)):
            raise ValueError(words)
    elif name == "environment":
        if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
            raise ValueError(_("must map names to texts"))
        for key in value:
            if not _ENV_NAME.fullmatch(str(key)) or (
                str(key).startswith(("QD_", "SLURM_")) and str(key) != "QD_EXAMPLES"
            ):
                raise ValueError(_("%(name)s: not a name a job may set") % {"name": key})
    elif not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError(_("must be a list of lines"))
    elif name == "retry_rules":
        parse_rules(value)
    else:
        for problem in check_options(value)[1]:
            raise ValueError(problem.detail)


# --- locks ---------------------------------------------------------------------------------------


def plain(name: str, value: Any) -> Any:
    """A field's value in the form in which two of them are compared."""
    if name == "retry_rules":
        return [rule.text for rule in parse_rules(value)]
    if name == "slurm_options":
        options, problems = check_options(list(value))
        return sorted(value) if problems else sorted(options)
    if name == "array":
        return array_of(value.strip()).text if value.strip() else ""
    return dict(value) if isinstance(value, Mapping) else value


def is_locked_to(name: str, wanted: Any, given: Any) -> bool:
    """Whether a field's value is the one it is fixed to. A job needs no rules of its own to keep a template's."""
    try:
        if name == "retry_rules" and not list(given):
            return True
        return bool(plain(name, wanted) == plain(name, given))
    except ValueError:
        return False


def with_defaults(given: Mapping[str, Any], defaults: Mapping[str, Any], *, name: str = "") -> dict[str, Any]:
    """What was given, and a template's default for what was not; ``name`` is the job's where nothing says one.

    A template's rules for failures follow the job's own, they are not taken for the job's own.
    """
    found: dict[str, Any] = {"name": name} if name else {}
    found |= {k: v for k, v in defaults.items() if k != "retry_rules"}
    if "slurm_options" in found:
        # An option that was given as a member of its own takes the place of the default's.
        said = tuple(f"--{option}" for member, option in FIELDS.items() if given.get(member))
        found["slurm_options"] = [o for o in found["slurm_options"] if o.partition("=")[0] not in said]
    return {**found, **given}
