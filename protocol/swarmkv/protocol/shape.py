"""What msgpack bytes may look like before anything is made of them.

msgpack makes room for what a length announces, and nests up to 1,024 deep: a short message can so ask for
gigabytes. Here the headers are walked, nothing is allocated, and what is no plain data of sane size is refused:

    nested deeper than MAX_DEPTH      the deepest message of ours, an event with its result, has 5 levels
    more than MAX_ITEMS values        the end of a run of 100,000 branches has some 2,000,000
    lengths beyond the message        each announced value needs at least one byte of it
    extension types                   we use none, and they become objects
"""

from __future__ import annotations

MAX_DEPTH = 16
MAX_ITEMS = 4_000_000

_EXTENSIONS = frozenset({0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8})
# First byte: how many bytes of length follow it; and of those that hold none, how many bytes the value has.
_SIZED_TEXT = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_SIZED_LISTS = {0xDC: 2, 0xDD: 4}
_SIZED_MAPS = {0xDE: 2, 0xDF: 4}
_NUMBERS = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_TEXT, _LIST, _MAP = 0, 1, 2


def _fixed(byte: int) -> tuple[int, int, int, int]:
    """What a first byte announces: bytes of length, bytes of its own, values that follow, levels that it opens."""
    if 0x80 <= byte <= 0x8F:
        return 0, 0, 2 * (byte & 0x0F), 1
    if 0x90 <= byte <= 0x9F:
        return 0, 0, byte & 0x0F, 1
    if 0xA0 <= byte <= 0xBF:
        return 0, byte & 0x1F, 0, 0
    return 0, _NUMBERS.get(byte, 0), 0, 0


_HEADERS: list[tuple[int, int, int, int] | None] = [_fixed(byte) for byte in range(256)]
for _table, _kind in ((_SIZED_TEXT, _TEXT), (_SIZED_LISTS, _LIST), (_SIZED_MAPS, _MAP)):
    for _byte, _length_bytes in _table.items():
        _HEADERS[_byte] = (_length_bytes, int(_kind == _TEXT), _kind, int(_kind != _TEXT))
for _byte in (0xC1, *_EXTENSIONS):
    _HEADERS[_byte] = None


def check_shape(data: bytes) -> None:
    """Raise ValueError, saying why, unless `data` is one msgpack value of plain data within the bounds."""
    position, end, num_items = 0, len(data), 0
    due = [1]  # values still to come, by level; the last is the innermost
    num_due = 1
    while due:
        if due[-1] == 0:
            due.pop()
            continue
        if num_due > end - position:
            raise ValueError("it announces more than it holds")
        header = _HEADERS[data[position]]
        if header is None:
            raise ValueError(_refusal(data[position]))
        length_bytes, own, values, levels = header
        position += 1
        if length_bytes:
            length = int.from_bytes(data[position : position + length_bytes], "big")
            position += length_bytes
            own, values = own * length, values * length
        position += own
        due[-1] -= 1
        num_items += 1
        num_due += values - 1
        if levels:
            if len(due) > MAX_DEPTH:
                raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
            due.append(values)
        if num_items + num_due > MAX_ITEMS:
            raise ValueError(f"it has more than {MAX_ITEMS:,} values")
    if position != end:
        raise ValueError("it goes on behind its end" if position < end else "it is cut off")


def _refusal(byte: int) -> str:
    return (
        "it holds an extension type" if byte in _EXTENSIONS else "it holds the byte 0xc1, which msgpack never uses"
    )
