"""retry, dead and refusals for want of room on the command line, against a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import redis

from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import SnapshotMissing
from swarmkv.protocol.ledger import Ledger
from tests.command import Done, Home
from tests.integration.test_ledger import make_ready, take
from tests.waiting import wait_until

DOCUMENT = b"The retry limit is four.\n"
ENTRY_KEYS = {
    *("id", "run_id", "index", "branch", "model", "code", "message", "hint"),
    *("attempts", "crashes", "solo_crashes", "rebuilds", "dead_ms"),
}


@pytest.fixture
def home(redis_url: str, tmp_path: Path) -> Home:
    """A home on the test's broker, whose workers need no model; the alias `default` is known."""
    redis.Redis.from_url(redis_url).sadd("swarmkv:models", "default")
    return Home(tmp_path).with_settings(redis_url=redis_url, null_engine=True)


def enqueue(home: Home, *arguments: str, document: bytes = DOCUMENT) -> Done:
    return home.run("enqueue", "-", *arguments, stdin=document)


def park(redis_url: str) -> None:
    """Give the one queued branch up, as a worker does whose store keeps nothing."""

    async def work() -> None:
        client = connect(redis_url, timeout_s=5)
        ledger = Ledger(client, max_events=1000)
        await make_ready(ledger)
        (branch,) = await take(ledger)
        await ledger.jobs.rebuild("w", branch, SnapshotMissing("The store keeps nothing."), max_rebuilds=0)
        await client.aclose(close_connection_pool=True)

    asyncio.run(work())


def test_a_cancelled_run_is_retried_and_answered(home: Home) -> None:
    run = enqueue(home, "-p", "Why?", "--max-tokens", "2").stdout.strip()
    assert home.run("cancel", run).code == 0
    nothing = home.run("retry", run, "--failed")
    assert (nothing.code, f"Run {run} has no failed branch" in nothing.stderr) == (0, True)
    retried = home.run("retry", run, "--json")
    assert (retried.code, retried.json) == (0, {"run_id": run, "retried": ["branch-1"], "state": "queued"})
    assert "warning: No worker for model 'default' is alive" in retried.stderr
    with home.started("worker", "all"):
        wait_until(lambda: home.run("results", run).code == 0, timeout_s=60)
        assert home.run("retry", run, "--json").json == {"run_id": run, "retried": [], "state": "done"}


def test_a_dead_branch_is_listed_shown_retried_and_dropped(home: Home, redis_url: str) -> None:
    run = enqueue(home, "-p", "risks=secret words").stdout.strip()
    assert home.run("dead", "ls", "--json").json == []
    park(redis_url)
    (entry,) = home.run("dead", "ls", "--json").json
    assert entry.keys() == ENTRY_KEYS
    assert (entry["id"], entry["branch"], entry["code"]) == (f"{run}:0", "risks", "snapshot_missing")
    listed, shown = home.run("dead", "ls").stdout, home.run("dead", "show", f"{run}/risks").stdout
    assert f"{run}:0" in listed
    assert "snapshot_missing" in listed
    assert "The store keeps nothing." in shown
    assert "secret" not in listed + shown + str(entry)
    assert home.run("dead", "show", entry["id"], "--json").json == entry
    retried = home.run("dead", "retry", f"{run}/risks", "--json")
    assert retried.json == {"run_id": run, "retried": ["risks"]}
    assert home.run("show", run, "--json").json["branches"][0]["state"] == "waiting"
    park(redis_url)
    assert home.run("dead", "drop", "--all", "--json").json == {"dropped": 1}
    assert home.run("dead", "ls", "--json").json == []
    assert home.run("show", run, "--json").json["state"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dead", "show", "nothing"), "There is no dead-letter entry 'nothing'"),
        (("dead", "retry", "aa:0"), "There is no dead-letter entry 'aa:0'"),
        (("dead", "drop", "aa:0"), "There is no dead-letter entry 'aa:0'"),
        (("dead", "drop"), "give entries, or --all"),
        (("dead", "drop", "aa:0", "--all"), "give entries, or --all"),
        (("retry", "0" * 12), "There is no run"),
        (("retry", "x\x1b"), "There is no run"),
        (("retry", "0" * 12, "--deadline", "-1"), "deadline of -1.0 s is out of range"),
    ],
)
def test_what_cannot_be_put_back_is_refused_with_code_two(
    home: Home, arguments: tuple[str, ...], message: str
) -> None:
    done = home.run(*arguments, "--json")
    assert done.code == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.json["error"]["message"]


def test_a_run_whose_document_expired_is_refused_with_code_two(home: Home, redis_url: str) -> None:
    run = enqueue(home, "-p", "Why?").stdout.strip()
    home.run("cancel", run)
    client = redis.Redis.from_url(redis_url)
    client.delete(*client.keys("swarmkv:document:*"))  # type: ignore[misc]
    done = home.run("retry", run, "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "document_gone")
    assert "as a new run" in done.stderr


def test_an_enqueue_over_a_limit_ends_with_code_six_and_the_numbers(home: Home) -> None:
    limited = home.with_settings(max_open_branches=3)
    assert enqueue(limited, "-p", "a", "-p", "b").code == 0
    done = enqueue(limited, "-p", "a", "-p", "b", "--json")
    assert (done.code, done.json["error"]["code"]) == (6, "overloaded")
    assert "holds 2 open branches; 2 more would pass the limit of 3" in done.stderr
    assert "Try again" in done.stderr
    assert len(home.run("runs", "--json").json) == 1
