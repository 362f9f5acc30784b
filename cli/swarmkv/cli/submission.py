"""What is enqueued: read from files, stdin and options, and checked as far as that needs no broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from swarmkv.cli.prompts import Branch
from swarmkv.cli.text import clean_line
from swarmkv.producer import Sampling
from swarmkv.protocol.errors import InvalidBranch, InvalidDocument, InvalidInput

_MAX_NAME_CHARS = 50  # of a file's name as a run's


@dataclass(frozen=True, slots=True)
class Submission:
    """What is enqueued, read and parsed."""

    document: bytes
    branches: list[Branch]
    sampling: Sampling
    model: str
    system: str | None
    template: str | None
    name: str | None
    deadline_s: float | None
    any_model: bool


def parse_sampling(given: dict[str, Any]) -> Sampling:
    """Sampling from options; raises InvalidBranch naming the option."""
    try:
        return Sampling(**given)
    except ValidationError as exc:
        first = exc.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise InvalidBranch(f"{option} {first.get('input')!r}: {first['msg']}.") from exc


def with_defaults(branch: Branch, sampling: Sampling) -> Branch:
    """A branch whose own sampling, if it names only some values, takes the others from the command line."""
    own = branch.get("sampling") if isinstance(branch, Mapping) else None
    if not isinstance(own, Mapping):
        return branch
    assert isinstance(branch, Mapping)
    return {**branch, "sampling": {**sampling.model_dump(), **own}}


def read_document(path: str, max_bytes: int) -> bytes:
    """The bytes of a file, or of stdin for `-`; no more than the limit is read. Raises InvalidDocument."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(max_bytes + 1)
            size_bytes = len(data)
        else:
            with Path(path).open("rb") as file:
                data = file.read(max_bytes + 1)
                size_bytes = max(len(data), os.fstat(file.fileno()).st_size)
    except OSError as exc:
        raise InvalidDocument(f"{path} cannot be read: {exc.strerror}.") from exc
    if len(data) > max_bytes:
        at_least = "at least " if path == "-" else ""
        raise InvalidDocument(
            f"The document has {at_least}{size_bytes:,} bytes; the limit is {max_bytes:,}.",
            hint="Shorten it, or raise SWARMKV_MAX_DOCUMENT_BYTES.",
        )
    return data


def read_text(path: Path) -> str:
    """The text of a small file; raises InvalidInput."""
    try:
        return path.read_bytes().decode()
    except OSError as exc:
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{path} is not UTF-8 at offset {exc.start:,}.") from exc


def name_of(path: str) -> str | None:
    """A run's name from its document's file; None for stdin."""
    return None if path == "-" else clean_line(Path(path).name)[:_MAX_NAME_CHARS] or None
