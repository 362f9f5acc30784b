"""`swarmkv workers`: lists them; `pause`, `resume` and `drain` tell them something, and print what they answer."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from typing import Annotated, Any

import typer

from swarmkv.cli import exits, output
from swarmkv.cli.client import open_producer
from swarmkv.cli.options import Json, finite
from swarmkv.cli.workers import workers
from swarmkv.producer import Producer
from swarmkv.protocol.commands import MAX_ASKER_CHARS, MAX_GRACE_S, Answer, Command
from swarmkv.protocol.errors import WorkerNotFound
from swarmkv.protocol.ledger.commands import DEFAULT_TIMEOUT_S, ROLES

_MIN_PREFIX_CHARS = 4

app = typer.Typer(help="List the workers that are alive; pause, resume or drain them.", invoke_without_command=True)
Worker = Annotated[
    str,
    typer.Argument(metavar="ID", help="A worker's id, or its unambiguous beginning; prefill, branch: all of them."),
]
AnswerWithin = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", callback=finite, help="Longest wait for the answer."),
]
Grace = Annotated[
    float | None,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        max=MAX_GRACE_S,
        callback=finite,
        help="Time for its jobs to end. [default: the worker's SWARMKV_GRACE_S]",
    ),
]


@app.callback()
def listing(context: typer.Context, as_json: Json = False) -> None:
    """List the workers that are alive (exit code 5 when none is); pause, resume or drain them."""
    if context.invoked_subcommand is None:
        workers(as_json)


@app.command("pause")
def pause(worker: Worker, timeout_s: AnswerWithin = DEFAULT_TIMEOUT_S, as_json: Json = False) -> None:
    """Let a worker take no more jobs; it goes on with those it has. A paused one that dies comes back working."""
    _tell(worker, Command(kind="pause", by=asker()), timeout_s, as_json)


@app.command("resume")
def resume(worker: Worker, timeout_s: AnswerWithin = DEFAULT_TIMEOUT_S, as_json: Json = False) -> None:
    """Let a paused worker take jobs again."""
    _tell(worker, Command(kind="resume", by=asker()), timeout_s, as_json)


@app.command("drain")
def drain(
    worker: Worker,
    grace_s: Grace = None,
    timeout_s: AnswerWithin = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Let a worker finish what it has, hand back what takes too long, and end; `up` does not start it again."""
    _tell(worker, Command(kind="drain", by=asker(), grace_s=grace_s), timeout_s, as_json)


def asker() -> str:
    """Who runs this command, for the record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:MAX_ASKER_CHARS]


def print_answer(answer: Answer, as_json: bool) -> None:
    """What was answered; raises CommandRefused when it was a no."""
    answer.check()
    if as_json:
        output.print_json(answer_document(answer))
    else:
        output.note(answer.message)


def answer_document(answer: Answer) -> dict[str, Any]:
    """An answer as JSON: `workers` has one entry for each that answered."""
    parts = answer.parts or (answer,)
    return {
        "message": answer.message,
        "workers": [part.model_dump(include={"worker", "ok", "message", "code"}) for part in parts],
    }


def _tell(worker: str, command: Command, timeout_s: float, as_json: bool) -> None:
    print_answer(asyncio.run(_told(worker, command, timeout_s)), as_json)


async def _told(worker: str, command: Command, timeout_s: float) -> Answer:
    async with open_producer() as producer:
        return await producer.tell(await _found(producer, worker), command, timeout_s=timeout_s)


async def _found(producer: Producer, worker: str) -> str:
    """The role, or the one id that begins so. Raises WorkerNotFound, UsageFault."""
    if worker in ROLES:
        return worker
    ids = [live.info.id for live in await producer.workers()]
    found = [name for name in ids if name == worker] or [name for name in ids if name.startswith(worker)]
    if not found:
        raise WorkerNotFound(f"There is no live worker {worker!r}.")
    if len(found) > 1 or len(worker) < _MIN_PREFIX_CHARS:
        raise exits.UsageFault(f"{len(found)} workers begin with {worker!r}.", hint="Give more of the id.")
    return found[0]
