"""EC2's filters and pages: names to values with wildcards, all filters must hold, any value of a filter may."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeVar

from sandbox.aws.errors import AwsError

Filters = Mapping[str, Sequence[str]]
#: The values that a thing has for a filter's name; None where the name means nothing for this kind of thing.
Values = Callable[[str], Sequence[str] | None]

_Thing = TypeVar("_Thing")


@cache
def _pattern(value: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(char, re.escape(char)) for char in value), re.DOTALL)


def matches(filters: Filters, tags: Mapping[str, str], values: Values) -> bool:
    """Whether a thing passes. Raises ``AwsError`` InvalidParameterValue for a filter it does not know."""
    for name, wanted in filters.items():
        if name == "tag-key":
            have: Sequence[str] | None = list(tags)
        elif name.startswith("tag:"):
            key = name.removeprefix("tag:")
            have = [tags[key]] if key in tags else []
        else:
            have = values(name)
        if have is None:
            raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
        if not any(_pattern(value).fullmatch(item) for value in wanted for item in have):
            return False
    return True


def page(
    things: Sequence[_Thing], most: int | None, token: str | None, *, least: int = 5, limit: int = 1000
) -> tuple[Sequence[_Thing], str | None]:
    """One page and the token of the next. Raises ``AwsError`` for a size out of bounds or a foreign token."""
    start = 0
    if token:
        try:
            start = int(base64.urlsafe_b64decode(token.encode()).decode().removeprefix("from:"))
        except (binascii.Error, ValueError) as exc:
            raise AwsError("InvalidParameterValue", "Unable to parse pagination token") from exc
    if most is None:
        return things[start:], None
    if not least <= most <= limit:
        raise AwsError(
            "InvalidParameterValue",
            f"Value ( {most} ) for parameter maxResults is invalid. Expecting a value between {least} and {limit}.",
        )
    end = start + most
    following = base64.urlsafe_b64encode(f"from:{end}".encode()).decode() if end < len(things) else None
    return things[start:end], following
