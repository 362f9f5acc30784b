"""Columns of a table: which of them fit a width, how rows are put in order, and one row as a line.

A column is data: its title, how it reads a row, how wide it is. `rank` says who goes first when there is no room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.text import Text

Row = TypeVar("Row")
Cell = str | Text
_GAP = 1  # columns between two cells
_LEAST_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """`width` 0: it takes what the others leave, and would like `least` at least.

    `rank` 0 is always shown; the highest is left out first.
    `key` is what rows are sorted by; None sorts last in either direction.
    """

    title: str
    cell: Callable[[Row], Cell]
    key: Callable[[Row], Any]
    width: int = 0
    rank: int = 0
    right: bool = False
    least: int = _LEAST_COLUMNS
    descending: bool = False  # what a first look at this column is for: the largest


@dataclass(frozen=True, slots=True)
class Fitted(Generic[Row]):
    """The columns that are shown, each with its width."""

    columns: tuple[Column[Row], ...]
    widths: tuple[int, ...]


def fit(columns: Sequence[Column[Row]], width: int) -> Fitted[Row]:
    """As many columns as fit `width`, the least important ones left out."""
    shown = list(columns)
    while len(shown) > 1 and _needed(shown) > width:
        worst = max(shown, key=lambda column: column.rank)
        if worst.rank == 0:
            break
        shown.remove(worst)
    spare = width - sum(column.width for column in shown) - _GAP * (len(shown) - 1)
    widths = [column.width or max(1, spare) for column in shown]
    return Fitted(tuple(shown), tuple(widths))


def ordered(rows: Sequence[Row], column: Column[Row], *, descending: bool) -> list[Row]:
    """The rows by this column; equal ones stay as they are."""
    known = [row for row in rows if column.key(row) is not None]
    unknown = [row for row in rows if column.key(row) is None]
    return sorted(known, key=column.key, reverse=descending) + unknown


def title_line(fitted: Fitted[Row], sorted_by: str, *, descending: bool) -> Text:
    """The titles, with a sign on the one that decides the order."""
    cells: list[Cell] = []
    for column, width in zip(fitted.columns, fitted.widths, strict=True):
        sign = "" if column.title != sorted_by else "▼" if descending else "▲"
        cells.append(column.title[: max(0, width - len(sign))] + sign)
    return _line(cells, fitted)


def row_line(row: Row, fitted: Fitted[Row]) -> Text:
    """One row; what is too long for its column ends in an ellipsis."""
    return _line([column.cell(row) for column in fitted.columns], fitted)


def _needed(columns: Sequence[Column[Row]]) -> int:
    return sum(column.width or column.least for column in columns) + _GAP * (len(columns) - 1)


def _line(cells: Sequence[Cell], fitted: Fitted[Row]) -> Text:
    line = Text(no_wrap=True)
    for index, (cell, column, width) in enumerate(zip(cells, fitted.columns, fitted.widths, strict=True)):
        if index:
            line.append(" " * _GAP)
        line.append_text(_aligned(cell, width, right=column.right))
    return line


def _aligned(cell: Cell, width: int, *, right: bool) -> Text:
    text = cell.copy() if isinstance(cell, Text) else Text(cell)
    text.truncate(width, overflow="ellipsis")
    if right:
        text.pad_left(width - text.cell_len)
    else:
        text.pad_right(width - text.cell_len)
    return text
