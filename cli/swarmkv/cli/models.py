"""The option --model: `[ALIAS=]REF`, where REF is a path, `hf://owner/repo/file.gguf` or `demo`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from swarmkv.protocol.errors import ConfigError

DEFAULT_ALIAS = "default"
DEMO = "demo"
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model under the name that producers know it by."""

    alias: str
    ref: str

    def __str__(self) -> str:
        return f"{self.alias}={self.ref}"


def parse_model(value: str) -> ModelChoice:
    """`value` of --model on a command that loads the model.

    What stands before the first `=` is the alias, unless it is part of a path; so `./a=b.gguf` is a path.
    Raises ConfigError.
    """
    alias, equals, ref = value.partition("=")
    if not equals or "/" in alias:
        alias, ref = DEFAULT_ALIAS, value
    if not alias or not ref:
        raise ConfigError(
            f"--model {value!r} names no {'model' if alias else 'alias'}.",
            hint="Write --model [ALIAS=]PATH, hf://owner/repo/file.gguf or demo.",
        )
    return ModelChoice(_checked(alias), ref)


def parse_models(values: list[str]) -> list[ModelChoice]:
    """Several --model options, one per alias; raises ConfigError when an alias is given twice."""
    choices = [parse_model(value) for value in values]
    aliases = [choice.alias for choice in choices]
    for alias in aliases:
        if aliases.count(alias) > 1:
            raise ConfigError(
                f"--model gives the alias {alias!r} {aliases.count(alias)} times.",
                hint="Name each model: --model legal=a.gguf --model code=b.gguf.",
            )
    return choices


def parse_alias(value: str) -> str:
    """`value` of --model on a command that only asks for a model.

    The option may be written as on `up`: of `legal=model.gguf` the alias counts, and a bare path, `hf://`
    or `demo` is what `up` announces as `default`. Raises ConfigError.
    """
    is_reference = not value or "/" in value or value.endswith(".gguf") or value == DEMO
    return parse_model(value).alias if is_reference or "=" in value else _checked(value)


def _checked(alias: str) -> str:
    if not _ALIAS.fullmatch(alias):
        raise ConfigError(
            f"--model: {alias!r} is no alias.",
            hint="An alias has up to 64 letters, digits and . _ -. A path that holds = needs a /: ./a=b.gguf.",
        )
    return alias
