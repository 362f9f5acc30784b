"""Broken inputs made of valid ones: flips, cuts, splices, repetitions, and lengths that lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

MAX_BYTES = 1 << 17
_EDGES = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0xFFFF,
    0x10000,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)
_OPENERS = (
    b"\x91",
    b"\x81\xa1a",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x00\x00\x10\x00",
    b"\xc7\xff\x05",
    b"\xdc\xff\xff",
)
_HEADERS = bytes((0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, *range(0xC0, 0xE0)))

Mutation = Callable[[bytearray, bytes, Random], None]


def mutated(seeds: Sequence[bytes], random: Random) -> bytes:
    """One of the seeds after one to six mutations, at most MAX_BYTES long."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.randint(1, 6)):
        random.choice(MUTATIONS)(data, random.choice(seeds), random)
        del data[MAX_BYTES:]
    return bytes(data)


def _place(data: bytearray, random: Random) -> int:
    """Anywhere, but often where headers are."""
    end = len(data) if random.random() < 0.5 else min(len(data), 256)
    return random.randint(0, max(0, end - 1))


def flip(data: bytearray, _: bytes, random: Random) -> None:
    if data:
        data[_place(data, random)] ^= 1 << random.randint(0, 7)


def overwrite(data: bytearray, _: bytes, random: Random) -> None:
    """A byte that msgpack reads as a header."""
    if data:
        data[_place(data, random)] = random.choice(_HEADERS)


def lie(data: bytearray, _: bytes, random: Random) -> None:
    """A length or count of 1 to 8 bytes becomes one at an edge, or the size of the input itself."""
    size_bytes = random.choice((1, 2, 4, 8))
    start = _place(data, random)
    value = random.choice((*_EDGES, len(data), len(data) - 1, len(data) + 1)) % (1 << 8 * size_bytes)
    data[start : start + size_bytes] = value.to_bytes(size_bytes, random.choice(("big", "little")))


def cut(data: bytearray, _: bytes, random: Random) -> None:
    start = _place(data, random)
    if random.random() < 0.5:
        del data[start:]
    else:
        del data[start : start + random.randint(1, 64)]


def splice(data: bytearray, other: bytes, random: Random) -> None:
    """Goes on with the rest of another seed."""
    if other:
        data[_place(data, random) :] = other[random.randint(0, len(other) - 1) :]


def repeat(data: bytearray, _: bytes, random: Random) -> None:
    start = _place(data, random)
    part = data[start : start + random.randint(1, 32)]
    data[start:start] = part * random.choice((1, 2, 16, 1024))


def nest(data: bytearray, _: bytes, random: Random) -> None:
    """Openers of lists, maps and extension types in front of a value."""
    start = _place(data, random)
    data[start:start] = random.choice(_OPENERS) * random.choice((1, 5, 17, 2000))


def insert(data: bytearray, _: bytes, random: Random) -> None:
    start = _place(data, random)
    data[start:start] = random.randbytes(random.randint(1, 16))


MUTATIONS: tuple[Mutation, ...] = (flip, flip, overwrite, lie, lie, cut, splice, repeat, nest, insert)
