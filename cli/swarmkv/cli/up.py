"""`swarmkv up`: a broker, if none is given, and workers; all of them end with it."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from swarmkv.cli import broker, exits, output
from swarmkv.cli.fleet import WorkerPlan, wait_ready
from swarmkv.cli.interrupt import Interrupted, run_interruptible
from swarmkv.cli.logs import Say, notes_as_records, set_up_logs
from swarmkv.cli.models import ModelChoice, parse_models
from swarmkv.cli.options import LoadedModels, LogFormatOption
from swarmkv.cli.supervise import Supervisor
from swarmkv.producer import Producer
from swarmkv.protocol.broker import shown
from swarmkv.protocol.errors import ConfigError
from swarmkv.protocol.place import socket_url, state_dir, user_place
from swarmkv.protocol.settings import Settings, load_settings
from swarmkv.workers.models import resolve_model

Workers = Annotated[int, typer.Option(min=0, max=64)]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the command runs, and the directory it logs to."""

    plan: WorkerPlan
    settings: Settings
    log_dir: Path

    @property
    def as_json(self) -> bool:
        return self.settings.log_format == "json"

    @property
    def say(self) -> Say:
        return notes_as_records if self.as_json else output.note


def up(
    model: LoadedModels = None,
    prefill_workers: Workers = 1,
    branch_workers: Workers = 1,
    one_process: Annotated[
        bool, typer.Option("--one-process", help="One worker for both roles: for a GPU or a small box.")
    ] = False,
    slots: Annotated[int | None, typer.Option(help="Branches that a worker decodes at once.")] = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run a broker and workers until Ctrl-C.

    With SWARMKV_REDIS_URL set, that Redis is used and no broker is run.
    """
    settings = load_settings(slots=slots, log_format=log_format)
    models = parse_models(model or [settings.model])
    choices = tuple(ModelChoice(c.alias, str(resolve_model(c.ref))) for c in models)
    counts = (0, 0, 1) if one_process else (prefill_workers, branch_workers, 0)
    if not any(counts):
        raise ConfigError("No workers are asked for.", hint="Raise --prefill-workers or --branch-workers.")
    options = (
        "--verbose",
        "--log-format",
        settings.log_format,
        *(("--slots", str(slots)) if slots is not None else ()),
    )
    log_dir = state_dir()
    broker.make_private(log_dir)
    parts = Parts(WorkerPlan(choices, *counts, options=options), settings, log_dir)
    if parts.as_json:
        set_up_logs(as_json=True, verbose=False)
    try:
        run_interruptible(_run(parts), lambda: _say_stopping(parts.say))
    except Interrupted:
        parts.say("stopped", style="dim")
    raise typer.Exit(exits.DONE)


def _say_stopping(say: Say) -> None:
    say("stopping  work is finished or handed back; Ctrl-C again ends it at once", style="dim")


async def _run(parts: Parts) -> None:
    started = time.monotonic()
    with contextlib.ExitStack() as claims:
        log = claim_log(parts.log_dir, claims)
        async with Supervisor(log, notice=parts.say, log_as_json=parts.as_json) as supervisor:
            url = parts.settings.redis_url or await _broker(supervisor, claims, parts.say)
            names = await _workers(parts, supervisor, url)
            parts.say(f"workers   {', '.join(names)} on {shown(url)}; log {log}")
            async with Producer(url, parts.settings) as producer:
                await supervisor.during(wait_ready(producer, supervisor, names))
            parts.say(f"ready     in {time.monotonic() - started:.1f} s; Ctrl-C stops all", style="green")
            parts.say('try       swarmkv enqueue FILE -p "…" --follow', style="dim")
            await supervisor.watch()


def claim_log(directory: Path, claims: contextlib.ExitStack) -> Path:
    """up.log, or up-2.log and so on while other processes of `up` write to those before; until `claims` closes.

    A lock beside the log tells, for the log itself is replaced when it grows.
    """
    for number in itertools.count(1):
        log = directory / ("up.log" if number == 1 else f"up-{number}.log")
        lock = os.open(log.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        claims.callback(os.close, lock)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return log
    raise AssertionError


async def _workers(parts: Parts, supervisor: Supervisor, url: str) -> list[str]:
    """Start the workers, once Redis is known to answer; their names."""
    async with Producer(url, parts.settings) as producer:
        if others := len(await producer.workers()):
            who = "1 worker is" if others == 1 else f"{others} workers are"
            parts.say(f"workers   {who} there already, from elsewhere; these come beside", style="yellow")
    # The URL travels by environment: other users of the machine can read the arguments of a process.
    programs = parts.plan.programs(parts.settings, {"SWARMKV_REDIS_URL": url})
    for program in programs:
        await supervisor.start(program)
    return [program.name for program in programs]


async def _broker(supervisor: Supervisor, claims: contextlib.ExitStack, say: Say) -> str:
    """The URL of the embedded broker: the one that runs already, or one started here.

    `claims` keeps the lock on its data, which a restarted broker needs again.
    """
    place = user_place()
    claim = await broker.claim(place)
    if isinstance(claim, Path):
        say(f"broker    runs already on {claim}; it is used, and left running")
        await broker.wait_live(claim)
        return socket_url(claim)
    claims.callback(claim.close)
    await supervisor.start(claim.program())
    await supervisor.during(broker.wait_live(place.socket))
    say(f"broker    on {place.socket}; data in {place.data_dir}")
    return place.url
