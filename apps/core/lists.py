"""List pages: strict filters, order and cursor from the address, chips of what is active, and CSV of the same set."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django_filters import FilterSet

from apps.core import pagination
from apps.core.api import filtered
from apps.core.errors import BadQuery

M = TypeVar("M", bound=Model)
PAGE_SIZE = 50
MAX_CSV_ROWS = 20_000
_DANGEROUS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Chip:
    """One active filter: its words and the address without it."""

    label: str
    value: str
    without: str


@dataclass(frozen=True)
class Listing(Generic[M]):
    """One page of a list and what its template needs besides.

    ``matching`` is every row that passes the filters, unsorted and uncut; ``values`` the filters in
    force by name; ``clear`` the address without any.
    """

    window: pagination.Window[M]
    matching: QuerySet[M]
    total: int
    sort: str
    values: dict[str, list[str]]
    chips: list[Chip]
    clear: str

    @property
    def rows(self) -> list[M]:
        """The rows of this page."""
        return self.window.rows

    @property
    def is_first(self) -> bool:
        """Nothing comes before this page."""
        return self.window.previous is None


def filtered_rows(
    request: HttpRequest,
    rows: QuerySet[M],
    filter_class: type[FilterSet],
    known: Iterable[str] = (),
    labels: Mapping[str, Any] | None = None,
) -> tuple[QuerySet[M], dict[str, list[str]]]:
    """Apply a FilterSet to the address strictly. Raises BadQuery naming an unknown parameter or value."""
    names = {*filter_class.base_filters, *known}
    unknown = sorted(set(request.GET) - names)
    if unknown:
        raise BadQuery(
            _("unknown query parameter %(unknown)s; known here: %(known)s")
            % {"unknown": ", ".join(unknown), "known": ", ".join(sorted(names))}
        )
    return filtered(filter_class, request.GET, rows, request=request, labels=labels or {})


def listing(
    request: HttpRequest,
    rows: QuerySet[M],
    filter_class: type[FilterSet],
    *,
    sorts: Mapping[str, str],
    labels: Mapping[str, Any],
    words: Mapping[str, Callable[[str], str]] | None = None,
    known: Sequence[str] = (),
    limit: int = PAGE_SIZE,
) -> Listing[M]:
    """One page of ``rows`` as the address asks for it; two queries.

    ``sorts`` maps the names ``?sort=`` takes to non-null columns, the first is the default. ``labels``
    names the filters for chips, ``words`` turns a filter's values into words, ``known`` lists
    further parameters the page reads itself. Raises BadQuery.
    """
    matching, values = filtered_rows(request, rows, filter_class, ("sort", "cursor", *known), labels)
    sort = request.GET.get("sort") or next(iter(sorts))
    if sort not in sorts:
        raise BadQuery(_("sort: %(sort)s is not one of %(known)s") % {"sort": sort, "known": ", ".join(sorts)})
    column = sorts[sort]
    order = [column, "-id" if column.startswith("-") else "id"]
    window = pagination.window(
        matching,
        order=order,
        limit=limit,
        cursor=request.GET.get("cursor"),
        digest=pagination.list_digest(request.path, values, order),
    )
    return Listing(
        window,
        matching,
        matching.count(),
        sort,
        values,
        _chips(request, values, labels, words or {}),
        _bare(request, values),
    )


def _bare(request: HttpRequest, values: Mapping[str, list[str]]) -> str:
    query = request.GET.copy()
    for name in (*values, "cursor"):
        query.pop(name, None)
    return f"{request.path}?{query.urlencode()}" if query else request.path


def _chips(
    request: HttpRequest,
    values: Mapping[str, list[str]],
    labels: Mapping[str, Any],
    words: Mapping[str, Callable[[str], str]],
) -> list[Chip]:
    chips = []
    for name, found in values.items():
        parts = [part.strip() for text in found for part in text.split(",") if part.strip()]
        for part in parts:
            query = request.GET.copy()
            query.pop("cursor", None)
            rest = [p for p in parts if p != part]
            if rest:
                query.setlist(name, [",".join(rest)])
            else:
                query.pop(name, None)
            shown = words[name](part) if name in words else part
            text = query.urlencode()
            chips.append(Chip(str(labels.get(name, name)), shown, f"{request.path}?{text}" if text else request.path))
    return chips


def guarded(value: Any) -> str:
    """A cell that a spreadsheet will not run: text that starts like a formula gets an apostrophe before it."""
    text = "" if value is None else str(value)
    if isinstance(value, str) and text.startswith(_DANGEROUS):
        return f"'{text}"
    return text


def csv_answer(name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> HttpResponse:
    """A CSV file of at most ``MAX_CSV_ROWS`` rows; where it was cut, its last line says so."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    for number, row in enumerate(rows):
        if number >= MAX_CSV_ROWS:
            writer.writerow([f"cut after {MAX_CSV_ROWS} rows: narrow the filters or use the API"])
            break
        writer.writerow([guarded(value) for value in row])
    response = HttpResponse(out.getvalue(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    response["X-Content-Type-Options"] = "nosniff"
    return response
