"""Numbers and times as people read them."""

from __future__ import annotations

import datetime
import re

from markupsafe import Markup, escape

NOTHING = "\N{EN DASH}"
_UNITS = ("B", "KB", "MB", "GB", "TB")


def count(value: float | None) -> str:
    """12,345"""
    return NOTHING if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """4.2 MB; powers of 1,024."""
    if value is None:
        return NOTHING
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError


def duration(value_ms: float | None) -> str:
    """From milliseconds: 3 ms, 1.25 s, 4 min 05 s, 2 h 10 min, 3 d 4 h."""
    if value_ms is None:
        return NOTHING
    seconds = value_ms / 1000
    if seconds < 0.9995:
        return f"{value_ms:.1f} ms" if 0 < value_ms < 10 else f"{value_ms:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    return _long(round(seconds))


def age(value_ms: float | None) -> str:
    """From milliseconds, in one unit, so that it rarely changes: now, 12 s, 3 min, 5 h, 2 d."""
    if value_ms is None:
        return NOTHING
    seconds = max(0, int(value_ms / 1000))
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h")):
        if seconds < limit:
            return f"{seconds // unit} {name}"
    return f"{seconds // 86_400} d"


def moment(value_ms: int) -> str:
    """2026-11-30 06:58:41 UTC"""
    if not value_ms:
        return NOTHING
    return datetime.datetime.fromtimestamp(value_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def percent(value: float | None) -> str:
    """From a share of 1: 42 %, 0.4 %."""
    if value is None:
        return NOTHING
    return f"{value * 100:.0f} %" if value >= 0.1 or value == 0 else f"{value * 100:.1f} %"


def rate(value: float | None) -> str:
    """A number a second: 12.3, 287."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def words(state: str) -> str:
    """completed_with_errors: completed with errors"""
    return state.replace("_", " ")


def prose(text: str) -> Markup:
    """Escaped, and what stands between backticks as code."""
    parts = re.split(r"`([^`]+)`", text)
    pieces = (
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )
    return Markup("").join(pieces)


def _long(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if hours == 0:
        return f"{minutes} min {seconds % 60:02d} s"
    if days == 0:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{days} d {hours % 24} h"


FILTERS = {f.__name__: f for f in (count, size, duration, age, moment, percent, rate, words, prose)}
