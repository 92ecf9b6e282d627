"""Parts of a heterogeneous job in a script: what parts them, and what a part takes over from the one before."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext as _

from apps.core.errors import FieldProblem
from apps.jobs.part_rules import MAX_PARTS, MEMBERS, Part, part_of

if TYPE_CHECKING:
    from apps.jobs.sbatch import Option, SbatchReading

#: A line that parts them; the older word is taken too. What stands behind it sbatch does not read.
_SEPARATOR: Final = re.compile(r"#SBATCH\s+(?:hetjob|packjob)(?:\s+(?P<rest>.*))?$")
#: Options that a part has from the one before unless it says otherwise. Found by giving each to the first part of a
#: job of 22.05.8, 24.11.5 and 26.05.5 and looking at the second; all others begin anew.
_TAKEN_OVER = """account begin comment container deadline delay-boot dependency exclude extra hint job-name
    kill-on-invalid-dep mcs-label mem nice nodelist qos reboot reservation time time-min wckey"""
TAKEN_OVER: Final = frozenset(_TAKEN_OVER.split())


def parts_here(line: str) -> re.Match[str] | None:
    """Whether a line begins another part."""
    return _SEPARATOR.match(line.rstrip())


def next_part(given: Mapping[str, Option]) -> dict[str, Option]:
    """What the next part has before its own lines are read."""
    return {name: option for name, option in given.items() if name in TAKEN_OVER}


def ignored_words(number: int, rest: str | None) -> list[str]:
    """A remark on what stands behind the word that parts them."""
    text = (rest or "").strip()
    if not text or text.startswith("#"):
        return []
    return [_("line %(number)s: sbatch does not read %(text)s behind hetjob") % {"number": number, "text": text[:60]}]


def add_parts(shapes: Sequence[dict[str, Option]], out: SbatchReading) -> None:
    """Add the further parts to a reading: shapes behind the first, each as its lines and those before left it."""
    from apps.jobs.sbatch import SbatchReading, line_problem, take_options

    if len(shapes) > MAX_PARTS:
        text = _("%(n)s parts; Slurm takes %(most)s") % {"n": len(shapes), "most": MAX_PARTS}
        out.problems.append(FieldProblem("/script", "too-many", text))
        return
    for given in shapes:
        if (array := given.get("array")) is not None:
            text = _("a heterogeneous job cannot be an array")
            out.problems.append(line_problem(array.line, text))
            return
    rows: list[dict[str, Any]] = []
    first = dict(out.fields)
    for number, given in enumerate(shapes[1:], start=1):
        one = SbatchReading()
        take_options(given, one)
        out.problems += [p for p in one.problems if p not in out.problems]
        out.remarks += [r for r in one.remarks if r not in out.remarks]
        if one.fields.pop("environment", None):
            out.remarks.append(
                _("part %(part)s: its variables reach no script: the script runs with those of the first part")
                % {"part": number}
            )
        row = _part(one, first).row()
        rows.append({name: row[name] for name in MEMBERS})
    out.fields["parts"] = rows


def _part(reading: SbatchReading, first: Mapping[str, Any]) -> Part:
    """The part of a reading; what is as in the first part is told by saying nothing."""
    part = replace(part_of(reading.fields), slurm_options=tuple(reading.options))
    if part.time_limit_min == first.get("time_limit_min"):
        part = replace(part, time_limit_min=0)
    return replace(part, name="") if part.name == first.get("name") else part


def read_part(text: str) -> Part:
    """A part from one line of options as a person typed it. Raises ValueError for what it cannot be."""
    from apps.jobs.sbatch import SbatchReading, options_of, take_options, words_of

    options = options_of(words_of(text))
    given: dict[str, Option] = {}
    for option in options:
        given.pop(option.name, None)
        given[option.name] = option
    if "array" in given:
        raise ValueError(_("a heterogeneous job cannot be an array"))
    out = SbatchReading()
    take_options(given, out)
    if out.problems:
        raise ValueError(out.problems[0].detail.partition(": ")[2] or out.problems[0].detail)
    out.fields.pop("environment", None)
    return replace(part_of(out.fields), slurm_options=tuple(out.options))
