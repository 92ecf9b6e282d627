"""A container's health check: healthcheck.py URL [PART]; 0 when it answers 200 and says that the part is ok."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """0 healthy, 1 not (with the reason on one line), 2 wrong use."""
    if not 1 <= len(arguments) <= 2 or not arguments[0].startswith("http://"):
        print("use: healthcheck.py http://HOST:PORT/readyz [PART]", file=sys.stderr)
        return 2
    try:
        with urllib.request.urlopen(arguments[0], timeout=4) as answer:  # noqa: S310
            told = json.load(answer)
    except urllib.error.HTTPError as error:
        print(f"{arguments[0]} answers {error.code}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 1
    part = arguments[1] if len(arguments) == 2 else "status"
    if not isinstance(told, dict) or told.get(part) != "ok":
        print(f"{arguments[0]}: {part} is {told.get(part) if isinstance(told, dict) else told}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
