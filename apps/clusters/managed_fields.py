"""Fields that forms of clusters and of their groups share: ids of AWS, one or several in a line."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

_PLAIN = {"spellcheck": "false", "autocomplete": "off"}


def words(text: str) -> list[str]:
    """What is separated by commas or blanks, one by one."""
    return [s for s in re.split(r"[\s,]+", text) if s]


class WordsField(forms.CharField):
    """Several ids or names, separated by commas or blanks; cleaned to a list."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", 1000)
        kwargs.setdefault("widget", forms.TextInput(attrs=_PLAIN))
        super().__init__(**kwargs)

    def clean(self, value: Any) -> Any:
        """The words."""
        return words(str(super().clean(value) or ""))

    def prepare_value(self, value: Any) -> Any:
        """A list as it is typed."""
        return ", ".join(value) if isinstance(value, list | tuple) else value


def text_field(label: Any, most: int, help_text: Any = "", required: bool = True, **attrs: str) -> forms.CharField:
    """A line of plain text, such as an id or an ARN; ``most`` characters."""
    widget = forms.TextInput(attrs={**_PLAIN, **attrs})
    return forms.CharField(label=label, max_length=most, help_text=help_text, required=required, widget=widget)


def subnets_field(help_text: Any) -> WordsField:
    """Subnets by their ids."""
    return WordsField(label=gettext_lazy("Subnets"), help_text=help_text)


def security_groups_field(required: bool = True) -> WordsField:
    """Security groups by their ids."""
    return WordsField(
        label=gettext_lazy("Security groups"),
        required=required,
        help_text=gettext_lazy("sg-…, more than one with commas; one must let its own members reach each other."),
    )
