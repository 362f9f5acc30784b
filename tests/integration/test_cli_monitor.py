"""`swarmkv monitor` as a process: where it listens, what it refuses, how it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from swarmkv.protocol.settings import Settings
from tests.processes import environment_of

COMMAND = [sys.executable, "-m", "swarmkv.cli", "monitor"]


@contextmanager
def monitor(settings: Settings, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A monitor's process, and its address."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", *options], env=environment_of(settings), stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+:\d+", line)
        assert found is not None, line + process.stderr.read()
        yield process, found.group()
    finally:
        process.kill()
        process.wait(timeout=20)
        if process.stderr is not None:
            process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_and_well_with_pages_open(settings: Settings, number: signal.Signals) -> None:
    with monitor(settings) as (process, address):
        with httpx.stream("GET", f"{address}/live/overview", timeout=20) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("retry:")
            assert any(line.startswith("data:") for line in lines)
            process.send_signal(number)
            assert not any(line.startswith("retry:") for line in lines)
        assert process.wait(timeout=10) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_an_address_for_others_is_refused_without_a_token_before_anything_listens(settings: Settings) -> None:
    done = subprocess.run(
        [*COMMAND, "--host", "0.0.0.0", "--port", "0"],
        env=environment_of(settings), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "SWARMKV_MONITOR_TOKEN" in done.stderr


def test_a_port_that_is_taken_is_said_in_words(settings: Settings) -> None:
    with monitor(settings) as (_, address):
        port = address.rsplit(":", 1)[1]
        done = subprocess.run(
            [*COMMAND, "--port", port],
            env=environment_of(settings),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert f"port {port}: Address already in use" in done.stderr
