"""Slurm options that have a field of their own: how each is checked, read from a job's options and written back.

The options of a job are their one home: a field is another way to write the same option.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from django.utils.translation import gettext as _

#: Field of the form and member of the API → the option that it writes.
FIELDS: Final = {
    "reservation": "reservation",
    "constraint": "constraint",
    "begin": "begin",
    "qos": "qos",
    "licenses": "licenses",
    "exclusive": "exclusive",
    "nodelist": "nodelist",
    "exclude": "exclude",
    "container_image": "container-image",
    "container_mounts": "container-mounts",
}
FIELD_OF: Final = {option: name for name, option in FIELDS.items()}
#: What ``exclusive`` can be, and the value that the option has then.
EXCLUSIVE: Final = {"node": "", "user": "user", "mcs": "mcs", "topo": "topo"}
#: Options of pyxis, which runs the steps of a script inside a container: those with a value and those without.
PYXIS_VALUE: Final = frozenset(
    ("container-image", "container-mounts", "container-workdir", "container-name", "container-save", "container-env")
)
PYXIS_NONE: Final = frozenset(
    (
        *("container-mount-home", "no-container-mount-home", "container-remap-root", "no-container-remap-root"),
        *("container-entrypoint", "no-container-entrypoint", "container-entrypoint-log"),
        *("container-writable", "container-readonly"),
    )
)

_WORD: Final = r"[\w.+@-]+"
_HOSTS: Final = re.compile(r"[\w.-]+(?:\[[\d,-]+\][\w.-]*)*(?:,[\w.-]+(?:\[[\d,-]+\][\w.-]*)*)*")
_NAMED: Final = frozenset(("now", "today", "tomorrow", "midnight", "noon", "teatime", "fika", "elevenses"))
_CLOCK: Final = r"\d{1,2}:\d{2}(?::\d{2})?\s?(?:[AaPp][Mm])?"
_DAY: Final = r"(?:\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}(?:/\d{2,4})?|\d{1,2}\.\d{1,2}\.\d{2,4}|\d{4}(?:\d{2})?)"


def check_value(name: str, value: str) -> None:
    """Refuse a value that Slurm cannot understand. Raises ValueError; options without a field are not looked at."""
    match name:
        case "begin":
            if not _is_instant(value):
                raise ValueError(
                    _("%(text)s is no time: write 16:00, tomorrow, now+2hours or 2030-01-31T08:00") % _said(value)
                )
        case "reservation" | "qos":
            if not re.fullmatch(rf"{_WORD}(?:,{_WORD})*", value):
                raise ValueError(_("%(text)s cannot be a name in Slurm") % _said(value))
        case "constraint":
            if not re.fullmatch(r"[\w.=+:/&|!*,()%\[\]-]+", value) or not _is_balanced(value):
                raise ValueError(
                    _("%(text)s is no expression of features such as h100, h100&ib or [rack1|rack2]") % _said(value)
                )
        case "licenses":
            # 22.05 counts with a colon, later releases also with an equals sign; alternatives since 25.05 with |.
            one = rf"{_WORD}(?:[:=]\d+)?"
            if not re.fullmatch(rf"\(?{one}(?:[,;|]{one})*\)?", value):
                raise ValueError(_("%(text)s is no list of licences such as matlab:2,ansys@server:4") % _said(value))
        case "exclusive":
            if value.lower() not in EXCLUSIVE.values():
                raise ValueError(_("%(text)s is none of user, mcs and topo") % _said(value))
        case "nodelist" | "exclude":
            if not value.startswith("/") and not _HOSTS.fullmatch(value):
                raise ValueError(_("%(text)s is no list of nodes such as p5-[1-4,7],gpu3") % _said(value))
            if value.startswith("/") or "/" in value:
                raise ValueError(_("a file of nodes lies on another machine; write the nodes"))
        case "container-image" | "container-workdir" | "container-name" | "container-save":
            if re.search(r"\s", value):
                raise ValueError(_("%(text)s has a space in it") % _said(value))
        case "container-mounts":
            if not all(re.fullmatch(r"[^\s:]+(?::[^\s:]+){0,2}", part) for part in value.split(",")):
                raise ValueError(_("%(text)s is no list of mounts such as /fsx:/fsx,/data:/data:ro") % _said(value))


def _said(value: str) -> dict[str, str]:
    return {"text": repr(value[:80])}


def _is_balanced(text: str) -> bool:
    return text.count("(") == text.count(")") and text.count("[") == text.count("]")


def _is_instant(text: str) -> bool:
    """A time as sbatch takes it: a name, a clock, a day or both, or so long from now."""
    text = text.strip()
    if text.lower() in _NAMED or re.fullmatch(r"now\s?\+\s?\d+\s?[a-z]*", text):
        unit = re.sub(r"[^a-z]", "", text.lower()).removeprefix("now")
        units = ("", *(long[:n] for long in ("seconds", "minutes", "hours", "days", "weeks") for n in range(1, 8)))
        return text.lower() in _NAMED or unit in units
    if re.match(r"\d{4}-", text):
        try:
            datetime.fromisoformat(text)
        except ValueError:
            return False
        return True
    found = re.fullmatch(rf"({_CLOCK})|{_DAY}(?:[T-]({_CLOCK}))?|uts\d+", text)
    clock = (found[1] or found[2] or "0:00") if found else "99:00"
    hours, minutes = (int(part[:2]) for part in clock.split(":")[:2])
    return hours < 24 and minutes < 60


def option_words(field: str, value: str) -> str:
    """What a field's value is as an option, quoted; "" for an empty field. Raises ValueError."""
    value = value.strip()
    if not value:
        return ""
    name = FIELDS[field]
    if field == "exclusive":
        if value not in EXCLUSIVE:
            raise ValueError(_("%(text)s is none of node, user, mcs and topo") % _said(value))
        value = EXCLUSIVE[value]
    elif re.search(r"[\x00-\x1f\x7f]", value):
        raise ValueError(_("one line of text"))
    check_value(name, value)
    return f"--{name}={shlex.quote(value)}" if value else f"--{name}"


def fields_of(options: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """(field → value, the other options) of options as ``check_options`` writes them."""
    fields: dict[str, str] = {}
    others = []
    whole = {value: word for word, value in EXCLUSIVE.items()}
    for text in options:
        name, _equals, quoted = text.removeprefix("--").partition("=")
        field = FIELD_OF.get(name)
        try:
            value = "".join(shlex.split(quoted))
        except ValueError:
            field, value = None, ""
        if field == "exclusive":
            value = whole.get(value.lower(), "")
        if field and value:
            fields[field] = value
        else:
            others.append(text)
    return fields, others


def with_fields(options: Sequence[str], fields: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """(options with those of the fields, field → what is wrong with it)."""
    there = {text.removeprefix("--").partition("=")[0] for text in options}
    out, problems = list(options), {}
    for field, value in fields.items():
        try:
            words = option_words(field, value)
        except ValueError as error:
            problems[field] = str(error)
            continue
        if words and words not in options:
            if FIELDS[field] in there:
                problems[field] = _("--%(name)s is also among the other Slurm options; say it once") % {
                    "name": FIELDS[field]
                }
            else:
                out.append(words)
    return out, problems


def pyxis_environment(options: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The variables by which pyxis reads its own options, of (name, value) of kept options."""
    found = {}
    for name, value in options:
        if name in PYXIS_VALUE:
            found[f"PYXIS_{name.upper().replace('-', '_')}"] = value
        elif name in PYXIS_NONE:
            plain = name.removeprefix("no-")
            is_on = "0" if plain != name else "1"
            found[f"PYXIS_{plain.upper().replace('-', '_')}"] = is_on
    return found


def hosts_in(text: str) -> int:
    """How many hosts a list such as ``p5-[1-4,7],gpu3`` names."""
    total = 0
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", text):
        count = 1
        for inside in re.findall(r"\[([^\]]*)\]", part):
            ends = [piece.partition("-")[::2] for piece in inside.split(",") if piece]
            count *= sum(
                max(1, int(last) - int(first) + 1) if first.isdecimal() and last.isdecimal() else 1
                for first, last in ends
            )
        total += count
    return total
