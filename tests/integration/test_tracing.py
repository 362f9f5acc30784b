"""One trace for each run, over real processes, as a collector sees it; and nothing of it where nobody asks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol import tracing
from swarmkv.protocol.errors import BrokerError, ConfigError
from swarmkv.protocol.settings import Settings
from tests.collector import Collected, Collector, collector
from tests.command import Home
from tests.fault_support import FaultyFleet, faulty_fleet
from tests.processes import environment_of
from tests.waiting import eventually, wait_until

DOCUMENT = "The retry limit is four.\n" * 20
SHORT = Sampling(temperature=0, max_tokens=4, ignore_eos=True, seed=7)
PRODUCER, CONSUMER = 4, 5  # of OTLP's SpanKind


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that this process and those which it starts send to."""
    with collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield found


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path, collected: Collector) -> Iterator[FaultyFleet]:
    with faulty_fleet(settings, tmp_path / "logs") as fleet:
        yield fleet


@pytest.fixture
async def producer(settings: Settings, collected: Collector) -> AsyncIterator[Producer]:
    async with Producer(settings=settings) as producer:
        yield producer


def children(collected: Collector, parent: Collected) -> list[Collected]:
    found = [span for span in list(collected.spans) if span.parent_id == parent.span_id]
    return sorted(found, key=lambda span: span.start_ns)


async def test_a_run_is_one_trace_from_its_submission_to_each_stage_of_each_branch(
    fleet: FaultyFleet, producer: Producer, collected: Collector, tiny_llama_path: Path
) -> None:
    for role in ("prefill", "branch"):
        fleet.start(role, tiny_llama_path)
    await fleet.ready(producer, 2)
    asked = [{"name": "secret-name", "prompt": "secret-prompt"}, {"name": "other", "prompt": "Why?"}]
    run = await producer.submit("secret-document " + DOCUMENT, asked, sampling=SHORT, name="secret-run")
    report = await run.results(30)
    wait_until(lambda: collected.has("swarmkv.branch", 2) and collected.has("swarmkv.enqueue", 1))
    wait_until(lambda: collected.has("swarmkv.prefill", 1) and collected.has("swarmkv.decode", 2))
    [root] = collected.named("swarmkv.enqueue")
    assert (root.kind, root.parent_id, root.attributes["swarmkv.run.id"]) == (PRODUCER, "", run.id)
    assert {span.trace_id for span in collected.spans} == {root.trace_id}
    prefill, *branches = children(collected, root)
    assert (prefill.name, prefill.kind, prefill.attributes["swarmkv.outcome"]) == (
        "swarmkv.prefill",
        CONSUMER,
        "done",
    )
    assert prefill.attributes["swarmkv.tokens.prefilled"] == report.document_tokens
    assert prefill.attributes["swarmkv.snapshot"] == report.snapshot
    assert [span.name for span in children(collected, prefill)] == ["swarmkv.export"]
    assert {(span.name, span.kind) for span in branches} == {("swarmkv.branch", CONSUMER)}
    assert sorted(span.attributes["swarmkv.branch.index"] for span in branches) == [0, 1]
    for span in branches:
        told = report.branches[span.attributes["swarmkv.branch.index"]]
        assert span.attributes["swarmkv.tokens.reused"] == report.document_tokens
        assert span.attributes["swarmkv.tokens.recomputed"] == 0
        assert span.attributes["gen_ai.usage.output_tokens"] == told.tokens.generated == 4
        assert span.attributes["gen_ai.usage.input_tokens"] == report.document_tokens + told.tokens.prompt
        assert span.attributes["gen_ai.response.finish_reasons"] == ["length"]
        assert span.attributes["swarmkv.branch.attempt"] == 1
        assert span.events == ("swarmkv.first_token",)
        stages = children(collected, span)
        names = [stage.name.removeprefix("swarmkv.") for stage in stages]
        assert [name for name in names if name not in ("queue", "restore")] == ["load", "prompt", "decode"]
        assert all(stage.start_ns <= stage.end_ns for stage in stages)
        assert span.start_ns <= stages[0].start_ns
        assert stages[-1].end_ns <= span.end_ns
    assert any(span.name == "swarmkv.restore" for span in collected.spans)
    for word in (b"secret-document", b"secret-prompt", b"secret-name", b"secret-run"):
        assert not any(word in body for body in collected.bodies)


async def test_each_attempt_at_a_branch_is_a_span_of_its_own_in_the_same_trace(
    fleet: FaultyFleet, producer: Producer, collected: Collector
) -> None:
    leaving = fleet.start_faulty("branch", "null", {"null_s": 600}, null_engine=True, grace_s=0.1)
    await fleet.beats(producer, leaving, fleet.start("prefill", "null", null_engine=True))
    run = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)

    async def is_taken() -> bool:
        return (await run.report()).branches[0].state == "running"

    await eventually(is_taken)
    assert leaving.end() == 0
    fleet.start("branch", "null", null_engine=True)
    assert (await run.results(30)).branches[0].attempts == 2
    wait_until(lambda: collected.has("swarmkv.branch", 2))
    spans = sorted(collected.named("swarmkv.branch"), key=lambda span: span.attributes["swarmkv.branch.attempt"])
    assert [span.attributes["swarmkv.branch.attempt"] for span in spans] == [1, 2]
    assert [span.attributes["swarmkv.outcome"] for span in spans] == ["left", "done"]
    wait_until(lambda: collected.has("swarmkv.enqueue", 1))
    [root] = collected.named("swarmkv.enqueue")
    assert {(span.trace_id, span.parent_id) for span in spans} == {(root.trace_id, root.span_id)}


async def test_a_branch_that_fails_is_an_error_with_its_code(
    fleet: FaultyFleet, producer: Producer, collected: Collector, tiny_llama_path: Path
) -> None:
    fleet.start("all", tiny_llama_path)
    await fleet.ready(producer, 2)
    too_long = SHORT.model_copy(update={"max_tokens": 1_000_000})
    report = await (await producer.submit(DOCUMENT, ["What?"], sampling=too_long)).results(30)
    assert report.branches[0].error is not None
    wait_until(lambda: collected.has("swarmkv.branch", 1))
    [span] = collected.named("swarmkv.branch")
    assert span.is_error
    assert (span.attributes["error.type"], span.attributes["swarmkv.outcome"]) == ("branch_too_long", "failed")


async def test_a_run_whose_producer_traces_nothing_has_one_trace_all_the_same(
    fleet: FaultyFleet, settings: Settings, collected: Collector
) -> None:
    async with Producer(settings=settings.model_copy(update={"otel": "off"})) as silent:
        fleet.start("all", "null", null_engine=True)
        await fleet.ready(silent, 2)
        run = await silent.submit(DOCUMENT, ["What?", "Why?"], sampling=SHORT)
        assert (await run.results(20)).state == "done"
        other = await silent.submit(DOCUMENT, ["What?"], sampling=SHORT)
        assert (await other.results(20)).state == "done"
    wait_until(lambda: collected.has("swarmkv.branch", 3) and collected.has("swarmkv.prefill", 1))
    traces: dict[str, set[str]] = {}
    for span in [*collected.named("swarmkv.branch"), *collected.named("swarmkv.prefill")]:
        traces.setdefault(span.attributes["swarmkv.run.id"], set()).add(span.trace_id)
    assert {run_id: len(ids) for run_id, ids in traces.items()} == {run.id: 1, other.id: 1}
    assert traces[run.id] != traces[other.id]


async def test_a_submission_belongs_to_what_the_callers_own_program_traces(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    async with Producer(settings=settings.model_copy(update={"otel": "on"})) as producer:
        with provider.get_tracer("theirs").start_as_current_span("their work") as theirs:
            await producer.submit(DOCUMENT, ["What?"], any_model=True)
    enqueued = next(span for span in exporter.get_finished_spans() if span.name == "swarmkv.enqueue")
    assert enqueued.parent is not None
    assert enqueued.parent.span_id == theirs.get_span_context().span_id
    refused = settings.model_copy(update={"otel": "on", "redis_url": "redis://127.0.0.1:1/0"})
    async with Producer(settings=refused) as producer:
        with pytest.raises(BrokerError):
            await producer.submit(DOCUMENT, ["What?"], any_model=True)
    failed = exporter.get_finished_spans()[-1]
    assert dict(failed.attributes or {})["error.type"] == "broker"


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported(settings: Settings) -> None:
    code = """
import asyncio, sys
from swarmkv.producer import Producer
async def main():
    async with Producer() as producer:
        await producer.submit("A document.", ["What?"], any_model=True)
asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    env = {name: value for name, value in environment_of(settings).items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_asked_for_without_the_package_it_names_the_extra_and_by_an_endpoint_alone_it_stays_off(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "PACKAGES", ("opentelemetry_of_nobody.sdk",))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert not tracing.open_tracing(settings).is_on
    with pytest.raises(ConfigError, match=r"swarmkv\[otel\]"):
        tracing.open_tracing(settings.model_copy(update={"otel": "on"}))


def test_a_collector_that_is_away_costs_neither_work_nor_a_word(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    home = Home(tmp_path).with_settings(redis_url=settings.redis_url, otel="on")
    (tmp_path / "d.txt").write_text(DOCUMENT)
    done = home.run("enqueue", "d.txt", "-p", "What?", "--any-model", "--json")
    assert done.code == 0
    assert "opentelemetry" not in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert done.json["run_id"]
