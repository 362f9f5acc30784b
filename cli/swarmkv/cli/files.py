"""Reading what the user names, never more of it than may be: /dev/zero has no end."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from swarmkv.protocol.errors import InvalidInput

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a file is for, how large it may be, and how one that cannot be used is refused."""

    name: str
    max_bytes: int
    setting: str  # that raises the limit
    refusal: type[InvalidInput]


def read_file(path: Path, kind: Kind) -> bytes:
    """The bytes of a file; raises `kind.refusal`."""
    try:
        with path.open("rb") as file:
            return _read(file, kind)
    except OSError as exc:
        raise kind.refusal(f"The {kind.name} {path} cannot be read: {exc.strerror}.") from exc


def read_stdin(kind: Kind) -> bytes:
    """The bytes of stdin; raises `kind.refusal`."""
    try:
        return _read(sys.stdin.buffer, kind)
    except OSError as exc:
        raise kind.refusal(f"The {kind.name} on stdin cannot be read: {exc.strerror}.") from exc


def _read(file: BinaryIO, kind: Kind) -> bytes:
    data = file.read(kind.max_bytes + 1)
    if len(data) <= kind.max_bytes:
        return data
    status = os.fstat(file.fileno())
    size = f"{status.st_size:,}" if stat.S_ISREG(status.st_mode) else f"at least {len(data):,}"
    raise kind.refusal(
        f"The {kind.name} has {size} bytes; the limit is {kind.max_bytes:,}.",
        hint=f"Shorten it, or raise {kind.setting}.",
    )
