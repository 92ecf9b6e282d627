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
from apps.core.errors import BadQuery, Elsewhere

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
class ListSetup:
    """How a person has set up one list page: hidden columns by name, the view in force, and where their default is."""

    hidden: frozenset[str] = frozenset()
    view_name: str = ""
    default_address: str = ""


@dataclass(frozen=True)
class Column:
    """A column that may be hidden: its name, its words, its place in the table counted from 1."""

    name: str
    label: Any
    place: int
    is_hidden: bool


#: ``?view=``: which saved view an address belongs to; this one says "none, not even my default".
VIEW = "view"
NO_VIEW = "all"


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
    path: str
    query: str
    columns: list[Column]
    view_name: str

    @property
    def hidden(self) -> str:
        """The classes that hide columns of the table."""
        return " ".join(f"hide-{column.place}" for column in self.columns if column.is_hidden)

    @property
    def csv_most(self) -> int:
        """How many rows a CSV of this list holds where it cannot hold them all; 0 where it does."""
        return MAX_CSV_ROWS if self.total > MAX_CSV_ROWS else 0

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
    unknown = sorted(set(request.GET) - names - {VIEW})
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
    columns: Mapping[str, tuple[int, Any]] | None = None,
) -> Listing[M]:
    """One page of ``rows`` as the address asks for it; two queries.

    ``sorts`` maps the names ``?sort=`` takes to non-null columns, the first is the default. ``labels``
    names the filters for chips, ``words`` turns a filter's values into words, ``known`` lists
    further parameters the page reads itself, ``columns`` the columns that may be hidden as
    {name: (place in the table counted from 1, words)}. Raises BadQuery, and Elsewhere for a bare
    address where the person has a default view.
    """
    setup = setup_of(request)
    if not request.GET and setup.default_address and not getattr(request, "htmx", False):
        raise Elsewhere(setup.default_address)
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
        _chips(request, values, labels, words or {}, setup),
        _bare(request, values, setup),
        request.path,
        _query(request),
        [Column(name, label, place, name in setup.hidden) for name, (place, label) in (columns or {}).items()],
        setup.view_name,
    )


def setup_of(request: HttpRequest) -> ListSetup:
    """How the asker has set up this list; whoever keeps it puts its reader on the request."""
    read = getattr(request, "list_setup", None)
    return read(request) if read is not None else ListSetup()


def _query(request: HttpRequest) -> str:
    """Filters and order of the address, as a saved view keeps them."""
    query = request.GET.copy()
    for name in ("cursor", VIEW):
        query.pop(name, None)
    return query.urlencode()


def _address(path: str, query: str, setup: ListSetup) -> str:
    """The address of a query; a bare one would lead to the person's default view, so it says that none is wanted."""
    if not query and setup.default_address:
        return f"{path}?{VIEW}={NO_VIEW}"
    return f"{path}?{query}" if query else path


def _bare(request: HttpRequest, values: Mapping[str, list[str]], setup: ListSetup) -> str:
    query = request.GET.copy()
    for name in (*values, "cursor", VIEW):
        query.pop(name, None)
    return _address(request.path, query.urlencode(), setup)


def _chips(
    request: HttpRequest,
    values: Mapping[str, list[str]],
    labels: Mapping[str, Any],
    words: Mapping[str, Callable[[str], str]],
    setup: ListSetup,
) -> list[Chip]:
    chips = []
    for name, found in values.items():
        parts = [part.strip() for text in found for part in text.split(",") if part.strip()]
        for part in parts:
            query = request.GET.copy()
            query.pop("cursor", None)
            query.pop(VIEW, None)
            rest = [p for p in parts if p != part]
            if rest:
                query.setlist(name, [",".join(rest)])
            else:
                query.pop(name, None)
            shown = words[name](part) if name in words else part
            address = _address(request.path, query.urlencode(), setup)
            chips.append(Chip(str(labels.get(name, name)), shown, address))
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
