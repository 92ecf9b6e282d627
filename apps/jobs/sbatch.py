"""Reads #SBATCH lines as sbatch itself does: every option of Slurm 22.05 to 26.05, long, short, joined and split.

What an option means here is one of five: it fills a field of the form, it is kept and handed to Slurm as it is, it is
the portal's own business, it speaks to the sbatch command alone, or it cannot be done and is refused. Nothing is
dropped: each line ends in a field, in the kept options, in a remark or in a problem that names the line.

The names and which of them take a value were read from ``sbatch`` of 22.05.8 and 26.05.5 itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.utils.translation import gettext as _

from apps.core.errors import FieldProblem
from apps.jobs.array_rules import parse_array
from apps.jobs.option_rules import FIELD_OF, PYXIS_NONE, PYXIS_VALUE, check_value
from apps.jobs.rules import parse_gpus, parse_memory, parse_time
from apps.jobs.sbatch_conflicts import conflicts, release_conflicts
from apps.jobs.sbatch_parts import add_parts, ignored_words, next_part, parts_here
from apps.jobs.sbatch_shape import settle


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Options that need a value, those that may have one, and those that have none.
_VALUE: Final = _names(
    """account acctg-freq array autocomplete batch bb bbf begin chdir cluster cluster-constraint clusters comment
    constraint container container-id container-type context core-spec cores-per-socket cpu-freq cpus-per-gpu
    cpus-per-task deadline delay-boot dependency distribution error exclude export export-file extra
    extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint
    input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu
    mem-update mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
    ntasks-per-socket ntasks-per-tres open-mode output partition power prefer priority profile qos reservation
    resources segment signal sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min
    tmp tres-bind tres-per-task uid wait-all-nodes wckey wrap"""
)
_MAYBE: Final = _names("exclusive get-user-env nice no-kill oom-kill-step propagate requeue resv-ports")
_NONE: Final = _names(
    """consolidate-segments contiguous external help hold ignore-pbs no-requeue overcommit oversubscribe parsable
    quiet reboot spread-job spread-segments stepmgr test-only usage use-min-nodes verbose version wait"""
)
NAMES: Final = _VALUE | _MAYBE | _NONE
SHORT: Final = {
    **{"a": "array", "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task"},
    **{"C": "constraint", "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus"},
    **{"h": "help", "H": "hold", "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses"},
    **{"M": "clusters", "m": "distribution", "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit"},
    **{"p": "partition", "q": "qos", "Q": "quiet", "s": "oversubscribe", "S": "core-spec", "t": "time"},
    **{"v": "verbose", "V": "version", "W": "wait", "w": "nodelist", "x": "exclude"},
}
#: Other spellings of an option, older ones too.
_ALIASES: Final = {
    "cluster": "clusters",
    "tasks-per-node": "ntasks-per-node",
    "share": "oversubscribe",
    "workdir": "chdir",
    "ntasks-per-tres": "ntasks-per-gpu",
}
#: Options that the portal decides itself: it collects output, restarts jobs and marks them as its own.
OURS: Final = _names("output error chdir requeue no-requeue comment open-mode")
#: Options that tell the sbatch command how to behave and Slurm nothing about the job.
CLIENT: Final = _names("autocomplete help ignore-pbs parsable quiet test-only usage verbose version wait")
#: Options that a job sent by REST cannot have, or that the portal does another way.
_REFUSED: Final = _names("""bbf clusters export-file external gid gpus-per-socket nodefile power resources uid wrap""")
#: Options that speak of the shell or the login session that a job sent by REST does not come from.
_OF_THE_SHELL: Final = _names("get-user-env propagate")
#: Options that fill fields of the form; some values of them are kept as well.
_FIELDS: Final = _names(
    """array job-name nodes ntasks-per-node cpus-per-task partition time mem gpus-per-node gpus-per-task gres gpus
    ntasks export"""
)
#: Options that count by GPUs: without a number of them Slurm takes as many GPUs as make the rest come out.
PER_GPU: Final = ("ntasks-per-gpu", "cpus-per-gpu", "mem-per-gpu")
_MAGIC: Final = "#SBATCH"


@dataclass(slots=True)
class SbatchReading:
    """What the #SBATCH lines of a script say.

    ``fields`` are values of a job's columns, with ``parts`` (members of part_rules.Part) where there are several;
    ``options`` are handed to Slurm as ``--name=value``, ``problems`` cannot be done by line, ``remarks`` are somebody
    else's business.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    problems: list[FieldProblem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Option:
    """One option as given: its full name, its value ("" for none), and the line it stands on."""

    name: str
    value: str = ""
    line: int = 0

    @property
    def words(self) -> str:
        """As one would write it, so that reading it again gives the same."""
        return f"--{self.name}={shlex.quote(self.value)}" if self.value else f"--{self.name}"

    @property
    def plain(self) -> str:
        """Name and value without quotes, as a program passes them on."""
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


def words_of(text: str) -> list[str]:
    """The words of the rest of an #SBATCH line: quotes and backslashes as sbatch reads them, ``#`` begins a comment.

    Raises ValueError for a quote that is not closed.
    """
    words: list[str] = []
    current: list[str] | None = None
    quote = ""
    characters = iter(text)
    for character in characters:
        if quote:
            if character == quote:
                quote = ""
            elif character == "\\" and quote == '"':
                (current := current or []).append(next(characters, "\\"))
            else:
                (current := current or []).append(character)
        elif character.isspace():
            if current is not None:
                words.append("".join(current))
                current = None
        elif character == "#" and current is None:
            break
        elif character in "\"'":
            quote, current = character, current or []
        elif character == "\\":
            (current := current or []).append(next(characters, "\\"))
        else:
            (current := current or []).append(character)
    if quote:
        raise ValueError(_("a quote is not closed"))
    if current is not None:
        words.append("".join(current))
    return words


def full_name(name: str) -> str:
    """The option that a name or the beginning of one stands for. Raises ValueError for none or several."""
    if name in _ALIASES:
        return _ALIASES[name]
    if name in NAMES or name in PYXIS_VALUE | PYXIS_NONE:
        return name
    found = sorted(n for n in NAMES if n.startswith(name))
    if len({_ALIASES.get(n, n) for n in found}) == 1:
        return _ALIASES.get(found[0], found[0])
    if found:
        some = ", ".join(f"--{n}" for n in found[:4])
        raise ValueError(_("--%(name)s can be several: %(some)s") % {"name": name, "some": some})
    raise ValueError(_("Slurm has no option --%(name)s") % {"name": name})


def options_of(words: Sequence[str], line: int = 0) -> list[Option]:
    """Options from words, as getopt takes them apart. Raises ValueError for what sbatch would not take either."""
    found = []
    rest = iter(words)
    for word in rest:
        if word.startswith("--") and len(word) > 2:
            found.append(_long(word[2:], rest, line))
        elif word.startswith("-") and len(word) > 1 and word != "--":
            found += _short(word[1:], rest, line)
        else:
            raise ValueError(_("%(text)s is not an option") % {"text": repr(word)})
    return found


def _long(text: str, rest: Iterable[str], line: int) -> Option:
    given, equals, value = text.partition("=")
    name = full_name(given)
    if equals and name in _NONE | PYXIS_NONE:
        raise ValueError(_("--%(name)s takes no value") % {"name": name})
    if name in _VALUE | PYXIS_VALUE and not equals:
        value = next(iter(rest), "")
        if not value:
            raise ValueError(_("--%(name)s has no value") % {"name": name})
    if name in _VALUE | PYXIS_VALUE and not value:
        raise ValueError(_("--%(name)s has no value") % {"name": name})
    # Slurm takes this one in any case; what is held for it must not hang on how it is written.
    return Option(name, value.lower() if name == "exclusive" else value, line)


def _short(text: str, rest: Iterable[str], line: int) -> list[Option]:
    """``-N4``, ``-N 4``, and flags together as in ``-HQ``."""
    found: list[Option] = []
    while text:
        name = SHORT.get(text[0])
        if name is None:
            raise ValueError(_("Slurm has no option -%(name)s") % {"name": text[0]})
        text = text[1:]
        if name in _VALUE:
            value = text.removeprefix("=") or next(iter(rest), "")
            if not value:
                raise ValueError(_("--%(name)s has no value") % {"name": name})
            return [*found, Option(name, value, line)]
        if name in _MAYBE:
            # A value that may be missing must stand right behind its letter.
            return [*found, Option(name, text, line)]
        found.append(Option(name, "", line))
    return found


def read_sbatch(script: str) -> SbatchReading:
    """Read the #SBATCH lines of a script, up to its first command, as Slurm does."""
    out = SbatchReading()
    shapes = _shapes_of(script, out)
    if (shapes[0] or len(shapes) > 1) and not script.removeprefix("\ufeff").startswith("#!"):
        text = _("a batch script begins with #! and its interpreter, as in #!/bin/bash; sbatch refuses this one")
        out.problems.append(line_problem(1, text))
    take_options(shapes[0], out)
    if len(shapes) > 1:
        add_parts(shapes, out)
    out.problems.sort(key=_line_of)
    return out


def _line_of(problem: FieldProblem) -> int:
    """The number of the line that a problem names, whatever the language; those that name none come first."""
    number = re.search(r"\d+", problem.detail) if problem.code == "bad-directive" else None
    return int(number[0]) if number else 0


def refused_by_release(script: str, release: str) -> list[FieldProblem]:
    """What is wrong with the #SBATCH lines for one release of Slurm ("24.11.5", "" where it is not known) alone."""
    shapes = _shapes_of(script, SbatchReading())
    return [line_problem(number, text) for given in shapes for number, text in release_conflicts(given, release)]


def _shapes_of(script: str, out: SbatchReading) -> list[dict[str, Option]]:
    """The options of the script by name: a mapping for each part of a heterogeneous job, else one."""
    given: dict[str, Option] = {}
    shapes = [given]
    for number, raw in enumerate(script.removeprefix("\ufeff").split("\n"), start=1):
        line = raw.rstrip("\r")
        if not line.startswith(_MAGIC):
            if line.strip() and not line.lstrip().startswith("#"):
                break
            continue
        if (parting := parts_here(line)) is not None:
            out.remarks += ignored_words(number, parting["rest"])
            shapes.append(next_part(given))
            given = shapes[-1]
            continue
        try:
            options = options_of(words_of(line[len(_MAGIC) :]), number)
        except ValueError as error:
            out.problems.append(line_problem(number, str(error)))
            continue
        if not options and not line[len(_MAGIC) :].strip():
            out.problems.append(line_problem(number, _("%(text)s has no option") % {"text": repr(line)}))
        for option in options:
            # What is said twice holds as it is said last.
            given.pop(option.name, None)
            given[option.name] = option
    return shapes


def take_options(given: dict[str, Option], out: SbatchReading) -> None:
    """Put the options of one job, or of one part of it, where they belong."""
    out.problems += [line_problem(number, text) for number, text in conflicts(given)]
    settle(given, out)
    for option in given.values():
        _take(option, given, out)


def line_problem(number: int, text: str) -> FieldProblem:
    """What is wrong with a line of the script."""
    return FieldProblem("/script", "bad-directive", _("line %(number)s: %(text)s") % {"number": number, "text": text})


def _take(option: Option, given: dict[str, Option], out: SbatchReading) -> None:
    facts = {"number": option.line, "name": option.name}
    if option.name in OURS:
        out.remarks.append(_("line %(number)s: --%(name)s is decided by the portal and not used") % facts)
        return
    if option.name in CLIENT:
        out.remarks.append(_("line %(number)s: --%(name)s speaks to the sbatch command alone and is not used") % facts)
        return
    if option.name in _OF_THE_SHELL:
        out.remarks.append(
            _("line %(number)s: --%(name)s is about a login session, which jobs here have not; set it in the script")
            % facts
        )
        return
    if option.name in _REFUSED:
        out.problems.append(line_problem(option.line, why_refused(option.name)))
        return
    try:
        is_field = option.name in _FIELDS and _fill(option, given, out)
    except ValueError as error:
        out.problems.append(line_problem(option.line, str(error)))
        return
    if not is_field:
        out.options.append(option.words)
        if option.name in PYXIS_VALUE | PYXIS_NONE:
            out.remarks.append(_("line %(number)s: --%(name)s is for pyxis: every srun of the script gets it") % facts)
        elif option.name not in FIELD_OF and option.name not in _FIELDS:
            facts["text"] = option.words
            out.remarks.append(_("line %(number)s: %(text)s is kept and handed to Slurm as it is") % facts)


def why_refused(name: str) -> str:
    """Why an option cannot be had here, and what does the same."""
    words = {
        "bbf": _("a burst buffer's file lies on another machine; write its lines into --bb"),
        "clusters": _("choose the cluster in the form instead of --clusters"),
        "export-file": _("a file of variables lies on another machine; write them into Environment"),
        "external": _("a job without a script cannot be followed here"),
        "gid": _("only root may run jobs as another group"),
        "uid": _("only root may run jobs as another user"),
        "gpus-per-socket": _("--gpus-per-socket counts by socket: write --gpus-per-node, by which GPUs are held"),
        "nodefile": _("a file of nodes lies on another machine; write them into --nodelist"),
        "power": _("Slurm has no --power any more"),
        "resources": _("a file of resources lies on another machine; write them as options"),
        "wrap": _("--wrap makes a script of a command; this is a script already"),
    }
    return words[name]


def _whole(name: str, text: str, least: int = 1) -> int:
    if not re.fullmatch(r"\d+", text) or int(text) < least:
        raise ValueError(
            _("--%(name)s must be a whole number from %(least)s, not %(text)s")
            % {"name": name, "least": least, "text": repr(text)}
        )
    return int(text)


def _fill(option: Option, given: dict[str, Option], out: SbatchReading) -> bool:
    """Fill a field; False where the option says more than the field can hold and is kept too. Raises ValueError."""
    name, value, fields = option.name, option.value, out.fields
    match name:
        case "array":
            fields["array"] = parse_array(value).text
        case "job-name":
            fields["name"] = value
        case "nodes":
            return _fill_nodes(value, fields)
        case "ntasks-per-node":
            fields["tasks_per_node"] = _whole(name, value)
        case "cpus-per-task":
            fields["cpus_per_task"] = _whole(name, value)
        case "partition":
            fields["partition"] = value
        case "time":
            fields["time_limit_min"] = parse_time(value)
        case "mem":
            fields["memory_per_node_mib"] = parse_memory(value) if value != "0" else 0
        case "gpus-per-node":
            fields["gpu_type"], fields["gpus_per_node"] = parse_gpus(value)
        case "gres":
            return _fill_gres(value, out)
        case "gpus":
            return _fill_share(option, given, fields, "gpus-per-node", "gpus_per_node")
        case "gpus-per-task":
            _fill_by_task(value, given, out)
        case "ntasks":
            return _fill_share(option, given, fields, "ntasks-per-node", "tasks_per_node")
        case "export":
            return _fill_export(option, out)
    return True


def _fill_nodes(value: str, fields: dict[str, Any]) -> bool:
    """A number. What is held is counted by node, so that a range cannot be."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", value)
    if not match or (match[2] is None and int(match[1]) < 1):
        _whole("nodes", value)
    if not match or int(match[1]) < 1 or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(_("--nodes must be a number or a range such as 2-4, not %(text)s") % {"text": repr(value)})
    if match[2] is not None and match[2] != match[1]:
        raise ValueError(_("--nodes=%(text)s: money is held for a fixed number of nodes; write one") % {"text": value})
    fields["nodes"] = int(match[1])
    return True


def _fill_gres(value: str, out: SbatchReading) -> bool:
    """GPUs fill their fields; other generic resources are kept."""
    others = []
    for part in value.split(","):
        if re.match(r"(?:gres[/:])?gpu(?::|=|$)", part):
            wanted = part.removeprefix("gres/").removeprefix("gres:").replace("=", ":", 1)
            out.fields["gpu_type"], out.fields["gpus_per_node"] = parse_gpus(wanted)
        elif part and part.lower() != "none":
            others.append(part)
    if others:
        out.options.append(f"--gres={','.join(others)}")
    return True


def _fill_share(
    option: Option, given: dict[str, Option], fields: dict[str, Any], each_option: str, column: str
) -> bool:
    """A total over all nodes as a number for each, where it divides; else the total is kept."""
    kind, total = parse_gpus(option.value) if option.name == "gpus" else ("", _whole(option.name, option.value))
    if option.name == "gpus" and "gres" not in given and each_option not in given and kind:
        fields["gpu_type"] = kind
    nodes = given.get("nodes")
    # Checked again where nodes are read.
    count = int(nodes.value) if nodes is not None and nodes.value.isdecimal() and int(nodes.value) > 0 else 1
    if each_option in given or (option.name == "gpus" and "gres" in given):
        # The number for each node decides; the total must agree with it, which Slurm checks for tasks.
        return option.name == "gpus"
    if option.name == "gpus" and (total % count or total < count):
        raise ValueError(_("--gpus=%(all)s does not divide by %(nodes)s nodes") % {"all": total, "nodes": count})
    fields[column] = max(1, -(-total // count))
    # Tasks without a number of nodes are a total, however many nodes the form says.
    return option.name == "gpus" or (nodes is not None and total % count == 0 and total >= count)


def _fill_by_task(value: str, given: dict[str, Option], out: SbatchReading) -> None:
    """GPUs for each task as GPUs for each node; that each task sees its own is what --gpu-bind says."""
    kind, each = parse_gpus(value)
    count = 1
    if (tasks := given.get("ntasks-per-node")) is not None:
        count = _whole(tasks.name, tasks.value)
    elif (total := given.get("ntasks")) is not None:
        nodes = given.get("nodes")
        share = int(nodes.value) if nodes is not None and nodes.value.isdecimal() and int(nodes.value) > 0 else 1
        count = -(-_whole(total.name, total.value) // share)
    out.fields["gpu_type"], out.fields["gpus_per_node"] = kind, each * count
    if "gpu-bind" not in given:
        out.options.append(f"--gpu-bind=per_task:{each}")


def _fill_export(option: Option, out: SbatchReading) -> bool:
    """Variables with a value go into the job's environment; those of the submitting shell do not exist here."""
    environment = {}
    for part in option.value.split(","):
        name, equals, value = part.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            environment[name] = value
        elif part:
            out.remarks.append(_not_handed_on(part, option.line))
    if environment:
        out.fields["environment"] = {**out.fields.get("environment", {}), **environment}
    return True


def _not_handed_on(part: str, line: int) -> str:
    facts = {"number": line, "name": part}
    if part in ("ALL", "NONE", "NIL"):
        return _("line %(number)s: --export=%(name)s speaks of a shell, which is not here; Environment counts") % facts
    return _("line %(number)s: the portal has no shell whose %(name)s it could hand on") % facts


def check_options(lines: Sequence[str]) -> tuple[list[str], list[FieldProblem]]:
    """Kept options as a person typed them, one ``--name=value`` each: made uniform, and what is wrong by number."""
    found: dict[str, str] = {}
    problems = []
    for index, text in enumerate(lines):
        pointer = f"/slurm_options/{index}"
        try:
            for option in options_of(words_of(text)):
                pointer = f"/{FIELD_OF[option.name]}" if option.name in FIELD_OF else f"/slurm_options/{index}"
                if option.name in OURS:
                    raise ValueError(_("--%(name)s is decided by the portal") % {"name": option.name})
                if option.name in CLIENT | _OF_THE_SHELL:
                    raise ValueError(_("--%(name)s speaks to the sbatch command alone") % {"name": option.name})
                if option.name in _REFUSED:
                    raise ValueError(why_refused(option.name))
                if option.name in _FIELDS and option.name not in ("ntasks", "gres"):
                    raise ValueError(_("--%(name)s has a field of its own") % {"name": option.name})
                if option.name in ("gres", "tres-per-task") and "gpu" in option.value.lower():
                    raise ValueError(_("GPUs have fields of their own"))
                if re.search(r"[\x00-\x1f\x7f]", option.value):
                    raise ValueError(_("--%(name)s holds a character that is none") % {"name": option.name})
                check_value(option.name, option.value)
                found.pop(option.name, None)
                found[option.name] = option.words
        except ValueError as error:
            problems.append(FieldProblem(pointer, "bad-option", f"{text.strip()[:60]}: {error}"))
    return list(found.values()), problems


def kept_options(lines: Sequence[str]) -> list[Option]:
    """The options that a job keeps. Raises ValueError for lines that ``check_options`` did not write."""
    return [option for text in lines for option in options_of(words_of(text))]


def value_of(lines: Sequence[str], name: str) -> str | None:
    """The value of a kept option, "" where it has none; None where it is not there."""
    return next((o.value for o in kept_options(lines) if o.name == name), None)
