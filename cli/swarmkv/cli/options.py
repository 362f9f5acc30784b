"""Options that several commands share."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from swarmkv.protocol.messages import Sampling


def finite(value: float | None) -> float | None:
    """The callback of an option in seconds or minutes; raises BadParameter for nan, inf, 0 and less."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"{value:g} is no length of time: give a number above 0")
    return value


class LogFormat(StrEnum):
    """How a process that stays logs."""

    TEXT = "text"
    JSON = "json"


LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help="json: one line for each change of state. [default: SWARMKV_LOG_FORMAT]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id that `enqueue` printed; see `swarmkv runs`.")]
LoadedModels = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="[ALIAS=]REF",
        help="A GGUF file, hf://owner/repo/file.gguf, or demo; once per alias. [default: SWARMKV_MODEL]",
    ),
]
LoadedModel = Annotated[
    str,
    typer.Option("--model", metavar="[ALIAS=]REF", help="A GGUF file, hf://owner/repo/file.gguf, or demo."),
]
ServedModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="[ALIAS=]REF",
        help="A GGUF file, hf://owner/repo/file.gguf, or demo. [default: SWARMKV_MODEL]",
    ),
]

# What is enqueued.
Document = Annotated[str, typer.Argument(metavar="FILE|-", help="The document, UTF-8; - reads stdin.")]
Prompt = Annotated[
    list[str] | None,
    typer.Option("-p", "--prompt", metavar="[NAME=]TEXT", help="A branch; give one -p per prompt."),
]
Prompts = Annotated[Path | None, typer.Option(metavar="FILE", help="Branches from a .yaml or .jsonl file.")]
Alias = Annotated[str, typer.Option(metavar="ALIAS", help="The alias of the model, as workers announce it.")]
RunName = Annotated[str | None, typer.Option(help="A name for the run; else the file's.")]
System = Annotated[str | None, typer.Option(help="System text, shared by all branches.")]
Template = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A template with {document} and then {prompt}.")
]
Deadline = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="The run ends by then. [default: SWARMKV_DEADLINE_S]")
]
AnyModel = Annotated[bool, typer.Option("--any-model", help="Accept an alias nobody announced.")]


def _sampling_default(name: str) -> str:
    return f"[default: {Sampling.model_fields[name].default:g}]"


# How answers are sampled.
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens of an answer. " + _sampling_default("max_tokens"))]
Temperature = Annotated[
    float | None, typer.Option(help="0 always takes the likeliest token. " + _sampling_default("temperature"))
]
TopK = Annotated[int | None, typer.Option(help="0: off. " + _sampling_default("top_k"))]
TopP = Annotated[float | None, typer.Option(help="1: off. " + _sampling_default("top_p"))]
MinP = Annotated[float | None, typer.Option(help="0: off. " + _sampling_default("min_p"))]
RepeatPenalty = Annotated[float | None, typer.Option(help="1: off. " + _sampling_default("repeat_penalty"))]
Seed = Annotated[int | None, typer.Option(help="Drawn for each branch if not given.")]
Stop = Annotated[list[str] | None, typer.Option(help="A text that ends an answer; repeatable.")]

# What happens then.
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the answers and print them.")]
Follow = Annotated[bool, typer.Option("--follow", help="Like --wait, and show progress.")]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", callback=finite, help="With --wait: give up waiting; the run goes on."),
]
