"""python -m portal.messages: compiles the translations (.po to .mo) without GNU gettext."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polib

LOCALE = Path(__file__).resolve().parent.parent / "locale"


def compile_messages(locale: Path) -> list[Path]:
    """Write a .mo beside each .po below ``locale``; returns those written. Fuzzy entries are left out.

    Raises ValueError naming the file and what is wrong when a .po cannot be read.
    """
    written = []
    for source in sorted(locale.glob("*/LC_MESSAGES/*.po")):
        try:
            catalogue = polib.pofile(str(source))
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{source}: {error}") from error
        target = source.with_suffix(".mo")
        # Written beside and moved, so that a running process never reads half a file.
        temporary = target.with_suffix(f".{os.getpid()}.new")
        catalogue.save_as_mofile(str(temporary))
        temporary.replace(target)
        written.append(target)
    return written


def main() -> int:
    """Compile all; 0, or 1 with one line naming the file."""
    try:
        compile_messages(LOCALE)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
