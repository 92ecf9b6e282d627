"""What options of sbatch say against each other: sbatch refuses such a script, so it is refused here, by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _

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
#: The first release of Slurm that refuses --gpus-per-node beside --gres=gpu.
_GRES_REFUSED_SINCE: Final = (24, 11)
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")


def conflicts(given: Mapping[str, Option]) -> Iterator[tuple[int, str]]:
    """Line and words of each conflict between the options of a script."""
    for either in _EITHER:
        both = sorted((given[name] for name in either & given.keys()), key=lambda option: option.line)
        if len(both) > 1:
            names = {"one": both[-1].name, "other": both[0].name}
            yield both[-1].line, _("--%(one)s and --%(other)s exclude each other") % names
    each = given.get("gpus-per-task")
    if each is not None and not given.keys() & {"gpus", "ntasks", "nodes"}:
        yield each.line, _("--gpus-per-task counts by tasks: say how many with --ntasks, or the GPUs with --gpus")


def release_conflicts(given: Mapping[str, Option], release: str) -> Iterator[tuple[int, str]]:
    """The same for what only some releases of Slurm refuse; ``release`` as in "24.11.5", "" where it is not known."""
    told = _RELEASE.match(release)
    if told is None or (int(told[1]), int(told[2])) < _GRES_REFUSED_SINCE:
        return
    gres, each = given.get("gres"), given.get("gpus-per-node")
    if gres is not None and each is not None and re.search(r"(^|[,/])gpu(:|$)", gres.value):
        text = _("Slurm %(release)s takes --gpus-per-node or --gres=gpu, not both")
        yield max(gres.line, each.line), text % {"release": release}
