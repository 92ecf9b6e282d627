"""Stored sentences: a template and its facts are kept, and put into the reader's language where they are shown.

The worker writes in no language in particular: ``said(_("%(n)s machines launched"), n=3)``, with Django's
``gettext_noop`` as ``_`` so that the catalogue collects the template. Columns that hold such sentences are
``SaidField`` and ``SaidJSONField``; what is read from them is text in English that turns into the reader's language
wherever it is formatted or rendered. Plain text, such as a vendor's error, goes through unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import models
from django.utils.translation import gettext

_PLACE = re.compile(r"%\((\w+)\)s|%%")
_START = '{"say":'


def _fill(template: str, facts: Mapping[str, str]) -> str:
    """The template with its facts; an unknown placeholder stays as it is, so that no stored text can raise."""
    return _PLACE.sub(lambda m: "%" if m[0] == "%%" else facts.get(m[1], m[0]), template)


class Said(str):
    """A sentence that knows its template: in English as a text, in the language in force as ``str()`` of it."""

    template: str
    facts: Mapping[str, Any]

    def __new__(cls, template: str, facts: Mapping[str, Any]) -> Said:
        """From a template in English with ``%(name)s`` places and what goes into them."""
        # A fact that was said itself must come in English here, whatever language is in force.
        english = {k: "".join(v) if isinstance(v, str) else str(v) for k, v in facts.items()}
        self = super().__new__(cls, _fill(template, english))
        self.template, self.facts = template, dict(facts)
        return self

    def __str__(self) -> str:
        """In the language in force."""
        if not self.template:
            return ""
        return _fill(gettext(self.template), {k: str(v) for k, v in self.facts.items()})

    def __format__(self, spec: str) -> str:
        """In the language in force."""
        return format(str(self), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        """Template and facts, for pickle and copy."""
        return Said, (self.template, self.facts)


def said(template: str, /, **facts: Any) -> Said:
    """A sentence to store. Facts are text, numbers or other said sentences."""
    return Said(template, facts)


def brief(text: str, length: int) -> str:
    """Text cut to a length; a said sentence is never cut, or it would lose its template."""
    return text if isinstance(text, Said) else text[:length]


def pack(value: Any) -> Any:
    """A JSON value with every said sentence in it as ``{"say": template, "with": facts}``."""
    if isinstance(value, Said):
        return {"say": value.template, "with": {k: pack(v) for k, v in value.facts.items()}}
    if isinstance(value, Mapping):
        return {k: pack(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [pack(v) for v in value]
    return value


def unpack(value: Any) -> Any:
    """The reverse of ``pack``."""
    if isinstance(value, dict):
        if set(value) == {"say", "with"} and isinstance(value["say"], str) and isinstance(value["with"], dict):
            return Said(value["say"], {str(k): unpack(v) for k, v in value["with"].items()})
        return {k: unpack(v) for k, v in value.items()}
    return [unpack(v) for v in value] if isinstance(value, list) else value


def told(value: Any) -> Any:
    """A JSON value with every said sentence in it as text in the language in force."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {k: told(v) for k, v in value.items()}
    return [told(v) for v in value] if isinstance(value, list | tuple) else value


if TYPE_CHECKING:
    _Text = models.TextField[str, str]
    _Json = models.JSONField[Any, Any]
else:
    _Text, _Json = models.TextField, models.JSONField


class SaidField(_Text):
    """A column of sentences: what was said keeps its template, plain text stays plain."""

    description = "Sentence in the reader's language"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Stored text to a sentence."""
        return self.to_python(value)

    def to_python(self, value: Any) -> Any:
        """A sentence from its stored form, anything else as it is."""
        if isinstance(value, Said) or not (isinstance(value, str) and value.startswith(_START)):
            return value
        try:
            found = unpack(json.loads(value))
        except ValueError:
            return value
        return found if isinstance(found, Said) else value

    def get_prep_value(self, value: Any) -> Any:
        """A sentence to its stored form."""
        if isinstance(value, Said):
            return json.dumps(pack(value), ensure_ascii=False, separators=(",", ":"))
        return value

    def value_to_string(self, obj: models.Model) -> str:
        """The stored form, for dumps."""
        return str(self.get_prep_value(self.value_from_object(obj)))


class SaidJSONField(_Json):
    """A JSON column that may hold sentences anywhere in it."""

    description = "JSON with sentences in the reader's language"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Stored JSON to values and sentences."""
        return unpack(super().from_db_value(value, expression, connection))

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """Values and sentences to stored JSON."""
        return super().get_db_prep_value(pack(value), connection, prepared)
