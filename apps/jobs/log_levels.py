"""How bad a line of a job's output is, by its words: what the viewer marks, filters by and jumps to."""

from __future__ import annotations

import re
from typing import Final

#: Levels of a line and, as the worst of its lines, of a chunk.
PLAIN, WARNING, ERROR = 0, 1, 2
NAMES: Final = {"any": PLAIN, "warning": WARNING, "error": ERROR}

#: One pass over the text finds all candidates; each alternative begins with a fixed word, so a long line costs no more
#: than its length. The same words stand in static/js/logs.js.
_ERROR: Final = re.compile(
    r"(?:error|exception)\b"
    r"|\b(?:traceback|fatal|panic|critical|segmentation fault|out of memory|oom-kill|nccl warn|xid)\b",
    re.IGNORECASE,
)
_WARNING: Final = re.compile(r"\bwarn(?:ing)?\b", re.IGNORECASE)


def level_of(text: str) -> int:
    """The worst level among the lines of a text."""
    if _ERROR.search(text):
        return ERROR
    return WARNING if _WARNING.search(text) else PLAIN
