"""`swarmkv workers` and `swarmkv snapshots`, where they tell workers something."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmkv.protocol.settings import Settings
from swarmkv.snapshots import SnapshotStore
from tests.command import Home
from tests.processes import Fleet, WorkerProcess
from tests.waiting import wait_until

DOCUMENT = "The retry limit is four.\n" * 20


@pytest.fixture
def home(tmp_path: Path, settings: Settings) -> Home:
    directory = tmp_path / "home"
    directory.mkdir()
    (directory / "d.txt").write_text(DOCUMENT)
    return Home(directory).with_settings(redis_url=settings.redis_url, null_engine="1")


@pytest.fixture
def worker(fleet: Fleet, home: Home) -> WorkerProcess:
    """One process with both roles; its store is not the home's."""
    process = fleet.start("all", "null", null_engine=True)
    wait_until(lambda: len(home.run("workers", "--json").json) == 2)
    return process


def test_workers_lists_and_pauses_resumes_and_drains(home: Home, worker: WorkerProcess) -> None:
    rows = home.run("workers", "--json").json
    assert {(row["role"], row["state"]) for row in rows} == {("prefill", "running"), ("branch", "running")}
    branch = next(row["id"] for row in rows if row["role"] == "branch")
    paused = home.run("workers", "pause", branch, "--json")
    assert (paused.code, paused.json["workers"][0]) == (
        0,
        {"worker": branch, "ok": True, "code": "", "message": paused.json["message"]},
    )
    assert {row["state"] for row in home.run("workers", "--json").json if row["id"] == branch} == {"paused"}
    assert "paused" in home.run("workers").stdout
    resumed = home.run("workers", "resume", "branch")
    assert (resumed.code, "takes jobs again" in resumed.stderr, resumed.stdout) == (0, True, "")
    drained = home.run("workers", "drain", branch[:-2], "--grace", "1")
    assert (drained.code, "drains: no job may take 1 s" in drained.stderr) == (0, True)
    assert worker.process.wait(timeout=20) == 0, worker.log
    gone = home.run("workers", "pause", branch, "--json")
    assert (gone.code, gone.json["error"]["code"]) == (5, "worker_not_found")
    assert home.run("workers").code == 5


def test_what_cannot_be_told_is_refused_in_words(home: Home, worker: WorkerProcess) -> None:
    refused = {
        ("pause", "nobody"): 5,
        ("pause", ""): 2,
        ("drain", "branch", "--grace", "1e9"): 2,
        ("resume", "branch", "--timeout", "1e9"): 2,
    }
    for arguments, code in refused.items():
        done = home.run("workers", *arguments)
        assert (done.code, done.stdout) == (code, ""), (arguments, done)
        assert "error:" in done.stderr
        assert "should not have happened" not in done.stderr


def test_snapshots_are_pinned_and_dropped_through_workers_where_no_store_is(
    home: Home, worker: WorkerProcess, settings: Settings
) -> None:
    asked = home.run("enqueue", "d.txt", "-p", "What?", "--wait", "--json")
    key = asked.json["snapshot"]
    assert not (home.directory / "store").exists()
    store = SnapshotStore(settings.store_dir, settings.store_budget_bytes)
    pinned = home.run("snapshots", "pin", key)
    assert (pinned.code, f"Snapshot {key} is pinned." in pinned.stderr) == (0, True)
    assert "asking the workers" in pinned.stderr
    assert store.pinned() == {key}
    unpinned = home.run("snapshots", "unpin", key, "--remote", "--json")
    assert (unpinned.code, store.pinned()) == (0, frozenset()), unpinned
    assert unpinned.json[0]["message"] == f"Snapshot {key} is no longer pinned."
    dropped = home.run("snapshots", "rm", key, "--remote")
    assert (dropped.code, store.ls()) == (0, [])
    missing = home.run("snapshots", "rm", key, "--remote", "--json")
    assert (missing.code, missing.json["error"]["code"]) == (1, "command_refused")
    again = home.run("enqueue", "d.txt", "-p", "What?", "--wait", "--json")
    assert (again.json["state"], again.json["prefills_run"]) == ("done", 1)
    assert home.run("workers", "pause", "branch").code == 0
    assert home.run("enqueue", "d.txt", "-p", "Why?").code == 0
    refused = home.run("snapshots", "rm", key, "--remote")
    assert (refused.code, "Runs that have not ended need" in refused.stderr) == (1, True)
    assert home.run("snapshots", "rm", key, "--remote", "--force").code == 0
    assert store.ls() == []
