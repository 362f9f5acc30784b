"""Branches from the command line: `-p "text"`, `-p name="text"`, `--prompts FILE.yaml|.jsonl`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from swarmkv.cli.files import Kind, read_file
from swarmkv.protocol.errors import InvalidBranch

Branch = str | tuple[str, str] | Mapping[str, Any]
_QUOTED = re.compile(r"'(?!<)[^' ]*\w[^']*'")  # names that YAML took from a prompt, such as that of an alias
_SHAPE = 'Each branch is a text, or {"name": ..., "prompt": ..., "sampling": {...}}.'


def parse_prompt(value: str) -> Branch:
    """The branch of one -p option.

    What stands before the first `=` is its name if it holds no white space: `Is a = b?` is a text as it
    stands. An `=` in front makes everything behind it text, whatever it holds.
    """
    name, equals, prompt = value.partition("=")
    if not equals or any(char.isspace() for char in name):
        return value
    return (name, prompt) if name else prompt


def read_prompts(path: Path, max_bytes: int) -> list[Branch]:
    """The branches of a prompts file, in its order; raises InvalidBranch naming the place.

    YAML holds a list of branches, alone or under the key `branches`; JSON Lines one branch per line.
    """
    text = _read(path, max_bytes)
    if path.suffix in (".jsonl", ".ndjson"):
        return _from_json_lines(path, text)
    if path.suffix in (".yaml", ".yml", ".json"):
        return _from_yaml(path, text)
    raise InvalidBranch(
        f"{path} is neither .yaml nor .jsonl.", hint="The ending of a prompts file says how it is read."
    )


def _read(path: Path, max_bytes: int) -> str:
    data = read_file(path, Kind("prompts file", max_bytes, "SWARMKV_MAX_DOCUMENT_BYTES", InvalidBranch))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidBranch(
            f"{path} is not UTF-8: byte 0x{exc.object[exc.start]:02x} at offset {exc.start:,}."
        ) from exc


def _from_json_lines(path: Path, text: str) -> list[Branch]:
    branches: list[Branch] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            branches.append(_branch(_parsed(json.loads, line, place), place))
    return _not_empty(path, branches)


def _from_yaml(path: Path, text: str) -> list[Branch]:
    value = _parsed(yaml.safe_load, text, str(path))
    if isinstance(value, dict) and set(value) == {"branches"}:
        value = value["branches"]
    if not isinstance(value, list):
        raise InvalidBranch(f"{path} holds no list of branches.", hint=_SHAPE)
    return _not_empty(path, [_branch(item, f"{path}, branch {number}") for number, item in enumerate(value, 1)])


def _parsed(parse: Callable[[str], Any], text: str, place: str) -> Any:
    try:
        return parse(text)
    except (ValueError, RecursionError, yaml.YAMLError) as exc:
        raise InvalidBranch(f"{place} cannot be parsed: {_reason(exc)}.") from exc


def _reason(exc: Exception) -> str:
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        mark = exc.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {_QUOTED.sub('…', exc.problem or '')}"
    return " ".join(str(exc).split())[:200] or type(exc).__name__


def _branch(value: Any, place: str) -> Branch:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("prompt"), str):
        return {str(key): item for key, item in value.items()}
    raise InvalidBranch(f"{place} has no prompt text.", hint=_SHAPE)


def _not_empty(path: Path, branches: list[Branch]) -> list[Branch]:
    if not branches:
        raise InvalidBranch(f"{path} holds no branches.", hint=_SHAPE)
    return branches
