"""`swarmkv top` on a real terminal: a tmux pane, with a real broker and real workers behind it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from swarmkv.producer import Producer, RunHandle
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.settings import Settings
from tests import played_worker
from tests.command import COMMAND, Home, descendants
from tests.conftest import server_binary, start_server, stop_server
from tests.tmux import Terminal, terminal
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed on this machine")
TOP = (*COMMAND, "top", "--interval", "0.1")


@pytest.fixture
def home(redis_url: str, tmp_path: Path) -> Home:
    """A home on the test's broker, whose workers need no model."""
    return Home(tmp_path).with_settings(redis_url=redis_url, null_engine=True, heartbeat_s=0.3)


@pytest.fixture
def shell(home: Home) -> Iterator[Terminal]:
    with terminal(home.directory, home.env) as shell:
        yield shell


@pytest.fixture
async def producer(settings: Settings, home: Home) -> AsyncIterator[Producer]:
    async with Producer(settings=settings) as producer:
        yield producer


async def waiting_run(producer: Producer, name: str, num_branches: int = 1) -> RunHandle:
    """A run that nobody works on."""
    prompts = [(f"b{number}", "Why?") for number in range(num_branches)]
    return await producer.submit(f"The text of {name}.", prompts, name=name, any_model=True)


def started(shell: Terminal, *arguments: str) -> None:
    shell.run([*TOP, *arguments])
    shell.wait_for("? help")


def row_of(shell: Terminal, text: str) -> int:
    """The line of the screen that has it; 99 if none."""
    return next((number for number, line in enumerate(shell.lines) if text in line), 99)


def top_process(shell: Terminal) -> psutil.Process:
    pid = int(shell.tmux("display-message", "-p", "-t", "t", "#{pane_pid}"))
    [process] = [child for child in descendants(pid) if "top" in child.cmdline()]
    return process


async def test_runs_are_watched_sorted_filtered_looked_into_and_cancelled(
    shell: Terminal, producer: Producer, ledger: Ledger
) -> None:
    small, large = await waiting_run(producer, "small", 1), await waiting_run(producer, "large", 30)
    started(shell)
    shell.wait_for("3 Runs 2")
    assert row_of(shell, "large") < row_of(shell, "small")  # the newest first
    await waiting_run(producer, "\x1b[2Jhostile\x1b]0;title\x07")
    shell.wait_for("␛[2Jhostile␛]0;title␇")
    shell.press("S")
    shell.wait(lambda: row_of(shell, "small") < row_of(shell, "large"), what="the oldest first")
    shell.press("/")
    shell.type("larg")
    shell.wait_for("/larg▏  1 of 3")
    shell.press("Enter")
    shell.press("Enter")
    shell.wait_for(f"Run {large.id} queued large  0/30 ended")
    [*_, last] = [branch for branch in await played_worker.begin(ledger) if branch.run_id == large.id]
    await played_worker.say(ledger, last, "The limit ", "is \x1b[31mfour")
    shell.press("End")
    shell.wait_for("── b29 running ──")
    shell.wait_for("The limit is ␛[31mfour")
    shell.press("c")
    shell.wait_for(f"Cancel run {large.id} (large)?")
    shell.press("n")
    shell.wait_for("Nothing was done.")
    assert not (await large.report()).is_finished
    shell.press("c", "y")
    shell.wait_for(f"Run {large.id} is cancelled.")
    shell.wait_for("cancelled large  30/30 ended")
    assert (await large.report()).state == "cancelled"
    assert not (await small.report()).is_finished


async def test_what_failed_is_queued_again(shell: Terminal, producer: Producer, ledger: Ledger) -> None:
    run = await waiting_run(producer, "spec", 2)
    one, two = await played_worker.begin(ledger)
    await played_worker.fail(ledger, one, "It broke.")
    await played_worker.finish(ledger, two, "Four.")
    started(shell)
    shell.wait_for("with errors")
    shell.press("r")
    shell.wait_for("1 failed branch is queued again.")
    assert [branch.state for branch in (await run.report()).branches] == ["queued", "done"]
    shell.press("r")
    shell.wait_for("has no failed branch")


async def test_a_worker_is_paused_resumed_and_drained(shell: Terminal, home: Home) -> None:
    with home.started("worker", "branch") as worker:
        started(shell)
        shell.press("2")
        shell.wait(lambda: "running" in shell.screen and "branch-" in shell.screen, what="a worker", timeout_s=60)
        shell.press("p")
        shell.wait_for("paused ")
        shell.press("p")
        shell.wait(lambda: "paused " not in shell.screen, what="resumed")
        shell.press("d")
        shell.wait_for("Drain worker branch-")
        shell.press("y")
        assert worker.wait(timeout=30) == 0
        shell.wait_for("No worker is alive.")


@pytest.mark.parametrize("ending", ["q", "C-c", "SIGTERM", "SIGHUP"])
async def test_however_it_ends_the_terminal_is_as_it_was(shell: Terminal, ending: str) -> None:
    shell.run(["echo", "what stood there before"])
    shell.wait_for("ended 0")
    before = shell.modes
    started(shell)
    assert shell.is_alternate
    assert not shell.shows_cursor
    assert shell.modes != before
    if ending.startswith("SIG"):
        top_process(shell).send_signal(signal.Signals[ending])
    else:
        shell.press(ending)
    code = {"q": 0, "C-c": 130, "SIGTERM": 143, "SIGHUP": 129}[ending]
    shell.wait_for(f"ended {code}")
    assert not shell.is_alternate
    assert shell.shows_cursor
    shell.wait(lambda: shell.modes == before, what="the same modes")
    assert "what stood there before" in shell.screen
    assert "Traceback" not in shell.screen


async def test_a_fault_of_ours_gives_the_terminal_back_before_it_is_told(shell: Terminal, home: Home) -> None:
    fault = (
        "import swarmkv.monitor.top.app as app\n"
        "def draw(*_): raise RuntimeError('a fault')\n"
        "app.draw = draw\n"
        "from swarmkv.cli.main import run\n"
        "run(['top'])\n"
    )
    (home.directory / "fault.py").write_text(fault)
    before = shell.modes
    shell.run([COMMAND[0], "-P", "fault.py"])
    shell.wait_for("ended 1")
    assert "error: This should not have happened: RuntimeError: a fault" in shell.screen
    assert not shell.is_alternate
    shell.wait(lambda: shell.modes == before, what="the same modes")


async def test_it_is_suspended_and_goes_on(shell: Terminal, producer: Producer) -> None:
    started(shell)
    before = top_process(shell)
    shell.press("C-z")
    shell.wait_for("Stopped")
    assert not shell.is_alternate
    assert shell.shows_cursor
    await waiting_run(producer, "meanwhile")
    shell.type("fg")
    shell.press("Enter")
    shell.wait_for("meanwhile")
    assert shell.is_alternate
    assert top_process(shell) == before
    # Stopped by a signal that nobody can catch, then continued in front.
    before.send_signal(signal.SIGSTOP)
    shell.wait_for("Stopped")
    shell.type("fg")
    shell.press("Enter")
    shell.wait(lambda: shell.lines[0].startswith("swarmkv top"), what="drawn anew")
    shell.press("q")
    shell.wait(lambda: not shell.is_alternate and shell.shows_cursor, what="the shell's screen")


async def test_it_follows_a_resize_and_a_narrow_terminal(shell: Terminal, producer: Producer) -> None:
    await waiting_run(producer, "spec")
    started(shell, "--interval", "600")  # no reading draws it anew meanwhile
    shell.wait_for("spec")
    shell.resize(40, 15)
    shell.wait(lambda: shell.lines[14].startswith("? help"), what="a footer on the last of 15 lines")
    shell.wait(lambda: row_of(shell, "spec") < 14, what="the run above it")
    shell.resize(132, 40)
    shell.wait(lambda: shell.lines[39].startswith("? help") and "model" in shell.screen, what="a footer on line 40")


async def test_a_frozen_screen_stands_still(shell: Terminal, producer: Producer) -> None:
    started(shell)
    shell.press("Space")
    shell.wait_for("frozen")
    await waiting_run(producer, "later")
    shell.press("2", "3")  # what is drawn behind these was read behind the freeze
    shell.wait_for("3 Runs 0")
    assert "later" not in shell.screen
    shell.press("Space")
    shell.wait_for("later")


async def test_redis_may_go_and_come_back(tmp_path: Path) -> None:
    binary = server_binary("valkey")
    assert binary is not None
    (tmp_path / "data").mkdir()
    server = start_server(binary, tmp_path / "data", "valkey")
    home = Home(tmp_path).with_settings(redis_url=server.url, redis_timeout_s=1)
    with terminal(tmp_path, home.env) as shell:
        started(shell)
        stop_server(server)
        shell.wait_for("Out of touch for ")
        shell.press("2")
        shell.wait_for("No worker is alive.")  # keys work all the same
        server = start_server(binary, tmp_path / "data", "valkey")
        try:
            shell.wait(lambda: "Out of touch" not in shell.screen, what="in touch")
        finally:
            stop_server(server)


async def test_a_redis_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    socket = tmp_path / "nobody.sock"
    home = Home(tmp_path).with_settings(redis_url=f"unix://{socket}")
    with terminal(tmp_path, home.env) as shell:
        started(shell)
        shell.wait_for("Out of touch for ")
        shell.press("q")
        shell.wait_for("ended 0")


async def test_without_colours_it_still_shows_what_is_selected(home: Home, producer: Producer) -> None:
    await waiting_run(producer, "spec")
    with terminal(home.directory, {**home.env, "NO_COLOR": "1"}) as shell:
        started(shell)
        shell.wait_for("spec")
        raw = shell.tmux("capture-pane", "-p", "-e", "-t", "t")
        assert not re.search(r"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9\d|38|48)[;m]", raw)
        assert any(re.search(r"\x1b\[(?:\d+;)*7m", line) for line in raw.split("\n") if "spec" in line)


def test_without_a_terminal_it_names_the_way_that_needs_none(home: Home) -> None:
    done = home.run("top")
    assert (done.code, done.stdout) == (2, "")
    assert "swarmkv top --once" in done.stderr
    assert home.run("top", "--json").code == 2


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "x"])
def test_an_interval_that_is_none_is_refused(home: Home, interval: str) -> None:
    done = home.run("top", "--once", "--interval", interval)
    assert done.code == 2
    assert "Traceback" not in done.stderr


async def test_one_frame_needs_no_terminal_and_is_text_or_one_document(home: Home, producer: Producer) -> None:
    run = await waiting_run(producer, "spec", 3)
    text = home.run("top", "--once")
    assert (text.code, text.stderr) == (0, "")
    assert run.id in text.stdout
    assert "\x1b" not in text.stdout
    document = home.run("top", "--once", "--json").json
    assert document["runs"] == [
        {
            "id": run.id,
            "name": "spec",
            "state": "queued",
            "model": "default",
            "branches": 3,
            "open": 3,
            "age_s": document["runs"][0]["age_s"],
        }
    ]
    documented = (Path(__file__).parents[2] / "docs" / "top.md").read_text("utf-8")
    for name in keys_of(document):
        assert f"`{name}`" in documented


def keys_of(value: object) -> set[str]:
    """Every key at any depth."""
    if isinstance(value, dict):
        return set(value) | {key for item in value.values() for key in keys_of(item)}
    return {key for item in value for key in keys_of(item)} if isinstance(value, list) else set()


def test_one_frame_without_redis_is_an_error_with_its_code(tmp_path: Path) -> None:
    home = Home(tmp_path).with_settings(redis_url=f"unix://{tmp_path}/nobody.sock")
    done = home.run("top", "--once", "--json")
    assert done.code == 4
    assert json.loads(done.stdout)["error"]["code"] == "broker"


@pytest.mark.parametrize("told", [True, False])
def test_a_terminal_that_goes_away_ends_it_with_a_signal_or_without(home: Home, told: bool) -> None:
    command = [*TOP, "--interval", "600"]
    with terminal(home.directory, home.env) as shell:
        shell.run(command if told else ["bash", "-c", f"trap '' HUP; exec {shlex.join(command)}"])
        shell.wait_for("? help")
        process = top_process(shell)
    wait_until(lambda: not process.is_running())
    assert not (home.directory / "state" / "swarmkv" / "traceback.txt").exists()
