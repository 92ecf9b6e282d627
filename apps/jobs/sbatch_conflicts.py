"""What options of sbatch say against each other: sbatch refuses such a script, so it is refused here, by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _

from apps.jobs.sbatch_shape import GPUS_OF_A_NODE

if TYPE_CHECKING:
    from apps.jobs.sbatch import Option

#: Options of which at most one may be given; 22.05 to 26.05 say so with a fatal error.
_EITHER: Final = (
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    *(
        frozenset({"ntasks-per-gpu", other})
        for other in ("gpus-per-task", "gpus-per-socket", "ntasks-per-node", "tres-per-task")
    ),
    frozenset({"cpus-per-gpu", "cpus-per-task"}),
    frozenset({"core-spec", "thread-spec"}),
)
#: Since which release Slurm does so, measured on 22.05.8, 24.11.5 and 26.05.5: refuses --gpus-per-node beside
#: --gres=gpu, leaves --gpus with --ntasks-per-node on one node, takes --ntasks-per-node for no count of tasks, refuses
#: --oversubscribe beside --exclusive, and knows --tres-per-task.
_GRES_REFUSED_SINCE: Final = (25, 5)
_ONE_NODE_SINCE: Final = (25, 5)
_TASKS_COUNTED_SINCE: Final = (24, 11)
_SHARING_REFUSED_SINCE: Final = (24, 11)
_TRES_KNOWN_SINCE: Final = (23, 11)
#: GPUs in --gres, with their type where one is named.
_GRES_GPU: Final = re.compile(r"(?:^|,)(?:gres[/:])?gpu(?::(?P<type>[A-Za-z][\w.-]*))?(?=[:=,]|$)")
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")


def conflicts(given: Mapping[str, Option]) -> Iterator[tuple[int, str]]:
    """Line and words of each conflict between the options of a script."""
    for either in _EITHER:
        both = sorted((given[name] for name in either & given.keys()), key=lambda option: option.line)
        if len(both) > 1:
            names = {"one": both[-1].name, "other": both[0].name}
            yield both[-1].line, _("--%(one)s and --%(other)s exclude each other") % names
    if "ntasks-per-node" not in given:
        yield from _tasks_uncounted(given)
    yield from _types_and_none(given)


def _tasks_uncounted(given: Mapping[str, Option]) -> Iterator[tuple[int, str]]:
    nodes = given.get("nodes")
    # A range of nodes counts nothing.
    if given.keys() & {"gpus", "ntasks"} or (nodes is not None and nodes.value.isdecimal()):
        return
    text = _("--%(name)s counts by tasks: say how many with --ntasks, or the GPUs with --gpus")
    for option in (given.get("gpus-per-task"), given.get("tres-per-task")):
        if option is not None and (option.name == "gpus-per-task" or "gres/gpu" in option.value):
            yield option.line, text % {"name": option.name}


def _types_and_none(given: Mapping[str, Option]) -> Iterator[tuple[int, str]]:
    """GPUs named with a type in one option and without in another: Slurm takes neither for the other."""
    gres = given.get("gres")
    gpus = _GRES_GPU.search(gres.value) if gres is not None else None
    if gres is None or gpus is None:
        return
    for other in (given.get("gpus"), given.get("gpus-per-node"), given.get("gpus-per-task")):
        if other is not None and (":" in other.value) != bool(gpus["type"]):
            text = _("--%(one)s and --%(other)s: one names a type of GPU, the other none; Slurm refuses both together")
            names = {"one": gres.name, "other": other.name}
            yield max(gres.line, other.line), text % names


def release_conflicts(given: Mapping[str, Option], release: str) -> Iterator[tuple[int, str]]:
    """The same for what only some releases of Slurm refuse; ``release`` as in "24.11.5", "" where it is not known."""
    told = _RELEASE.match(release)
    if told is None:
        return
    number = (int(told[1]), int(told[2]))
    tres, gres, each = given.get("tres-per-task"), given.get("gres"), given.get("gpus-per-node")
    if tres is not None and number < _TRES_KNOWN_SINCE:
        yield tres.line, _("Slurm %(release)s has no option --tres-per-task") % {"release": release}
    if "ntasks-per-node" in given and number >= _TASKS_COUNTED_SINCE:
        yield from _tasks_uncounted(given)
    if number >= _SHARING_REFUSED_SINCE and {"exclusive", "oversubscribe"} <= given.keys():
        names = {"one": "oversubscribe", "other": "exclusive"}
        yield given["oversubscribe"].line, _("--%(one)s and --%(other)s exclude each other") % names
    gpus = given.get("gpus")
    if number >= _ONE_NODE_SINCE and gpus is not None and "ntasks-per-node" in given:
        count = re.search(r"(\d+)$", gpus.value)
        if count and int(count[1]) > GPUS_OF_A_NODE and not given.keys() & {"nodes", "ntasks"}:
            text = _("Slurm %(release)s looks for these GPUs on one node: say how many nodes with --nodes")
            yield gpus.line, text % {"release": release}
    if gres is not None and each is not None and number >= _GRES_REFUSED_SINCE and _GRES_GPU.search(gres.value):
        text = _("Slurm %(release)s takes --gpus-per-node or --gres=gpu, not both")
        yield max(gres.line, each.line), text % {"release": release}
