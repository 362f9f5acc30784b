"""The `swarmkv` command: its subcommands, and how it ends.

Whatever goes wrong becomes one or two lines on stderr and an exit code of `exits`; with --json, a document
{"error": ...} on stdout too. What nobody foresaw is a fault of ours: its traceback goes to a file.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
import traceback
from collections.abc import Callable
from typing import Annotated

import typer

from swarmkv.cli import exits, output, streams
from swarmkv.cli.bench import app as bench
from swarmkv.cli.control import app as workers
from swarmkv.cli.dead import app as dead
from swarmkv.cli.demo import demo
from swarmkv.cli.doctor import doctor
from swarmkv.cli.enqueue import enqueue
from swarmkv.cli.health import health
from swarmkv.cli.model import app as model
from swarmkv.cli.monitor import monitor
from swarmkv.cli.runs import cancel, results, retry, runs, show
from swarmkv.cli.snapshots import app as snapshots
from swarmkv.cli.top import top
from swarmkv.cli.tune import tune
from swarmkv.cli.up import up
from swarmkv.cli.workers import worker
from swarmkv.protocol.errors import SwarmkvError
from swarmkv.protocol.place import state_dir

_EXIT_INTERRUPTED = 130  # as shells say it: 128 and the number of SIGINT
_EXIT_BROKEN_PIPE = 141  # of SIGPIPE

app = typer.Typer(
    name="swarmkv",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(up, enqueue, runs, show, results, cancel, retry),
    *(worker, top, monitor, health, doctor, tune, demo),
)
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(workers, name="workers")
app.add_typer(snapshots, name="snapshots")
app.add_typer(dead, name="dead")
app.add_typer(bench, name="bench")
app.add_typer(model, name="model")


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Prefill a document once, fan out N prompts over its KV cache."""
    if version:
        sys.stdout.write(f"swarmkv {importlib.metadata.version('swarmkv')}\n")
    elif context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


def run(argv: list[str] | None = None) -> None:
    """Run the command line, always ending by SystemExit."""
    arguments = sys.argv[1:] if argv is None else argv
    with streams.guarded():
        code = _run(arguments)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        code = app(arguments, prog_name="swarmkv", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except streams.OutputClosed:
        return _EXIT_BROKEN_PIPE
    except Exception as exc:
        return _report(_as_ours(exc), as_json=_wants_json(arguments))
    return code if isinstance(code, int) else exits.DONE


def _wants_json(arguments: list[str]) -> bool:
    """`bench` has a file for its document, and stdout for people."""
    return "--json" in arguments and arguments[0] != "bench"


def _report(error: SwarmkvError, *, as_json: bool) -> int:
    if as_json:
        with contextlib.suppress(streams.OutputFailed, streams.OutputClosed):
            output.print_json_line(output.error_document(error))
    with contextlib.suppress(streams.OutputClosed):
        output.print_error(error)
    return exits.for_error(error)


def _as_ours(exc: Exception) -> SwarmkvError:
    """Any exception as an error with a message for people."""
    if isinstance(exc, SwarmkvError):
        return exc
    # Typer's own, of a class that has no public name: told by what its documentation promises.
    if callable(describe := getattr(exc, "format_message", None)):
        path = getattr(getattr(exc, "ctx", None), "command_path", "swarmkv")
        return exits.UsageFault(describe(), hint=f"See: {path} --help")
    return _unforeseen(exc)


def _unforeseen(exc: Exception) -> SwarmkvError:
    """A fault of ours: its traceback goes to a file, for who is to mend it."""
    path = state_dir() / "traceback.txt"
    message = f"This should not have happened: {type(exc).__name__}: {exc}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text("".join(traceback.format_exception(exc)), encoding="utf-8", errors="replace")
    except OSError as why:
        return SwarmkvError(message, hint=f"Please report it; {path} cannot be written: {why.strerror}.")
    return SwarmkvError(message, hint=f"Please report it, with {path}.")
