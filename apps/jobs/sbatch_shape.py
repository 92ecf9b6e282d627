"""What a script leaves unsaid of a job's shape, told from the rest as Slurm does: nodes, GPUs, time, name."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _

from apps.jobs.rules import parse_gpus

if TYPE_CHECKING:
    from apps.jobs.sbatch import Option, SbatchReading

#: GPUs of one node at most: a total above it means several nodes. All P instances have eight or fewer.
GPUS_OF_A_NODE: Final = 8
#: And its CPUs, as hardware threads, and its sockets: so many tasks fit on a node where nothing else says how many do.
CPUS_OF_A_NODE: Final = 192
SOCKETS_OF_A_NODE: Final = 2
#: The time limit asked for where a script says none; Slurm would take the partition's.
DEFAULT_TIME_MIN: Final = 24 * 60
DEADLINE_TIME_MIN: Final = 60
DEFAULT_NAME: Final = "job"


def _count(given: MutableMapping[str, Option], name: str) -> int | None:
    option = given.get(name)
    return int(option.value) if option is not None and re.fullmatch(r"[1-9]\d{0,6}", option.value) else None


def _gpu_count(given: MutableMapping[str, Option], name: str) -> int | None:
    try:
        return parse_gpus(given[name].value)[1]
    except (KeyError, ValueError):
        return None


def _gpus_in_all(given: MutableMapping[str, Option]) -> int | None:
    """GPUs over all nodes, where the script says or implies them."""
    if "gpus" in given:
        return _gpu_count(given, "gpus")
    each, tasks = _gpu_count(given, "gpus-per-task"), _count(given, "ntasks")
    return each * tasks if each is not None and tasks is not None else None


def nodes_meant(given: MutableMapping[str, Option]) -> int:
    """How many nodes a script means that says none: by its tasks for each node, by its GPUs, or by its CPUs."""
    tasks, tasks_each = _count(given, "ntasks"), _count(given, "ntasks-per-node")
    if tasks is not None and tasks_each is not None:
        return -(-tasks // tasks_each)
    by_cpus = _nodes_by_cpus(given, tasks or 1)
    total, each = _gpus_in_all(given), _gpu_count(given, "gpus-per-node")
    if total is None or total < 1:
        return by_cpus
    if each:
        return -(-total // each)
    least = max(by_cpus, -(-total // GPUS_OF_A_NODE))
    even = (n for n in range(least, total + 1) if total % n == 0 and (tasks is None or tasks % n == 0))
    return next(even, least)


def _nodes_by_cpus(given: MutableMapping[str, Option], tasks: int) -> int:
    """Nodes that so many tasks fill."""
    hint = given.get("hint")
    one_a_core = hint is not None and hint.value == "nomultithread"
    one_a_core |= 1 in (_count(given, "ntasks-per-core"), _count(given, "threads-per-core"))
    cpus = CPUS_OF_A_NODE // 2 if one_a_core else CPUS_OF_A_NODE
    fit = max(1, cpus // (_count(given, "cpus-per-task") or 1))
    if (a_socket := _count(given, "ntasks-per-socket")) is not None:
        fit = min(fit, a_socket * SOCKETS_OF_A_NODE)
    return -(-tasks // fit)


_TRES_GPUS = re.compile(r"gres/gpu(?::([\w.-]+))?[:=](\d+)")


def _tres_meant(given: MutableMapping[str, Option], out: SbatchReading) -> None:
    """GPUs of ``--tres-per-task`` as ``--gpus-per-task``; what else it names stays."""
    from apps.jobs.sbatch import Option

    option = given.get("tres-per-task")
    if option is None:
        return
    rest = []
    for part in option.value.split(","):
        gpus = _TRES_GPUS.fullmatch(part)
        if gpus is None or "gpus-per-task" in given:
            rest.append(part)
            continue
        value = f"{gpus[1]}:{gpus[2]}" if gpus[1] else gpus[2]
        given["gpus-per-task"] = Option("gpus-per-task", value, option.line)
        facts = {"number": option.line, "text": option.words, "gpus": value}
        out.remarks.append(_("line %(number)s: of %(text)s the GPUs are read as --gpus-per-task=%(gpus)s") % facts)
    del given[option.name]
    if rest:
        given[option.name] = Option(option.name, ",".join(rest), option.line)


def _gpus_by_tasks(given: MutableMapping[str, Option]) -> None:
    """The GPUs that ``--ntasks-per-gpu`` means where the tasks are counted and the GPUs are not."""
    from apps.jobs.sbatch import Option

    tasks, each = _count(given, "ntasks"), _count(given, "ntasks-per-gpu")
    if tasks and each and not given.keys() & {"gpus", "gpus-per-node", "gres", "gpus-per-task"}:
        given["gpus"] = Option("gpus", str(-(-tasks // each)), given["ntasks-per-gpu"].line)


def settle(given: MutableMapping[str, Option], out: SbatchReading) -> None:
    """Before the options are taken: a fixed number of nodes, whatever the script says of them."""
    from apps.jobs.sbatch import Option

    _tres_meant(given, out)
    _gpus_by_tasks(given)
    sockets = _count(given, "sockets-per-node")
    if "gpus-per-socket" in given and "gpus-per-node" not in given and sockets is not None:
        option = given.pop("gpus-per-socket")
        try:
            kind, each = parse_gpus(option.value)
        except ValueError:
            given[option.name] = option
        else:
            value = f"{kind}:{each * sockets}" if kind else str(each * sockets)
            given["gpus-per-node"] = Option("gpus-per-node", value, option.line)
    option_or_none = given.get("nodes")
    if option_or_none is None:
        meant = nodes_meant(given)
        if meant > 1:
            given["nodes"] = Option("nodes", str(meant))
            out.remarks.append(_("the script names no number of nodes; its tasks and GPUs fill %(n)s") % {"n": meant})
        return
    span = re.fullmatch(r"([1-9]\d{0,6})-([1-9]\d{0,6})", option_or_none.value)
    if span and int(span[1]) < int(span[2]):
        given["nodes"] = Option("nodes", span[2], option_or_none.line)
        facts = {"number": option_or_none.line, "text": option_or_none.value, "most": span[2]}
        out.remarks.append(
            _("line %(number)s: of --nodes=%(text)s the larger number is asked for, %(most)s: money is held for it")
            % facts
        )


def completed(reading: SbatchReading) -> SbatchReading:
    """The reading with what a submit must have and the script does not say, each with a remark."""
    fields, remarks = dict(reading.fields), list(reading.remarks)
    fields.setdefault("name", DEFAULT_NAME)
    fields.setdefault("nodes", 1)
    if "gpus_per_node" not in fields:
        # 0 with --exclusive stands for all GPUs of a node where every node has some; the cluster knows how many.
        fields["gpus_per_node"] = 0
        is_whole = any(one in ("--exclusive", "--exclusive=topo") for one in reading.options)
        remarks.append(
            _("the script asks for whole nodes: all their GPUs are held, unless nodes without GPUs fit")
            if is_whole
            else _("the script asks for no GPU: it runs on the CPUs of a node")
        )
    if "time_limit_min" not in fields:
        # Before a deadline a day may not be left.
        has_deadline = any(one.startswith("--deadline=") for one in reading.options)
        fields["time_limit_min"] = DEADLINE_TIME_MIN if has_deadline else DEFAULT_TIME_MIN
        remarks.append(
            _("the script says no time limit: %(hours)s h are asked for") % {"hours": fields["time_limit_min"] // 60}
        )
    return replace(reading, fields=fields, remarks=remarks)
