"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id that `enqueue` printed; see `swarmkv runs`.")]
LoadedModels = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="[ALIAS=]REF",
        help="A GGUF file, hf://owner/repo/file.gguf, or demo; may be given once per alias.",
    ),
]
LoadedModel = Annotated[
    str,
    typer.Option("--model", metavar="[ALIAS=]REF", help="A GGUF file, hf://owner/repo/file.gguf, or demo."),
]
