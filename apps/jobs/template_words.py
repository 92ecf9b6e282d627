"""What differs: between two versions of a template, and between a new job and the last one from its template."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _

from apps.clusters.models import Cluster
from apps.jobs.kube_checks import with_cluster_defaults
from apps.jobs.models import Job
from apps.jobs.part_forms import parts_text
from apps.jobs.template_fields import field_words
from apps.jobs.template_rules import LABELS, Content, is_locked_to, shown
from apps.jobs.template_selectors import default_words

if TYPE_CHECKING:
    from apps.jobs.services import JobSpec


@dataclass(frozen=True)
class Change:
    """One value that differs: ``kind`` is field, parameter or text; ``label`` is for people, ``name`` for programs."""

    kind: str
    name: str
    label: str
    before: str
    after: str


@dataclass(frozen=True)
class Changes:
    """Values and lines of the script that differ; the lines as (class, text)."""

    values: list[Change]
    script: list[tuple[str, str]]

    @property
    def is_long(self) -> bool:
        """Too many lines to show at once."""
        return len(self.script) > 24

    @property
    def count(self) -> int:
        """Changed values and changed lines."""
        return len(self.values) + sum(1 for kind, _line in self.script if kind in ("add", "del"))


def changes_between(old: str, new: str) -> Iterable[tuple[str, str]]:
    """Changed lines with two lines of context as (class, text): add, del, or empty for context."""
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2):
        if line.startswith(("---", "+++")):
            continue
        yield {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], ""), line


def _values_between(
    kind: str, before: Mapping[str, Any], after: Mapping[str, Any], labels: Mapping[str, Any]
) -> Iterable[Change]:
    for name in dict.fromkeys([*before, *after]):
        old, new = shown(before.get(name)), shown(after.get(name))
        if old != new:
            yield Change(kind, name, str(labels.get(name, name)), old, new)


def run_changes(last: Job, spec: JobSpec, cluster: Cluster, script: str) -> Changes:
    """What a job would do differently from an earlier one."""
    parameters = list(spec.template.parameters) if spec.template else []
    labels = {str(p["name"]): str(p.get("label") or p["name"]) for p in parameters}
    defaults = {str(p["name"]): p.get("default") for p in parameters}
    before = {**{k: v for k, v in defaults.items() if last.template_parameters}, **last.template_parameters}
    values = list(_values_between("parameter", before, {**defaults, **spec.template_parameters}, labels))
    filled = with_cluster_defaults(spec, cluster)
    for name, label in LABELS.items():
        if name == "cluster":
            old: Any = last.cluster.name
            new: Any = cluster.name
        else:
            old, new = getattr(last, name), getattr(spec, name)
            if name == "partition":
                old, new = old or cluster.partition, new or cluster.partition
            elif name in ("image", "workload_kind"):
                new = getattr(filled, name)
        if is_locked_to(name, old, new) and not (name == "retry_rules" and old and not new):
            continue
        values.append(Change("field", name, str(label), field_words(name, old), field_words(name, new)))
    old, new = parts_text(last.parts), parts_text(spec.parts)
    if old != new:
        values.append(Change("field", "parts", _("Further parts"), old or "–", new or "–"))
    return Changes(values, list(changes_between(last.script, script)) if script else [])


def content_changes(old: Content, new: Content) -> Changes:
    """What one version says otherwise than another: words, parameters, defaults, locks, script."""
    values = []
    for name, label in (("title", _("Title")), ("description", _("Description"))):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            values.append(Change("text", name, label, before or "–", after or "–"))
    values += _values_between("parameter", _by_name(old.parameters), _by_name(new.parameters), {})
    values += _values_between("field", _with_locks(old), _with_locks(new), LABELS)
    return Changes(values, list(changes_between(old.script, new.script)))


def _by_name(parameters: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {str(p.get("name")): parameter_words(p) for p in parameters}


def parameter_words(parameter: Mapping[str, Any]) -> str:
    """A parameter in one line: type, default, bounds or choices, whether it is fixed."""
    kinds = kind_words()
    parts = [kinds.get(str(parameter.get("type", "text")), str(parameter.get("type")))]
    default = parameter.get("default")
    if default is not None and default != "":
        parts.append(f"= {shown(default)}")
    low, high = parameter.get("minimum"), parameter.get("maximum")
    if low is not None or high is not None:
        words = _("at least %(low)s") if high is None else _("at most %(high)s")
        if low is not None and high is not None:
            words = _("from %(low)s to %(high)s")
        parts.append(words % {"low": low, "high": high})
    if parameter.get("choices"):
        parts.append(" | ".join(parameter["choices"]))
    if parameter.get("type") == "switch":
        parts.append(f"{parameter.get('on', '1') or '–'} / {parameter.get('off', '0') or '–'}")
    if parameter.get("locked"):
        parts.append(_("fixed"))
    if not parameter.get("required", True):
        parts.append(_("may be empty"))
    return ", ".join(parts)


def kind_words() -> dict[str, str]:
    """The kinds of a parameter for people."""
    return {
        "text": _("text"),
        "integer": _("whole number"),
        "number": _("number"),
        "choice": _("choice"),
        "switch": _("switch"),
        "path": _("path"),
    }


def _with_locks(content: Content) -> dict[str, str]:
    return {
        name: default_words(name, value) + (f" ({_('fixed')})" if name in content.locked else "")
        for name, value in content.defaults.items()
    }
