"""`swarmkv enqueue`: a document and its prompts become a run."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import typer

from swarmkv.cli import exits, live, options, output, render
from swarmkv.cli.client import exit_code, open_producer, require_worker
from swarmkv.cli.interrupt import Interrupted, run_abandonable
from swarmkv.cli.models import DEFAULT_ALIAS, parse_alias
from swarmkv.cli.prompts import parse_prompt, read_prompts
from swarmkv.cli.streams import OutputFailed
from swarmkv.cli.submission import (
    Submission,
    name_of,
    parse_sampling,
    read_document,
    read_template,
    with_defaults,
)
from swarmkv.producer import Producer, RunHandle, RunReport
from swarmkv.protocol.errors import RunNotFinished
from swarmkv.protocol.settings import load_settings


@dataclass(frozen=True, slots=True)
class Following:
    """What happens behind the submission."""

    wait: bool
    follow: bool
    as_json: bool
    timeout_s: float | None


def enqueue(
    document: options.Document,
    prompt: options.Prompt = None,
    prompts: options.Prompts = None,
    model: options.Alias = DEFAULT_ALIAS,
    name: options.RunName = None,
    system: options.System = None,
    template: options.Template = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repeat_penalty: options.RepeatPenalty = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    deadline: options.Deadline = None,
    any_model: options.AnyModel = False,
    wait: options.Wait = False,
    follow: options.Follow = False,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Enqueue a document with its prompts: one prefill, N answers."""
    if timeout is not None and not (wait or follow):
        raise exits.UsageFault(
            "--timeout says how long to wait, and nothing waits.", hint="Add --wait or --follow."
        )
    given: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    given |= {"min_p": min_p, "repeat_penalty": repeat_penalty, "seed": seed, "stop": stop or None}
    sampling = parse_sampling({key: value for key, value in given.items() if value is not None})
    branches = [parse_prompt(value) for value in prompt or []]
    limits = load_settings()
    branches += read_prompts(prompts, limits.max_document_bytes) if prompts else []
    submission = Submission(
        document=read_document(document, limits.max_document_bytes),
        branches=[with_defaults(branch, sampling) for branch in branches],
        sampling=sampling,
        model=parse_alias(model),
        system=system,
        template=None if template is None else read_template(template, limits.max_prompt_bytes),
        name=name or name_of(document),
        document_name=name_of(document),
        deadline_s=deadline,
        any_model=any_model,
    )
    raise typer.Exit(run_submission(submission, Following(wait, follow, as_json, timeout)))


def run_submission(submission: Submission, following: Following) -> int:
    """Enqueue, and wait as asked; the exit code. Ctrl-C leaves the run alone and says how to return to it."""
    accepted: list[RunHandle] = []
    try:
        return run_abandonable(_submit(submission, following, accepted))
    except OutputFailed:
        if accepted:
            run = accepted[0].id
            output.note(f"Run {run} was accepted and goes on.", f"swarmkv results {run} shows its answers.")
        raise
    except Interrupted:
        if not accepted:
            raise KeyboardInterrupt from None
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
            document_name=submission.document_name,
            sampling=submission.sampling,
            deadline_s=submission.deadline_s,
            any_model=submission.any_model,
        )
        accepted.append(run)
        for warning in () if following.follow else run.warnings:  # a follower hears of them as events
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
        render.full_report(output.stdout(), report)
    return report
