"""Numbers in as few columns as they can be read in."""

from __future__ import annotations

UNKNOWN = "-"
_AGES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def age(value_s: float | None) -> str:
    """A time that has passed: `4.2 s`, `38 s`, `12 min`, `3.5 h`, `2 d`."""
    if value_s is None:
        return UNKNOWN
    for unit_s, name in _AGES:
        if value_s >= unit_s:
            return f"{_short(value_s / unit_s)} {name}"
    return f"{_short(max(0.0, value_s))} s"


def count(value: int | None) -> str:
    """A count with its thousands set apart."""
    return UNKNOWN if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """So many in a second, without the unit."""
    return UNKNOWN if value is None else _short(value) if value < 1_000 else f"{value:,.0f}"


def size(value: int | None) -> str:
    """Bytes in the largest unit that leaves a number from 1 on: `18.7 MiB`."""
    if value is None:
        return UNKNOWN
    for unit, name in _SIZES:
        if value >= unit:
            return f"{_short(value / unit)} {name}"
    return f"{value} B"


def share(value: float | None) -> str:
    """A share of 1 as a percentage."""
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def of(part: int | None, whole: int) -> str:
    """`3/16`; unknown when there is no whole."""
    return UNKNOWN if part is None or not whole else f"{part:,}/{whole:,}"


def bar(value: float, width: int) -> str:
    """A share of 1 as a bar of `width` columns: something shows as something, and only all is full."""
    full = int(min(1.0, max(0.0, value)) * width)
    full = max(full, 1) if value > 0 else full
    return "█" * full + "░" * (width - full)


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"
