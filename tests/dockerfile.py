"""Our rules for a Dockerfile: what a reader would have to look for, found by reading its instructions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

_EXEC_FORM = frozenset({"ENTRYPOINT", "CMD"})
_PINNED = re.compile(r".+:.*\d.*|.+@sha256:[0-9a-f]{64}")
_SECRET = re.compile(r"\b\w*(PASSWORD|SECRET|TOKEN|API_?KEY|CREDENTIAL)\w*", re.IGNORECASE)
_HOST = re.compile(r"\w+://|--(extra-)?index-url|--trusted-host", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continued lines joined by spaces."""

    line: int
    name: str
    value: str


def parse(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile, without comments."""
    found: list[Instruction] = []
    pending, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not (line.strip() or pending):
            continue
        start = start if pending else number
        pending += line.rstrip().removesuffix("\\").strip() + " "
        if not line.rstrip().endswith("\\"):
            name, _, value = pending.strip().partition(" ")
            found.append(Instruction(start, name.upper(), value.strip()))
            pending = ""
    return found


def problems(text: str) -> list[str]:
    """What breaks a rule, each with its line."""
    instructions = parse(text)
    found = [*_bases(instructions), *_user(instructions)]
    for item in instructions:
        found += [f"line {item.line}: {problem}" for problem in _of_instruction(item)]
    return found


def copied(text: str) -> list[str]:
    """The paths of the build's context that are copied."""
    items = (item.value.split() for item in parse(text) if item.name == "COPY" and "--from=" not in item.value)
    return [source for words in items for source in [word for word in words if not word.startswith("--")][:-1]]


def _bases(instructions: list[Instruction]) -> Iterator[str]:
    """Every stage stands on an earlier one, or on an image whose tag has a version."""
    head = takewhile(lambda item: item.name != "FROM", instructions)
    defaults = dict(item.value.partition("=")[::2] for item in head if item.name == "ARG")
    stages: set[str] = set()
    for item in (item for item in instructions if item.name == "FROM"):
        base, *rest = item.value.split()
        image = re.sub(r"\$\{?(\w+)\}?", lambda match: defaults.get(match[1], ""), base)
        if image not in stages and not _PINNED.fullmatch(image):
            yield f"line {item.line}: the base {image or base} has no version"
        if len(rest) == 2:
            stages.add(rest[1])


def _user(instructions: list[Instruction]) -> Iterator[str]:
    """The last stage ends as a user of a fixed number that is not root's."""
    last_stage = max((n for n, item in enumerate(instructions) if item.name == "FROM"), default=0)
    users = [item.value for item in instructions[last_stage:] if item.name == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        yield "the image runs as root, or as a user without a fixed number"


def _of_instruction(item: Instruction) -> Iterator[str]:
    if item.name == "ADD":
        yield "ADD fetches and unpacks: use COPY"
    if item.name in _EXEC_FORM and not _is_exec_form(item.value):
        yield f"{item.name} is in shell form: signals would not reach the process"
    if item.name in {"ENV", "ARG"} and _SECRET.search(item.value):
        yield f"{item.name} holds a secret: it stays in the image's history"
    if _HOST.search(item.value):
        yield "a host is named: where packages come from is the builder's business"
    if item.name == "RUN":
        yield from _of_run(item.value)


def _of_run(command: str) -> Iterator[str]:
    if "apt-get install" in command:
        wanted = ("apt-get update", "--no-install-recommends", "rm -rf /var/lib/apt/lists/*")
        yield from (f"apt-get install without {part}" for part in wanted if part not in command)
    for install in re.findall(r"pip install[^&|;]*", command):
        if "--require-hashes" not in install and "--no-index" not in install:
            yield "pip install without --require-hashes"
    if re.search(r"\bsudo\b|\bcurl\b|\bwget\b", command):
        yield "sudo, curl or wget"


def _is_exec_form(value: str) -> bool:
    try:
        return isinstance(json.loads(value), list)
    except ValueError:
        return False
