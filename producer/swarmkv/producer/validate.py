"""What a producer refuses before anything reaches Redis, in words that say where and how to mend it."""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from pydantic import ValidationError

from swarmkv.protocol.errors import InvalidBranch, InvalidDocument, InvalidInput
from swarmkv.protocol.messages import MAX_DEADLINE_S, BranchSpec, Sampling
from swarmkv.protocol.settings import Settings
from swarmkv.protocol.template import split_template

BranchLike = BranchSpec | Mapping[str, object] | tuple[str, str] | str

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "Use 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit."


def checked_document(document: str | bytes, settings: Settings) -> bytes:
    """The document as UTF-8 bytes; raises InvalidDocument."""
    try:
        data = _utf8(document, "The document")
    except InvalidInput as exc:
        raise InvalidDocument(exc.message, hint=exc.hint) from exc
    if not data:
        raise InvalidDocument("The document is empty.", hint="Give at least one character of text.")
    if _is_blank(data.decode()):
        raise InvalidDocument(
            f"The document holds nothing but white space ({len(data):,} bytes).", hint="Give some text."
        )
    if len(data) > settings.max_document_bytes:
        raise InvalidDocument(
            f"The document has {len(data):,} bytes; the limit is {settings.max_document_bytes:,}.",
            hint="Shorten it, or raise SWARMKV_MAX_DOCUMENT_BYTES.",
        )
    return data


def checked_branches(
    branches: Sequence[BranchLike], sampling: Sampling | None, settings: Settings
) -> list[BranchSpec]:
    """The branches with names and seeds filled in; raises InvalidBranch."""
    if isinstance(branches, str | bytes):
        raise InvalidBranch("The branches are one string.", hint="Give a list of prompts.")
    if isinstance(branches, Mapping) or not isinstance(branches, Iterable):
        raise InvalidBranch(
            f"The branches are a {type(branches).__name__}.", hint="Give a list of prompts or (name, prompt) pairs."
        )
    branches = list(branches)
    if not branches:
        raise InvalidBranch("The run has no branches.", hint="Give at least one prompt.")
    if len(branches) > settings.max_branches:
        raise InvalidBranch(
            f"The run has {len(branches):,} branches; the limit is {settings.max_branches:,}.",
            hint="Split it into several runs, or raise SWARMKV_MAX_BRANCHES.",
        )
    default = sampling or Sampling()
    specs = [_branch(item, position, default) for position, item in enumerate(branches, 1)]
    _check_names(specs)
    for spec in specs:
        checked_prompt(spec.prompt, f"The prompt of branch {spec.name!r}", settings)
    return [_seeded(spec) for spec in specs]


def checked_prompt(prompt: str, what: str, settings: Settings) -> None:
    """Raises InvalidBranch for a prompt that is empty, too long or no text."""
    try:
        data = _utf8(prompt, what)
    except InvalidInput as exc:
        raise InvalidBranch(exc.message, hint=exc.hint) from exc
    if _is_blank(prompt):
        raise InvalidBranch(f"{what} is empty.", hint="Give it some text.")
    if len(data) > settings.max_prompt_bytes:
        raise InvalidBranch(
            f"{what} has {len(data):,} bytes; the limit is {settings.max_prompt_bytes:,}.",
            hint="Shorten it, or raise SWARMKV_MAX_PROMPT_BYTES.",
        )


def checked_text(text: str | None, what: str, max_bytes: int) -> str | None:
    """An optional text (system, template, run name) that is valid and bounded; raises InvalidInput."""
    if text is None:
        return None
    data = _utf8(text, what)
    if len(data) > max_bytes:
        raise InvalidInput(f"{what} has {len(data):,} bytes; the limit is {max_bytes:,}.", hint="Shorten it.")
    return text


def checked_name(name: str, what: str) -> str:
    """A name that is safe in keys, paths and terminals; raises InvalidBranch."""
    if not isinstance(name, str):
        raise InvalidBranch(f"{what} is a {type(name).__name__}.", hint=_NAME_RULE)
    if not _NAME.fullmatch(name):
        short = name if len(name) <= 40 else f"{name[:40]}… ({len(name)} characters)"
        raise InvalidBranch(f"{what} {short!r} is not allowed.", hint=_NAME_RULE)
    return name


def validation_message(exc: ValidationError) -> str:
    """The first fault of a pydantic error: which field, what is wrong, and a number's value; never a text."""
    first = exc.errors()[0]
    field = ".".join(str(part) for part in first["loc"])[:60] or "value"
    given = first.get("input")
    shown = repr(given) if isinstance(given, int | float) else f"({type(given).__name__})"
    return f"{field}={shown}: {first['msg']}"


def _branch(item: BranchLike, position: int, default: Sampling) -> BranchSpec:
    try:
        match item:
            case BranchSpec():
                return BranchSpec.model_validate(item.model_dump(warnings=False))  # it may have been made unchecked
            case str():
                return BranchSpec(name=f"branch-{position}", prompt=item, sampling=default)
            case (str() as name, str() as prompt):
                return BranchSpec(name=name, prompt=prompt, sampling=default)
            case Mapping():
                fields = {"name": f"branch-{position}", "sampling": default, **item}
                return BranchSpec.model_validate(fields)
    except ValidationError as exc:
        raise InvalidBranch(
            f"Branch {position} is not valid: {validation_message(exc)}.",
            hint="A branch has name, prompt and sampling.",
        ) from exc
    raise InvalidBranch(
        f"Branch {position} is a {type(item).__name__}.",
        hint="Give a prompt, a (name, prompt) pair, a mapping or a BranchSpec.",
    )


def _check_names(specs: Sequence[BranchSpec]) -> None:
    seen: dict[str, int] = {}
    for position, spec in enumerate(specs, 1):
        checked_name(spec.name, "The branch name")
        if spec.name in seen:
            raise InvalidBranch(
                f"Branches {seen[spec.name]} and {position} have the same name {spec.name!r}.",
                hint="Names must be unique within a run.",
            )
        seen[spec.name] = position


def _seeded(spec: BranchSpec) -> BranchSpec:
    if spec.sampling.seed is not None:
        return spec
    sampling = spec.sampling.model_copy(update={"seed": secrets.randbits(32)})
    return spec.model_copy(update={"sampling": sampling})


def _is_blank(text: str) -> bool:
    """Nothing that could be seen: white space of any kind, and characters of no width."""
    return all(char.isspace() or unicodedata.category(char) == "Cf" for char in text)


def checked_deadline_ms(deadline_s: float) -> int:
    """A deadline in milliseconds from now; raises InvalidInput."""
    if not isinstance(deadline_s, int | float) or not 0 < deadline_s <= MAX_DEADLINE_S:
        raise InvalidInput(
            f"The deadline of {deadline_s} s is out of range.", hint="Use more than 0 and at most a year."
        )
    return max(1, int(deadline_s * 1000))


def checked_template(template: str | None, max_bytes: int) -> str | None:
    """A template that has its two places, in order; raises InvalidInput."""
    checked_text(template, "The template", max_bytes)
    if template is not None:
        split_template(template)
    return template


def _utf8(text: str | bytes, what: str) -> bytes:
    if isinstance(text, bytes):
        try:
            text.decode()
        except UnicodeDecodeError as exc:
            raise InvalidInput(
                f"{what} is not UTF-8 text: byte 0x{text[exc.start]:02x} at offset {exc.start:,}.",
                hint="Convert it to UTF-8 text first; binary formats such as PDF must be extracted.",
            ) from exc
        data = text
    elif not isinstance(text, str):
        raise InvalidInput(f"{what} is a {type(text).__name__}.", hint="Give text.")
    else:
        try:
            data = text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidInput(
                f"{what} holds a lone surrogate (U+{ord(text[exc.start]):04X}) at character {exc.start:,}.",
                hint="It was decoded wrongly: read it again as UTF-8.",
            ) from exc
    if (nul := data.find(0)) >= 0:
        raise InvalidInput(f"{what} holds a NUL byte at offset {nul:,}.", hint="Give plain text.")
    return data
