"""Texts of users and the password of Redis stay where they belong, whatever is logged and whatever goes wrong.

A canary word stands in document, prompts, system text and templates, another in the URL of Redis. Everything that
processes said, wrote to their homes, show as arguments, or name in Redis is searched for both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarmkv.cli.main import _unforeseen
from swarmkv.producer import Producer, Sampling
from swarmkv.protocol import keys
from swarmkv.protocol.broker import connect
from swarmkv.protocol.codec import pack
from swarmkv.protocol.errors import SwarmkvError
from swarmkv.protocol.messages import BranchSpec, ErrorInfo, RunReport
from swarmkv.protocol.settings import Settings
from tests.command import Done, Home, descendants
from tests.conftest import quick_settings
from tests.fault_support import FaultyFleet, faulty_fleet, private_broker
from tests.waiting import eventually, wait_until

WORD = "xylocanary"
PASSWORD = "pw-canary-4711"
POISON = "\x01\x02\x01"
DOCUMENT = f"The {WORD} clause: the retry limit is four.\n" * 10
PROMPT = f"What says the {WORD} clause?"
SHORT = Sampling(temperature=0, max_tokens=6)
INPUTS = "inputs"  # where the test itself writes the words


@dataclass
class Heard:
    """Everything that was said, by who said it."""

    said: dict[str, str] = field(default_factory=dict)

    def add(self, who: str, text: object) -> None:
        self.said[f"{len(self.said)} {who}"] = str(text)

    def command(self, home: Home, *arguments: str, stdin: bytes = b"") -> Done:
        done = home.run(*arguments, stdin=stdin)
        self.add(" ".join(arguments), done.stdout + done.stderr)
        return done

    def arguments(self, pids: list[int]) -> None:
        """What other users of the machine can read of processes."""
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                self.add(f"arguments of {pid}", [process.name(), process.cmdline()])

    def files(self, directory: Path) -> None:
        """Names and contents of all files, apart from those that the test wrote."""
        for path in sorted(directory.rglob("*")):
            self.add("name", path)
            if path.is_file() and INPUTS not in path.parts and path.stat().st_size < 1 << 22:
                self.add(f"file {path}", path.read_bytes().decode(errors="replace"))

    def check(self) -> None:
        """Neither word is anywhere; quoted forms of the password neither."""
        assert self.said
        told = [(who, word) for who, text in self.said.items() for word in (WORD, PASSWORD) if word in text]
        assert told == []


@pytest.fixture
async def private(tmp_path: Path) -> AsyncIterator[Settings]:
    """A broker that wants the password, and settings that have it in their URL."""
    with private_broker(tmp_path / "broker") as broker:
        admin = connect(broker.url, timeout_s=5)
        await admin.config_set("requirepass", PASSWORD)
        await admin.aclose(close_connection_pool=True)
        yield quick_settings(broker.url.replace("unix://", f"unix://:{PASSWORD}@"), tmp_path / "store")


@pytest.fixture
async def raw(private: Settings) -> AsyncIterator[Any]:
    client = connect(private.redis_url, timeout_s=5)
    yield client
    await client.aclose(close_connection_pool=True)


@pytest.fixture
async def producer(private: Settings) -> AsyncIterator[Producer]:
    async with Producer(settings=private) as producer:
        yield producer


@pytest.fixture
def fleet(private: Settings, tmp_path: Path) -> Iterator[FaultyFleet]:
    with faulty_fleet(private, tmp_path / "logs") as fleet:
        yield fleet


@pytest.fixture
def home(private: Settings, tmp_path: Path) -> Home:
    (tmp_path / "home" / INPUTS).mkdir(parents=True)
    return Home(tmp_path / "home").with_settings(
        redis_url=private.redis_url, n_ctx=2048, slots=4, threads=1, lease_s=2, heartbeat_s=0.5, sweep_s=0.2
    )


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    yield heard
    heard.check()


async def names_in(raw: Any) -> list[str]:
    return [name.decode(errors="replace") async for name in raw.scan_iter()]


async def test_work_that_succeeds_and_work_that_fails_is_logged_without_its_texts(
    fleet: FaultyFleet, producer: Producer, raw: Any, heard: Heard, tiny_llama_path: Path, private: Settings
) -> None:
    debug = {"log_level": "DEBUG"}
    fleet.start_faulty("prefill", tiny_llama_path, debug)
    fleet.start_faulty("branch", tiny_llama_path, debug | {"corrupt": 1})
    await fleet.beats(producer, *fleet.processes)
    long = Sampling(temperature=0, max_tokens=100_000)
    good = await producer.submit(
        DOCUMENT, [("one", PROMPT), BranchSpec(name="long", prompt=PROMPT, sampling=long)], sampling=SHORT,
        system=f"Think of the {WORD}.", template=f"{WORD}: {{document}}\n{{prompt}}",
    )  # fmt: skip
    too_long = await producer.submit(DOCUMENT * 100, [PROMPT], sampling=SHORT)
    reports = [await run.results(30) for run in (good, too_long)]
    assert [report.state for report in reports] == ["completed_with_errors", "failed"]

    heard.arguments([worker.pid for worker in fleet.processes])
    for worker in fleet.processes:
        assert "DEBUG" in worker.log
        heard.add("log", worker.log)
    heard.add("errors", [error for report in reports for error in errors_of(report)])
    heard.add("keys", await names_in(raw))
    heard.add("store", list(private.store_dir.iterdir()))


FORGED: list[object] = [{"v": 1, "name": "a", "prompt": [WORD]}, {"v": WORD}, {"v": 1, WORD: WORD}, WORD, [[WORD]]]


async def test_records_and_documents_that_were_forged_are_refused_without_being_quoted(
    fleet: FaultyFleet, producer: Producer, raw: Any, heard: Heard
) -> None:
    runs = []
    for number, value in enumerate(FORGED):
        runs.append(await producer.submit(f"{number} {DOCUMENT}", [PROMPT], sampling=SHORT, any_model=True))
        await raw.hset(keys.key("branch", run=runs[-1].id, index=0), "spec", pack(value))
    kept = await names_in(raw)
    runs.append(await producer.submit(f"Another {DOCUMENT}", [PROMPT], sampling=SHORT, any_model=True))
    (name,) = [name for name in await names_in(raw) if "document" in name and name not in kept]
    await raw.set(name, WORD.encode() + b"\xff")
    for role in ("prefill", "branch"):
        fleet.start_faulty(role, "null", {"log_level": "DEBUG"}, null_engine=True)
    reports = [await run.results(30) for run in runs]
    errors = [errors_of(report)[-1] for report in reports]
    assert [error.code for error in errors] == ["protocol"] * len(FORGED) + ["invalid_document"]
    heard.add("errors", errors)
    for worker in fleet.processes:
        heard.add("log", worker.log)


def errors_of(report: RunReport) -> list[ErrorInfo]:
    """Of the run and of its branches."""
    return [error for error in (report.error, *(branch.error for branch in report.branches)) if error is not None]


async def test_a_branch_that_kills_its_worker_takes_no_text_along(
    fleet: FaultyFleet, producer: Producer, heard: Heard, tiny_llama_path: Path
) -> None:
    faults = {"log_level": "DEBUG", "abort_on": POISON}
    fleet.start_faulty("prefill", tiny_llama_path, {"log_level": "DEBUG"})
    first = fleet.start_faulty("branch", tiny_llama_path, faults)
    await fleet.beats(producer, *fleet.processes)
    run = await producer.submit(DOCUMENT, [f"{PROMPT} {POISON}"], sampling=SHORT)
    live = [first]

    async def has_ended() -> bool:
        if live[-1].process.poll() is not None and not (await run.report()).is_finished:
            live.append(fleet.start_faulty("branch", tiny_llama_path, faults))
        return (await run.report()).is_finished

    await eventually(has_ended, timeout_s=90)
    report = await run.report()
    assert report.branches[0].error is not None
    assert report.branches[0].error.code == "crashes_worker"
    for worker in fleet.processes:
        heard.add("log", worker.log)
    heard.add("errors", [report.error, report.branches[0].error])


BAD_PROMPTS = [
    f"- *{WORD}",
    f"- !{WORD} x",
    f"{WORD}",
    f"- prompt: [{WORD}]",
    f"- {{prompt: x, promt: {WORD}}}",
    f"- prompt: '{WORD}",
    f"- prompt: x\n  sampling: {WORD}",
    f"- prompt: x\n  sampling: {{stop: {WORD}}}",
]


def test_commands_that_work_and_that_fail_repeat_no_text_and_no_password(
    home: Home, heard: Heard, tiny_llama_path: Path
) -> None:
    inputs = home.directory / INPUTS
    (inputs / "document.txt").write_text(DOCUMENT)
    (inputs / "prompts.yaml").write_text(f"- name: one\n  prompt: {PROMPT}\n")
    (inputs / "template.txt").write_text(f"{WORD} {{document}} {{prompt}}")
    (inputs / "latin.txt").write_bytes(DOCUMENT.encode() + b"\xe4")
    (inputs / "no-template.txt").write_text(f"{WORD} {{prompt}}")
    for number, text in enumerate(BAD_PROMPTS):
        (inputs / f"bad-{number}.yaml").write_text(text)
    good = ["--prompts", f"{INPUTS}/prompts.yaml", "--max-tokens", "4"]
    with home.started("up", "--model", str(tiny_llama_path)) as process:
        wait_until(lambda: "ready     in" in home.stderr, timeout_s=60)
        heard.arguments([process.pid, *(child.pid for child in descendants(process.pid))])
        template = ["--template", f"{INPUTS}/template.txt"]
        enqueue = ("enqueue", f"{INPUTS}/document.txt", *good, *template, "--wait", "--json")
        run = heard.command(home, *enqueue).json["run_id"]
        assert heard.command(home, "results", run, "--json").code == 0
        for command in ("runs", "workers", "doctor", "show"):
            heard.command(home, command, *([run] if command == "show" else []), "--json")
            heard.command(home, command, *([run] if command == "show" else []))
        heard.command(home, "snapshots", "ls", "--json")
        assert heard.command(home, "enqueue", f"{INPUTS}/latin.txt", *good).code == 2
        no_template = ["--template", f"{INPUTS}/no-template.txt"]
        assert heard.command(home, "enqueue", f"{INPUTS}/document.txt", *good, *no_template).code == 2
        for number in range(len(BAD_PROMPTS)):
            bad = ["--prompts", f"{INPUTS}/bad-{number}.yaml"]
            done = heard.command(home, "enqueue", f"{INPUTS}/document.txt", *bad, "--json")
            assert done.code == 2, done
    heard.add("up", home.stderr)
    heard.files(home.directory)


@pytest.mark.parametrize("changed", ["wrong", "misplaced", "nowhere"])
def test_a_url_that_does_not_work_is_never_repeated_with_its_password(
    home: Home, heard: Heard, changed: str, private: Settings
) -> None:
    url = {
        "wrong": private.redis_url.replace(PASSWORD, PASSWORD + "-wrong"),
        "misplaced": f"redis://user:{PASSWORD}/more@localhost/0",
        "nowhere": f"rediss://user:{PASSWORD}@localhost:1/0?password={PASSWORD}",
    }[changed]
    there = home.with_settings(redis_url=url, null_engine=True)
    commands: list[tuple[str, ...]] = [("doctor",), ("doctor", "--json"), ("runs", "--json"), ("workers",), ("up",)]
    commands += [("enqueue", "-", "-p", "What?", "--json")]
    if changed != "nowhere":  # for which a worker waits
        commands += [("worker", "all", "--verbose"), ("worker", "all", "--log-format", "json")]
    for command in commands:
        assert heard.command(there, *command, stdin=b"A document.").code != 0
    heard.files(home.directory)


def test_a_worker_that_waits_for_its_broker_does_not_log_the_password(home: Home, heard: Heard) -> None:
    there = home.with_settings(redis_url=f"redis://user:{PASSWORD}@localhost:1/0", null_engine=True)
    with there.started("worker", "all", "--verbose") as process:
        wait_until(lambda: "waiting for Redis" in there.stderr, timeout_s=30)
        heard.arguments([process.pid])
        assert "redis://user:***@localhost:1/0" in there.stderr
        heard.add("log", there.stderr)


def test_the_traceback_of_an_unforeseen_fault_holds_no_text(
    heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - pydantic's, whose own words would quote it
        BranchSpec.model_validate({"name": "a", "prompt": [WORD], "other": WORD})
    error = _unforeseen(caught.value)
    assert isinstance(error, SwarmkvError)
    heard.add("error", error)
    heard.files(tmp_path)
