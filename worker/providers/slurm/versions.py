"""Slurm's REST versions: which there are, which release serves them, and in what each differs from the newest.

``decode`` reads all of their answers into our values, ``encode`` and ``options`` write their requests; what depends on
the version and not on the answer's own shape is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Newest first, as they are tried. All but v0.0.39, which none of the releases serves, are held to the contract.
VERSIONS: Final = ("v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42", "v0.0.41", "v0.0.40", "v0.0.39", "v0.0.38")
#: The oldest: plain values instead of structures, a list of names instead of arrays, manners of its own.
OLD: Final = "v0.0.38"
#: What the releases that the contract runs on serve.
SERVED: Final[Mapping[str, tuple[str, ...]]] = {
    "22.05": ("v0.0.38",),
    "24.11": ("v0.0.42", "v0.0.41", "v0.0.40"),
    "26.05": ("v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42"),
}
#: No list of the states of all jobs.
WITHOUT_STATES: Final = frozenset({"v0.0.39", "v0.0.38"})
#: Says of a kill or a signal only that it was sent, also for a job that there is not.
SILENT_KILLS: Final = frozenset({"v0.0.41", "v0.0.40", "v0.0.39"})
#: Takes cores for each socket in a submit, and forgets them.
FORGETS_CORES: Final = frozenset({"v0.0.42", "v0.0.41", "v0.0.40", "v0.0.39"})
#: Can put a job back into the queue; elsewhere only scontrol can.
CAN_REQUEUE: Final = frozenset({"v0.0.45"})
