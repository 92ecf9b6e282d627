"""Filters and tags of every page: figures with their units, times, states, small charts, addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from django import template
from django.conf import settings
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from apps.core import clock, units

register = template.Library()
_ICON_NAME = re.compile(r"^[a-z0-9-]+$")

# --- figures -------------------------------------------------------------------------------------


@register.filter
def duration(seconds: float | timedelta | None) -> str:
    """Like ``2 h 14 min``."""
    return units.duration(seconds)


@register.filter
def minutes(value: int | None) -> str:
    """A number of minutes like ``2 h 14 min``."""
    return units.duration(None if value is None else value * 60)


@register.filter
def usd(amount: Decimal | None, places: int = 2) -> str:
    """Like ``$1,234.56``; ``{{ price|usd:4 }}`` for more places."""
    return units.usd(amount, places)


@register.filter
def gpu_hours(amount: Decimal | float | None) -> str:
    """Like ``128 GPU-h``."""
    return units.gpu_hours(amount)


@register.filter(name="bytes")
def binary_bytes(size: int | None) -> str:
    """Like ``1.5 GiB``."""
    return units.binary_bytes(size)


@register.filter
def mib(size_mib: int | None) -> str:
    """A number of MiB like ``64 GiB``."""
    return units.binary_bytes(None if size_mib is None else size_mib * 1024 * 1024)


@register.filter
def count(value: float | None) -> str:
    """Like ``12,400``."""
    return units.count(value)


@register.filter
def figure(amount: Decimal | float | None, places: int = 2) -> str:
    """A bare number with thousands separators and fixed places, for columns whose head names the unit."""
    return "–" if amount is None else f"{amount:,.{places}f}"


@register.filter
def percent_of(part: Any, whole: Any) -> int:
    """``part`` of ``whole`` as a whole number from 0 to 100; 0 without a whole."""
    if not whole or part is None:
        return 0
    return max(0, min(100, round(float(part) * 100 / float(whole))))


@register.filter
def get(mapping: Mapping[Any, Any], key: Any) -> Any:
    """The value of a key, or nothing."""
    return mapping.get(key)


# --- times ---------------------------------------------------------------------------------------


def _time(instant: datetime, kind: str, text: str) -> SafeString:
    """A ``<time>`` that the page's script keeps fresh and puts into the person's zone."""
    absolute = instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return format_html(
        '<time datetime="{}" title="{}" data-time="{}">{}</time>', clock.iso(instant), absolute, kind, text
    )


@register.simple_tag
def ago(instant: datetime | None) -> str:
    """``3 min ago`` with the absolute instant on hover; a dash for None; ``in 3 min`` for the future."""
    if instant is None:
        return "–"
    seconds = (clock.now() - instant).total_seconds()
    if seconds < 0:
        return _time(instant, "ago", _("in %(age)s") % {"age": units.duration(-seconds)})
    return _time(instant, "ago", _("%(age)s ago") % {"age": units.duration(seconds)})


@register.simple_tag
def elapsed(start: datetime | None, end: datetime | None = None) -> str:
    """How long from ``start`` to ``end``; without an end it runs on in the page. A dash without a start."""
    if start is None:
        return "–"
    if end is not None:
        return units.duration(end - start)
    return _time(start, "elapsed", units.duration(clock.now() - start))


@register.simple_tag
def instant(at: datetime | None) -> str:
    """``2026-11-29 12:03:11`` in the person's zone (UTC until the script has run); a dash for None."""
    if at is None:
        return "–"
    return _time(at, "instant", at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"))


@register.simple_tag
def stale(read_at: datetime | None, period_s: float = 5, source: str = "slurm") -> str:
    """``as of 12:03:11, from slurm`` once a live figure is older than three of its periods (at least 15 s)."""
    if read_at is None:
        return format_html('<span class="stale">{}</span>', _("not read yet from %(source)s") % {"source": source})
    if (clock.now() - read_at).total_seconds() <= max(3 * float(period_s), 15):
        return ""
    moment = _time(read_at, "clock", read_at.astimezone(UTC).strftime("%H:%M:%S"))
    words = _("as of %(time)s, from %(source)s")
    before, _mark, after = words.partition("%(time)s")
    return format_html('<span class="stale">{}{}{}</span>', before % {}, moment, after % {"source": source})


# --- states --------------------------------------------------------------------------------------

#: A drawing for each colour word, so that a state is told by shape too. 12 × 12.
_SHAPES: dict[str, str] = {
    "good": '<circle cx="6" cy="6" r="5"/><path class="cut" d="M3.6 6.2 5.3 7.9 8.5 4.4"/>',
    "busy": '<path d="M2.5 1.2v9.6L11 6z"/>',
    "warn": '<path d="M6 .8 11.6 11H.4z"/><path class="cut" d="M6 4.4v3M6 8.9v.6"/>',
    "bad": '<path d="M3.7.7h4.6l3 3v4.6l-3 3H3.7l-3-3V3.7z"/><path class="cut" d="m4.2 4.2 3.6 3.6m0-3.6L4.2 7.8"/>',
    "wait": '<circle class="ring" cx="6" cy="6" r="4.5"/><path class="ring" d="M6 3.4V6l1.7 1.2"/>',
    "off": '<circle class="ring" cx="6" cy="6" r="4.5"/><path class="ring" d="M3.8 6h4.4"/>',
}


def shape(colour: str) -> SafeString:
    """The drawing of a colour word: good, busy, warn, bad, wait or off."""
    word = colour if colour in _SHAPES else "off"
    body = mark_safe(_SHAPES[word])  # noqa: S308 - a constant of this module
    return format_html('<svg class="st-shape" viewBox="0 0 12 12" aria-hidden="true">{}</svg>', body)


@register.simple_tag
def status(value: str, colours: Mapping[str, str], label: str = "") -> SafeString:
    """Shape and word of a state: ``{% status job.phase colours.job %}``.

    ``colours`` is a COLOURS table of a ``states.py``; the word is the label of its member unless given.
    """
    word = label or next((str(getattr(key, "label", key)) for key in colours if key == value), str(value))
    colour = colours.get(value, "off")
    return format_html('<span class="st st-{}">{}{}</span>', colour, shape(colour), word)


@register.simple_tag
def mark(colour: str, label: str) -> SafeString:
    """Like ``status`` for something that is no state machine: a colour word and its own text."""
    word = colour if colour in _SHAPES else "off"
    return format_html('<span class="st st-{}">{}{}</span>', word, shape(word), label)


# --- small drawings ------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _icon_body(name: str) -> SafeString:
    path = Path(settings.ICONS_DIR) / f"{name}.svg"
    if not _ICON_NAME.match(name) or not path.is_file():
        return SafeString("")
    found = re.search(r"<svg[^>]*>(.*)</svg>", path.read_text(), re.DOTALL)
    return mark_safe(re.sub(r"\s+", " ", found[1]).strip() if found else "")  # noqa: S308 - a file of the locked package


@register.simple_tag
def icon(name: str) -> SafeString:
    """A Lucide icon, drawn in the page; decoration only, so the words beside it must say the same."""
    return format_html('<svg class="icon" viewBox="0 0 24 24" aria-hidden="true">{}</svg>', _icon_body(name))


@register.simple_tag
def copyable(text: str, shown: str = "") -> SafeString:
    """An identifier or path in monospace with a button that copies it."""
    return format_html(
        '<span class="copyable"><code>{}</code>'
        '<button type="button" class="copy" data-copy="{}" aria-label="{}">{}</button></span>',
        shown or text,
        text,
        _("Copy %(text)s") % {"text": text},
        icon("copy"),
    )


@register.simple_tag
def bar(value: Any, maximum: Any, label: str, colour: str = "") -> SafeString:
    """A ``<progress>`` with its label for readers; colour is empty or good, warn, bad."""
    whole = max(float(maximum or 0), 0.000001)
    part = max(0.0, min(float(value or 0), whole))
    return format_html(
        '<progress class="bar {}" value="{}" max="{}" aria-label="{}">{}%</progress>',
        colour,
        f"{part:.6g}",
        f"{whole:.6g}",
        label,
        round(part * 100 / whole),
    )


@register.simple_tag
def stack_bar(segments: Iterable[tuple[str, Any, str]], label: str) -> SafeString:
    """One bar of several parts: (class, amount, words), e.g. ``[("used", 24, "24 used"), …]``.

    Classes with a colour: used, held, free, down, good, busy, warn, bad, wait, off, s1, s2, s3.
    """
    parts = [(css, max(0.0, float(amount or 0)), words) for css, amount, words in segments]
    whole = sum(amount for _css, amount, _words in parts) or 1.0
    x = 0.0
    cells = []
    for css, amount, words in parts:
        width = amount * 100 / whole
        if width:
            cells.append((css, f"{x:.3f}", f"{max(0.0, width):.3f}", words))
        x += width
    drawn = format_html_join(
        "", '<rect class="seg-{}" x="{}" y="0" width="{}" height="8"><title>{}</title></rect>', cells
    )
    return format_html(
        '<svg class="stack-bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>',
        label,
        drawn,
    )


@register.simple_tag
def sparkline(values: Iterable[Any], label: str) -> SafeString:
    """A line of 120 × 28 over the values, oldest first, with its meaning in words."""
    numbers = [float(v) for v in values]
    if len(numbers) < 2:
        numbers = [*numbers, *([numbers[-1]] if numbers else [0.0, 0.0])]
    low, high = min(0.0, *numbers), max(numbers)
    span = (high - low) or 1.0
    step = 120 / (len(numbers) - 1)
    points = " ".join(f"{i * step:.1f},{26 - (v - low) * 24 / span:.1f}" for i, v in enumerate(numbers))
    return format_html(
        '<svg class="spark" viewBox="0 0 120 28" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<polygon points="0,28 {} 120,28"/><polyline points="{}"/></svg>',
        label,
        points,
        points,
    )


# --- addresses -----------------------------------------------------------------------------------


@register.simple_tag(takes_context=True)
def query_with(context: template.Context, **changes: Any) -> str:
    """``?`` with this page's query and the changes; None removes a parameter. A change drops the cursor."""
    query = context["request"].GET.copy()
    query.pop("cursor", None)
    for name, value in changes.items():
        if value is None or value == "":
            query.pop(name, None)
        else:
            query[name] = str(value)
    text = query.urlencode()
    return f"?{text}" if text else "?"


@register.inclusion_tag("parts/field.html")
def field(bound: Any, unit: str = "", wide: bool = False, oob: bool = False) -> dict[str, Any]:
    """A form field with its label, unit, help and problems; ``oob`` replaces the one in the page (htmx)."""
    return {"bound": bound, "unit": unit, "wide": wide, "oob": oob}


@register.filter
def bound_field(form: Any, name: str) -> Any:
    """The field of a form by a name that is known only when the page is drawn."""
    return form[name]
