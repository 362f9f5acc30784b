"""Renders the jinja chat template of a GGUF as Hugging Face transformers would, in a sandbox.

The result depends on nothing but the arguments: a prefix is content-addressed, and workers that start on
different days must render the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# "Today", for templates that put the date into the system turn; Llama 3's own stand-in.
FIXED_DATE = datetime(2024, 7, 26, tzinfo=UTC)


class ChatError(Exception):
    """A template that cannot be compiled, or refuses these messages."""


class _Generation(Extension):
    """{% generation %} marks what to train on; here its content is all that matters."""

    tags = {"generation"}  # noqa: RUF012 (jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_chat(source: str, messages: Sequence[tuple[str, str]], tokens: Mapping[str, str]) -> str:
    """The text of `messages` (role, content) up to where the assistant speaks.

    `tokens` are the texts of special tokens by the template's names. Raises ChatError with the reason.
    """
    plain = [{"role": role, "content": content} for role, content in messages]
    try:
        return (
            _environment()
            .from_string(source)
            .render(
                messages=plain,
                add_generation_prompt=True,
                tools=None,
                documents=None,
                raise_exception=_raise_exception,
                strftime_now=FIXED_DATE.strftime,
                **tokens,
            )
        )
    except ChatError:
        raise
    # A template is a program: what it does wrong surfaces as any exception at all.
    except Exception as exc:
        kind = "it cannot be read" if isinstance(exc, TemplateSyntaxError) else type(exc).__name__
        raise ChatError(f"{kind}: {exc}") from exc


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> NoReturn:
    raise ChatError(message)
