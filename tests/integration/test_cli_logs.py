"""What a worker and `up` log as JSON, told from a real run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import Home
from tests.waiting import wait_until

DOCUMENT = b"The retry limit is four.\n"
IDS = {"time", "level", "logger", "message", "action"}


@pytest.fixture
def home(redis_url: str, tmp_path: Path) -> Home:
    return Home(tmp_path).with_settings(redis_url=redis_url, null_engine=True)


def actions(lines: list[dict[str, Any]], *wanted: str) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("action") in wanted]


def enqueue(home: Home) -> str:
    options = ("-p", "risks=Which?", "--max-tokens", "3", "--wait", "--json")
    done = home.run("enqueue", "-", *options, stdin=DOCUMENT)
    assert done.code == 0, done.stderr
    return str(done.json["run_id"])


def test_a_worker_logs_each_change_of_state_with_its_ids_and_measures(home: Home) -> None:
    with home.started("worker", "all", "--log-format", "json"):
        wait_until(lambda: home.stderr.count("worker_ready") == 2, timeout_s=60)
        run = enqueue(home)
        wait_until(lambda: "branch_done" in home.stderr)
        lines = [json.loads(line) for line in home.stderr.splitlines()]
    story = ["prefill_started", "prefill_done", "snapshot_registered"]
    story += ["branch_taken", "branch_first_token", "branch_done"]
    told = actions(lines, *story)
    assert [line["action"] for line in told] == story
    started, done, registered, taken, first, ended = told
    assert all(line.keys() >= IDS for line in told)
    assert done["tokens"] == started["tokens"] == registered["tokens"] > 0
    assert done["ms"] >= 0
    assert {done["snapshot"], registered["snapshot"], ended["snapshot"]} == {done["snapshot"]}
    for line in (taken, first, ended):
        assert (line["run"], line["branch"], line["attempt"]) == (run, "risks", 1)
        assert line["worker"].startswith("branch-")
        assert line["ms"] >= 0
    assert (ended["tokens"], ended["recomputed_tokens"], ended["finish_reason"]) == (3, 0, "length")
    assert ended["ms"] >= ended["first_token_ms"] > 0


def test_the_format_of_the_log_may_come_from_the_environment(home: Home) -> None:
    with home.with_settings(log_format="json").started("worker", "branch"):
        wait_until(lambda: "worker_ready" in home.stderr, timeout_s=60)
        assert [json.loads(line)["level"] for line in home.stderr.splitlines()]
    done = home.with_settings(log_format="xml").run("worker", "branch")
    assert (done.code, "SWARMKV_LOG_FORMAT='xml'" in done.stderr) == (2, True)


def test_up_writes_json_lines_that_name_the_program(home: Home) -> None:
    with home.started("up", "--one-process", "--log-format", "json"):
        wait_until(lambda: "ready " in home.stderr, timeout_s=60)
        run = enqueue(home)
        log = home.directory / "state" / "swarmkv" / "up.log"
        wait_until(lambda: "branch_done" in log.read_text())
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        notes = [json.loads(line) for line in home.stderr.splitlines()]
    [ended] = actions(lines, "branch_done")
    assert (ended["program"], ended["run"]) == ("all-1", run)
    assert {note["action"] for note in notes} >= {"note", "program_started"}
