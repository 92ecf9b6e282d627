"""Strict filters shared by pages and API: a value that is not one of the choices is an error, in lists too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import django_filters
from django import forms
from django.utils.translation import gettext as _

from apps.core.actors import actor_of
from apps.core.errors import BadQuery

#: Code of the error for a value that is not one of the choices.
UNKNOWN_CHOICE = "unknown-choice"


class ChoicesField(forms.Field):
    """``a,b`` or repeated parameters, each of which must be one of the choices."""

    def __init__(self, *, values: Iterable[Any], **kwargs: Any) -> None:
        # Each is a value, or a pair of value and the word that pages show for it.
        self.words: dict[str, Any] = {}
        for value in values:
            code, word = (value, value) if isinstance(value, str) else value
            self.words[str(code)] = word
        super().__init__(**kwargs)

    @property
    def values(self) -> tuple[str, ...]:
        """What it takes."""
        return tuple(self.words)

    def to_python(self, value: Any) -> list[str]:
        """The parts, checked. Raises ValidationError naming the bad one and the good ones."""
        found: list[str] = []
        for text in value or []:
            found += [part.strip() for part in str(text).split(",") if part.strip()]
        for part in found:
            if part not in self.values:
                raise forms.ValidationError(
                    _("%(value)s is not one of %(known)s"),
                    code=UNKNOWN_CHOICE,
                    params={"value": repr(part), "known": ", ".join(self.values)},
                )
        return found


class _ManyWidget(forms.SelectMultiple):
    """Reads every repetition of a parameter; prints nothing by itself."""


class ChoicesFilter(django_filters.Filter):  # type: ignore[misc]
    """``?phase=RUNNING,FAILED``: rows whose column is one of these."""

    field_class = ChoicesField

    def __init__(self, field_name: str, *, values: Iterable[Any], **kwargs: Any) -> None:
        super().__init__(field_name=field_name, values=list(values), widget=_ManyWidget, **kwargs)

    def filter(self, qs: Any, value: Any) -> Any:
        """Narrow, or nothing when no value was given."""
        return qs.filter(**{f"{self.field_name}__in": value}) if value else qs


class KnownFilter(django_filters.CharFilter):  # type: ignore[misc]
    """``?team=nlp``: rows of one thing by its name; a name that the asker may not see is a BadQuery, not an empty list.

    ``known`` gives the things an actor may see, ``column`` is their name's.
    """

    def __init__(self, field_name: str, *, known: Callable[[Any], Any], column: str, **kwargs: Any) -> None:
        super().__init__(field_name=field_name, **kwargs)
        self.known = known
        self.column = column

    def filter(self, qs: Any, value: Any) -> Any:
        """Narrow, or nothing for an empty name. Raises BadQuery."""
        if not value:
            return qs
        if not self.known(actor_of(self.parent.request)).filter(**{self.column: value}).exists():
            name = next((n for n, f in self.parent.filters.items() if f is self), self.field_name)
            raise BadQuery(_("%(name)s: there is no %(value)s that you may see") % {"name": name, "value": repr(value)})
        return super().filter(qs, value)


class TextFilter(django_filters.CharFilter):  # type: ignore[misc]
    """``?q=``: any of several columns contains the text, case ignored."""

    def __init__(self, *columns: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.columns = columns

    def filter(self, qs: Any, value: Any) -> Any:
        """Narrow, or nothing for an empty text."""
        if not value:
            return qs
        from django.db.models import Q

        query = Q()
        for column in self.columns:
            query |= Q(**{f"{column}__icontains": value})
        return qs.filter(query)
