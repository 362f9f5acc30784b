"""What is enqueued: read from files, stdin and options, and checked as far as that needs no broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from swarmkv.cli.files import STDIN, Kind, read_file, read_stdin
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
    document_name: str | None
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
    kind = Kind("document", max_bytes, "SWARMKV_MAX_DOCUMENT_BYTES", InvalidDocument)
    if path == STDIN:
        return read_stdin(kind)
    if not path:  # which Path would take for the directory that the user stands in
        raise InvalidDocument("The name of the document's file is empty.", hint="Name a file, or - for stdin.")
    return read_file(Path(path), kind)


def read_template(path: Path, max_bytes: int) -> str:
    """The text of a template; raises InvalidInput."""
    data = read_file(path, Kind("template", max_bytes, "SWARMKV_MAX_PROMPT_BYTES", InvalidInput))
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"The template {path} is not UTF-8 at offset {exc.start:,}.") from exc


def name_of(path: str) -> str | None:
    """A run's name from its document's file; None for stdin."""
    return None if path == STDIN else clean_line(Path(path).name)[:_MAX_NAME_CHARS] or None
