"""`swarmkv demo`: the whole system on this machine, for one document, gone when it ends.

Broker and workers run in a private directory with a store of their own, so that nothing of a running
`swarmkv up` is touched.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from swarmkv.cli import broker, exits, live, output, render
from swarmkv.cli.fleet import WorkerPlan, wait_ready
from swarmkv.cli.interrupt import Interrupted, run_interruptible
from swarmkv.cli.models import DEMO, ModelChoice, parse_model
from swarmkv.cli.options import Json, LoadedModel
from swarmkv.cli.savings import Savings
from swarmkv.cli.supervise import Supervisor
from swarmkv.producer import Producer, RunReport, Sampling
from swarmkv.protocol.place import BrokerPlace
from swarmkv.protocol.settings import Settings, load_settings
from swarmkv.workers.models import resolve_model

# Greedy: the same words at every demonstration. A base model goes on to ask questions of its own.
_SAMPLING = Sampling(temperature=0.0, repeat_penalty=1.1, seed=0, stop=("\nQuestion:",))
_ABOUT_MODEL = "Gemma 3 270M, a base model: small enough to try anywhere, and often wrong."
_GRACE_S = 0.5  # nobody is there to finish an interrupted demonstration for
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a demonstration runs: a directory for its broker and its log, one for its snapshots."""

    directory: Path
    store: Path

    @property
    def log(self) -> Path:
        return self.directory / "demo.log"


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What is demonstrated; `quiet`: only the result is printed."""

    model: ModelChoice
    settings: Settings
    max_tokens: int
    quiet: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """The bundled document and its prompts."""

    document: bytes
    branches: tuple[tuple[str, str], ...]


def demo(
    model: LoadedModel = DEMO,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 48,
    as_json: Json = False,
) -> None:
    """Show it all: one document, eight reviewers, one prefill."""
    settings = load_settings()
    if not as_json:
        output.note(f"model     {parse_model(model).ref}")
    choice = ModelChoice("default", str(resolve_model(parse_model(model).ref)))
    job = Demonstration(choice, settings, max_tokens, quiet=as_json)
    try:
        with private_stage() as stage:
            report = run_interruptible(_demonstrate(job, stage), lambda: None)
    except Interrupted:
        output.note("Interrupted; everything that the demo started is gone.")
        raise typer.Exit(exits.UNFINISHED) from None
    if as_json:
        output.print_json(report.model_dump(mode="json"))
    else:
        present(output.stdout(), report, about=_ABOUT_MODEL if parse_model(model).ref == DEMO else "")
    raise typer.Exit(exits.for_report(report))


def load_sample() -> Sample:
    """The sample of the package."""
    folder = resources.files("swarmkv.cli") / "samples"
    prompts = yaml.safe_load((folder / "prompts.yaml").read_text(encoding="utf-8"))
    branches = tuple((item["name"], item["prompt"]) for item in prompts["branches"])
    return Sample((folder / "specification.md").read_bytes(), branches)


@contextlib.contextmanager
def private_stage() -> Iterator[Stage]:
    """Directories that are removed at the end, even when this process is killed: a janitor outlives it."""
    in_memory = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="swarmkv-demo-"))  # short: a socket's path is
    # For whoever finds one in shared memory, and wonders whether it is in use.
    store = Path(tempfile.mkdtemp(prefix=f"swarmkv-demo-{os.getpid()}-", dir=in_memory))
    janitor = subprocess.Popen(
        [sys.executable, "-I", "-S", _janitor_script(), str(directory), str(store)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert janitor.stdin is not None
    try:
        yield Stage(directory, store)
    finally:
        janitor.stdin.close()
        janitor.wait()


async def _demonstrate(job: Demonstration, stage: Stage) -> RunReport:
    say = _silent if job.quiet else output.note
    started = time.monotonic()
    async with Supervisor(stage.log, notice=output.note) as supervisor:
        place = BrokerPlace(stage.directory, data_dir=None)
        await _start_broker(place, supervisor)
        say(f"broker    {place.socket}")
        plan = WorkerPlan((job.model,), options=("--verbose",))
        settings = job.settings.model_copy(update={"grace_s": _GRACE_S})
        env = {"SWARMKV_REDIS_URL": place.url, "SWARMKV_STORE_DIR": str(stage.store)}
        for program in plan.programs(settings, {**env, "SWARMKV_GRACE_S": str(_GRACE_S)}):
            await supervisor.start(program)
        async with Producer(place.url, job.settings) as producer:
            workers = [name for name in supervisor.pids() if name != "broker"]
            await supervisor.during(wait_ready(producer, supervisor, workers))
            say(f"workers   {', '.join(workers)}: ready in {render.seconds(time.monotonic() - started)}")
            return await supervisor.during(_answered(producer, job))


async def _start_broker(place: BrokerPlace, supervisor: Supervisor) -> None:
    claim = await broker.claim(place)
    assert isinstance(claim, broker.ServerClaim)  # nobody else knows this directory
    await supervisor.start(claim.program())
    await supervisor.during(broker.wait_live(place.socket))


async def _answered(producer: Producer, job: Demonstration) -> RunReport:
    sample = load_sample()
    run = await producer.submit(
        sample.document,
        sample.branches,
        name="TL-4 specification",
        sampling=_SAMPLING.model_copy(update={"max_tokens": job.max_tokens}),
    )
    if job.quiet:
        return await run.results()
    output.note(f"run       {run.id}: {len(sample.document):,} bytes, {len(sample.branches)} prompts\n")
    return await live.follow(run, keep_frame=True)


def present(console: Console, report: RunReport, *, about: str = "") -> None:
    """The answers, what each branch took, and what sharing the prefill saved."""
    _title(console, "Answers")
    if about:
        console.print(Text(about + "\n", style="dim"))
    render.answers(console, report, dict(load_sample().branches))
    _title(console, "Branches")
    render.branch_table(console, report)
    _title(console, "In all")
    render.facts(console, _facts(report))
    if report.error:
        render.summary(console, report)


def _facts(report: RunReport) -> list[tuple[str, str, str]]:
    saved = Savings.of(report)
    num_agents = len(report)
    document = f"of a document of {report.document_tokens:,}"
    return [
        ("prefills run", f"{saved.prefills_run}", f"for {num_agents} branches"),
        ("prefill tokens avoided", f"{saved.tokens_avoided:,}", document),
        (
            "prefill time avoided",
            render.milliseconds(saved.prefill_avoided_ms),
            "at the measured speed",
        ),
        ("wall time", render.milliseconds(saved.wall_ms), "from enqueuing to the last answer"),
        (
            f"{num_agents} re-prefilling agents",
            render.milliseconds(saved.agents_ms),
            f"{saved.ratio:.1f}x longer; computed from the measured prefill, not measured",
        ),
    ]


def _title(console: Console, title: str) -> None:
    if console.is_terminal:
        console.print()
        console.print(Rule(Text(title, style="bold"), align="left", style="dim"))
    else:
        console.print("\n" + title)


def _silent(message: str) -> None:
    """Say nothing."""


def _janitor_script() -> str:
    return str(Path(__file__).with_name("janitor.py"))
