"""Text on lines of a width."""

from __future__ import annotations

from rich.text import Text


def wrapped(text: Text, columns: int) -> list[Text]:
    """Lines of at most `columns`, cut behind a space where there is one."""
    lines, rest = [], text
    while rest.cell_len > columns:
        head = rest.copy()
        head.truncate(columns, overflow="crop")
        cut = head.plain.rfind(" ") + 1 or len(head.plain.rstrip()) or 1
        lines.append(rest[:cut])
        rest = rest[cut:]
    return [*lines, rest] if rest else lines
