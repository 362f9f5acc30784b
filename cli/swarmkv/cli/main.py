"""The `swarmkv` command: its subcommands, and how it ends.

Whatever goes wrong becomes one or two lines on stderr and an exit code of `exits`; with --json, a document
{"error": ...} on stdout too. A traceback is a fault of ours, and is shown only for what nobody foresaw.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from swarmkv.cli import exits, output
from swarmkv.cli.demo import demo
from swarmkv.cli.doctor import doctor
from swarmkv.cli.enqueue import enqueue
from swarmkv.cli.runs import cancel, results, runs, show
from swarmkv.cli.snapshots import app as snapshots
from swarmkv.cli.up import up
from swarmkv.cli.workers import worker, workers
from swarmkv.protocol.errors import SwarmkvError

_EXIT_INTERRUPTED = 130  # as shells say it: 128 and the number of SIGINT

app = typer.Typer(
    name="swarmkv",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(up, enqueue, runs, show, results, cancel),
    *(worker, workers, doctor, demo),
)
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(snapshots, name="snapshots")


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"swarmkv {importlib.metadata.version('swarmkv')}\n")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Prefill a document once, fan out N prompts over its KV cache."""


def run(argv: list[str] | None = None) -> None:
    """Run the command line, always ending by SystemExit."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a substitute, not a UnicodeEncodeError.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(_run(arguments))


def _run(arguments: list[str]) -> int:
    try:
        app(arguments, prog_name="swarmkv", standalone_mode=True)
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except SwarmkvError as error:
        if "--json" in arguments:
            output.print_json(output.error_document(error))
        output.print_error(error)
        return exits.for_error(error)
    return exits.DONE
