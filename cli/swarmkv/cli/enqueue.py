"""`swarmkv enqueue`: a document and its prompts become a run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from swarmkv.cli import exits, live, output, render
from swarmkv.cli.client import exit_code, open_producer, require_worker
from swarmkv.cli.models import DEFAULT_ALIAS, parse_alias
from swarmkv.cli.options import Json
from swarmkv.cli.prompts import Branch, parse_prompt, read_prompts
from swarmkv.producer import Producer, RunHandle, RunReport, Sampling
from swarmkv.protocol.errors import InvalidBranch, InvalidDocument, InvalidInput, RunNotFinished
from swarmkv.protocol.settings import load_settings


@dataclass(frozen=True, slots=True)
class Submission:
    """What is enqueued, read and parsed."""

    document: bytes
    branches: list[Branch]
    sampling: Sampling
    model: str
    system: str | None
    template: str | None
    name: str | None
    deadline_s: float | None
    any_model: bool


@dataclass(frozen=True, slots=True)
class Following:
    """What happens behind the submission."""

    wait: bool
    follow: bool
    as_json: bool
    timeout_s: float | None


def enqueue(
    document: Annotated[str, typer.Argument(metavar="FILE|-", help="The document, UTF-8; - reads stdin.")],
    prompt: Annotated[
        list[str] | None,
        typer.Option("-p", "--prompt", metavar="[NAME=]TEXT", help="A branch; give one -p per prompt."),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Branches from a .yaml or .jsonl file.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="ALIAS", help="The alias of the model, as workers announce it.")
    ] = DEFAULT_ALIAS,
    name: Annotated[str | None, typer.Option(help="A name for the run.")] = None,
    system: Annotated[str | None, typer.Option(help="System text, shared by all branches.")] = None,
    template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A template with {document} and then {prompt}.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 always takes the likeliest token.")] = None,
    top_k: Annotated[int | None, typer.Option(help="0: off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="1: off.")] = None,
    min_p: Annotated[float | None, typer.Option(help="0: off.")] = None,
    repeat_penalty: Annotated[float | None, typer.Option(help="1: off.")] = None,
    seed: Annotated[int | None, typer.Option(help="Drawn for each branch if not given.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends an answer; repeatable.")] = None,
    deadline: Annotated[float | None, typer.Option(metavar="SECONDS", help="The run ends by then.")] = None,
    any_model: Annotated[bool, typer.Option("--any-model", help="Accept an alias nobody announced.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the answers and print them.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Like --wait, and show progress.")] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="With --wait: give up waiting; the run goes on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Enqueue a document with its prompts: one prefill, N answers."""
    given: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    given |= {"min_p": min_p, "repeat_penalty": repeat_penalty, "seed": seed, "stop": stop or None}
    sampling = parse_sampling({key: value for key, value in given.items() if value is not None})
    branches = [parse_prompt(value) for value in prompt or []]
    branches += read_prompts(prompts) if prompts else []
    submission = Submission(
        document=read_document(document, load_settings().max_document_bytes),
        branches=[with_defaults(branch, sampling) for branch in branches],
        sampling=sampling,
        model=parse_alias(model),
        system=system,
        template=None if template is None else _read_text(template),
        name=name or (None if document == "-" else Path(document).name),
        deadline_s=deadline,
        any_model=any_model,
    )
    raise typer.Exit(run_submission(submission, Following(wait, follow, as_json, timeout)))


def run_submission(submission: Submission, following: Following) -> int:
    """Enqueue, and wait as asked; the exit code. Ctrl-C leaves the run alone and says how to return to it."""
    accepted: list[RunHandle] = []
    try:
        return asyncio.run(_submit(submission, following, accepted))
    except KeyboardInterrupt:
        if not accepted:
            raise
        output.note(
            f"Run {accepted[0].id} goes on without you.",
            f"swarmkv results {accepted[0].id} shows its answers; swarmkv cancel {accepted[0].id} ends it.",
        )
        return exits.UNFINISHED


async def _submit(submission: Submission, following: Following, accepted: list[RunHandle]) -> int:
    async with open_producer() as producer:
        run = await producer.submit(
            submission.document,
            submission.branches,
            model=submission.model,
            system=submission.system,
            template=submission.template,
            name=submission.name,
            sampling=submission.sampling,
            deadline_s=submission.deadline_s,
            any_model=submission.any_model,
        )
        accepted.append(run)
        for warning in run.warnings:
            output.note("warning: " + warning.message, warning.hint, style="yellow")
        if not (following.wait or following.follow):
            return await _accepted(run, following)
        report = await _followed(producer, run, submission.model, following)
        return await exit_code(producer, report)


async def _accepted(run: RunHandle, following: Following) -> int:
    """Say that the run is on its way: its id alone on stdout, what can be done with it on stderr."""
    if following.as_json:
        output.print_json((await run.report()).model_dump(mode="json"))
        return exits.DONE
    output.stdout().print(run.id)
    if sys.stderr.isatty():
        output.note(f"swarmkv results {run.id} shows its answers.", style="dim")
    return exits.DONE


async def _followed(producer: Producer, run: RunHandle, model: str, following: Following) -> RunReport:
    try:
        async with asyncio.timeout(following.timeout_s):
            return await _shown(run, following)
    except TimeoutError as exc:
        await require_worker(producer, model)
        raise RunNotFinished(
            f"Run {run.id} has not ended within {following.timeout_s:g} s; it goes on.",
            hint=f"swarmkv results {run.id} shows what is there.",
        ) from exc


async def _shown(run: RunHandle, following: Following) -> RunReport:
    if following.as_json and following.follow:
        return await live.stream_json(run)
    report = await live.follow(run) if following.follow else await live.wait(run)
    if following.as_json:
        output.print_json(report.model_dump(mode="json"))
    else:
        print_report(report)
    return report


def print_report(report: RunReport) -> None:
    """Answers, then what they took."""
    console = output.stdout()
    render.answers(console, report)
    render.branch_table(console, report)
    render.summary(console, report)


def parse_sampling(given: dict[str, Any]) -> Sampling:
    """Sampling from options; raises InvalidBranch naming the option."""
    try:
        return Sampling(**given)
    except ValidationError as exc:
        first = exc.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise InvalidBranch(f"{option} {first.get('input')!r}: {first['msg']}.") from exc


def with_defaults(branch: Branch, sampling: Sampling) -> Branch:
    """A branch whose own sampling, if it names only some values, takes the others from the command line."""
    own = branch.get("sampling") if isinstance(branch, Mapping) else None
    if not isinstance(own, Mapping):
        return branch
    assert isinstance(branch, Mapping)
    return {**branch, "sampling": {**sampling.model_dump(), **own}}


def read_document(path: str, max_bytes: int) -> bytes:
    """The bytes of a file, or of stdin for `-`; no more than the limit is read. Raises InvalidDocument."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(max_bytes + 1)
            size_bytes = len(data)
        else:
            with Path(path).open("rb") as file:
                data = file.read(max_bytes + 1)
                size_bytes = max(len(data), os.fstat(file.fileno()).st_size)
    except OSError as exc:
        raise InvalidDocument(f"{path} cannot be read: {exc.strerror}.") from exc
    if len(data) > max_bytes:
        at_least = "at least " if path == "-" else ""
        raise InvalidDocument(
            f"The document has {at_least}{size_bytes:,} bytes; the limit is {max_bytes:,}.",
            hint="Shorten it, or raise SWARMKV_MAX_DOCUMENT_BYTES.",
        )
    return data


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as exc:
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{path} is not UTF-8 at offset {exc.start:,}.") from exc
