"""Standard streams that are closed or full: one line where there is a place for it, and a telling exit code."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.command import COMMAND, Done, Home


@pytest.fixture
def home(redis_url: str, tmp_path: Path) -> Home:
    return Home(tmp_path).with_settings(redis_url=redis_url, null_engine=True)


def run(home: Home, line: str) -> Done:
    """Run `swarmkv` with the arguments and redirections of a shell's line."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {' '.join(COMMAND)} {line}"],
        env=home.env,
        cwd=home.directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout
    assert "Exception ignored" not in done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("command", ["runs", "runs --json", "snapshots ls --json", "--help", "--version"])
@pytest.mark.parametrize(
    ("redirection", "reason"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
def test_a_stdout_that_takes_nothing_is_one_line_and_code_one(
    home: Home, command: str, redirection: str, reason: str
) -> None:
    done = run(home, f"{command} {redirection}")
    assert done.code == 1
    assert f"error: The result cannot be written to stdout: {reason}.\n" in done.stderr
    assert done.stderr.count("error: ") == 1


@pytest.mark.parametrize("redirection", [">/dev/full", "--json >/dev/full"])
def test_a_run_whose_id_cannot_be_written_to_stdout_is_named_on_stderr(home: Home, redirection: str) -> None:
    (home.directory / "d.txt").write_text("A text.")
    done = run(home, f"enqueue d.txt -p Why --any-model {redirection}")
    [summary] = home.run("runs", "--json").json
    assert done.code == 1
    assert f"Run {summary['run_id']} was accepted and goes on.\n" in done.stderr
    assert done.stderr.endswith("error: The result cannot be written to stdout: No space left on device.\n")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", ">&-", ">/dev/full", "<&- >&- 2>&-"])
def test_the_code_of_an_error_outlives_every_stream(home: Home, redirection: str) -> None:
    assert run(home, f"show nope --json {redirection}").code == 2


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_results_need_no_stderr(home: Home, redirection: str) -> None:
    done = run(home, f"show nope --json {redirection}")
    assert done.json["error"]["code"] == "run_not_found"
    assert run(home, f"runs --json {redirection}") == Done(0, "[]\n", "")
    assert run(home, f"snapshots ls {redirection}").code == 0


def test_a_closed_stdin_holds_no_document(home: Home) -> None:
    done = run(home, "enqueue - -p x <&-")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == "error: The document on stdin cannot be read: Bad file descriptor.\n"


@pytest.mark.parametrize(("command", "code"), [("--help", 141), ("runs --json", 141), ("show nope --json", 2)])
def test_readers_that_left_get_no_word(home: Home, command: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, *command.split()], env=home.env, stdout=writer, stderr=writer, timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert done.returncode == code
