"""`swarmkv up`: broker and workers start together, are found from any shell, and end together."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.command import Home, all_gone, descendants
from tests.waiting import wait_until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).with_settings(threads=1, n_ctx=2048, slots=4, lease_s=2, heartbeat_s=0.5, sweep_s=0.2)


@pytest.fixture
def model(tiny_llama_path: Path) -> str:
    return str(tiny_llama_path)


@contextmanager
def running(home: Home, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with home.started("up", *arguments) as process:

        def is_ready() -> bool:
            assert process.poll() is None, home.stderr
            return "ready     in" in home.stderr

        wait_until(is_ready, timeout_s=60)
        yield process


def is_tidy(home: Home) -> bool:
    return home.run("runs").code == 4


def test_up_serves_a_document_and_ends_with_everything_on_ctrl_c(home: Home, model: str) -> None:
    (home.directory / "d.txt").write_text("The retry limit is four.\n" * 20)
    with running(home, "--model", model) as process:
        family = descendants(process.pid)
        done = home.run("enqueue", "d.txt", "-p", "Why?", "-p", "Who?", "--max-tokens", "4", "--wait", "--json")
        assert (done.code, done.json["state"], done.json["prefills_run"]) == (0, "done", 1)
        assert [b["tokens"]["recomputed"] for b in done.json["branches"]] == [0, 0]
        stored = home.run("snapshots", "ls", "--json").json
        assert [entry["key"] for entry in stored] == [done.json["snapshot"]]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=40) == 0
    assert len(family) == 3
    assert all_gone(family)
    assert is_tidy(home)


def test_a_second_up_uses_the_broker_of_the_first_and_leaves_it_running(home: Home, model: str) -> None:
    second_home = Home(home.directory / "second", home.settings)
    second_home.directory.mkdir()
    shared = {"XDG_RUNTIME_DIR": str(home.directory), "XDG_STATE_HOME": str(home.directory / "state")}
    second = Home(second_home.directory, (*home.settings, *shared.items()))
    with running(home, "--model", model), running(second, "--model", f"other={model}", "--one-process") as process:
        assert "runs already" in second.stderr
        assert "2 workers are there already" in second.stderr
        assert re.search(r"log \S+/up\.log$", home.stderr, re.MULTILINE)
        assert re.search(r"log \S+/up-2\.log$", second.stderr, re.MULTILINE)
        assert (home.directory / "state" / "swarmkv" / "up-2.log").stat().st_size
        models = {row["model"] for row in home.run("workers", "--json").json}
        assert models == {"default", "other"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=40) == 0
        assert {row["model"] for row in home.run("workers", "--json").json} == {"default"}


def test_a_worker_that_is_killed_comes_back(home: Home, model: str) -> None:
    with running(home, "--model", model, "--one-process"):
        first = home.run("workers", "--json").json[0]["pid"]
        psutil.Process(first).kill()

        def is_back() -> bool:
            rows = home.run("workers", "--json")
            return rows.code == 0 and all(row["pid"] != first for row in rows.json)

        wait_until(is_back, timeout_s=40)
        assert re.search(r"all-1 ended \(SIGKILL\); restarting in", home.stderr)


def test_a_drained_worker_is_not_started_again_and_the_others_go_on(home: Home, model: str) -> None:
    with running(home, "--model", model, "--branch-workers", "2") as process:
        first, second = (row["id"] for row in home.run("workers", "--json").json if row["role"] == "branch")
        assert home.run("workers", "drain", first).code == 0
        wait_until(lambda: "was told to end, and has ended; it is not started again" in home.stderr, timeout_s=20)
        assert process.poll() is None
        assert {row["id"] for row in home.run("workers", "--json").json if row["role"] == "branch"} == {second}
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=40) == 0


def test_everything_dies_with_an_up_that_is_killed(home: Home, model: str) -> None:
    with running(home, "--model", model) as process:
        family = descendants(process.pid)
        process.kill()
        wait_until(lambda: all_gone(family), timeout_s=10)
    assert is_tidy(home)


def test_a_model_that_does_not_load_ends_up_with_its_reason(home: Home) -> None:
    (home.directory / "cut.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    done = home.run("up", "--model", "cut.gguf")
    assert done.code == 2
    assert "error: prefill-1 cannot run." in done.stderr or "error: branch-1 cannot run." in done.stderr
    assert "cannot load" in done.stderr
    assert is_tidy(home)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "none.gguf"], "There is no model file"),
        (["--model", "a=x", "--model", "a=y"], "the alias 'a' 2 times"),
        (["--prefill-workers", "0", "--branch-workers", "0"], "No workers are asked for"),
        (["--slots", "300"], "SWARMKV_SLOTS"),
    ],
)
def test_up_refuses_what_cannot_run_before_it_starts_anything(
    home: Home, model: str, arguments: list[str], message: str
) -> None:
    done = home.run("up", *(arguments if "--model" in arguments else [*arguments, "--model", model]))
    assert (done.code, message in done.stderr) == (2, True)
    assert not (home.directory / "swarmkv").exists()


def test_up_on_an_unreachable_redis_ends_with_code_four(home: Home, model: str) -> None:
    done = home.with_settings(redis_url="redis://127.0.0.1:1/0").run("up", "--model", model)
    assert done.code == 4
