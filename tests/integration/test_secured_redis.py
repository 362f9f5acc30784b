"""Redis over TLS with a user for each role: all that is needed works, all that is not is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from swarmkv.monitor.overview import read_overview
from swarmkv.monitor.web.app import create_app
from swarmkv.producer import Producer, Sampling
from swarmkv.protocol import keys
from swarmkv.protocol.broker import broker_errors
from swarmkv.protocol.errors import BrokerForbidden
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.settings import Settings
from tests.command import Home
from tests.conftest import quick_settings
from tests.fixtures_secured import *  # noqa: F403 - fixtures are found by name
from tests.fixtures_secured import needs_tls
from tests.processes import Fleet, fleet_of
from tests.secured import USERS, SecuredRedis, connected
from tests.waiting import eventually

pytestmark = needs_tls

DOCUMENT = "A clause about liability. " * 20
SHORT = Sampling(temperature=0, max_tokens=4)


@pytest.fixture(autouse=True)
def emptied(secured: SecuredRedis) -> None:
    secured.admin.flushall()
    secured.refused()


def settings_of(secured: SecuredRedis, user: str, tmp_path: Path) -> Settings:
    return quick_settings(secured.url(user), tmp_path / "store")


@pytest.fixture
def workers(secured: SecuredRedis, tmp_path: Path) -> Iterator[Fleet]:
    """Workers of both roles, with the rights of workers."""
    with fleet_of(settings_of(secured, "worker", tmp_path), tmp_path / "workers") as fleet:
        for role in ("prefill", "branch"):
            fleet.start(role, "null", null_engine=True)
        yield fleet


# -- what each role needs


async def test_every_role_does_its_work_over_tls_with_no_right_missing(
    secured: SecuredRedis, workers: Fleet, home: Home, tmp_path: Path
) -> None:
    async with Producer(settings=settings_of(secured, "producer", tmp_path)) as producer:
        early = await producer.submit("Another document.", ["What?"], sampling=SHORT, any_model=True)
        await workers.ready(producer, 2)
        run = await producer.submit(DOCUMENT, ["What?", "Why?"], sampling=SHORT)
        events = [event async for event in run.events()]
        assert (await run.results(20)).state == (await early.results(20)).state == "done"
        assert events[-1].type == "run_done"
        waiting = await producer.submit(DOCUMENT, ["What?"], model="nobody", any_model=True)
        assert await waiting.cancel()
        late = await producer.submit(DOCUMENT, ["What?"], model="nobody", any_model=True, deadline_s=0.1)
        assert (await late.results(20)).state == "failed"
    (home.directory / "document.txt").write_text(DOCUMENT)
    asked = home.run("enqueue", "document.txt", "-p", "What?", "--max-tokens", "4", "--wait", "--json")
    assert (asked.stderr, asked.code) == ("", 0)
    assert [worker.end() for worker in workers.processes] == [0, 0], workers.processes[0].log
    assert secured.refused() == []


async def test_work_of_a_killed_worker_is_swept_with_the_rights_of_a_worker(
    secured: SecuredRedis, workers: Fleet, tmp_path: Path
) -> None:
    async with Producer(settings=settings_of(secured, "producer", tmp_path)) as producer:
        await workers.ready(producer, 2)
        run = await producer.submit(DOCUMENT, ["What?"] * 8, sampling=SHORT)
        workers.processes[1].kill()
        workers.start("branch", "null", null_engine=True)
        assert (await run.results(20)).state == "done"
    assert secured.refused() == []


async def test_a_monitor_sees_runs_workers_and_answers_and_nothing_that_it_reads_is_changed(
    secured: SecuredRedis, workers: Fleet, home: Home, tmp_path: Path
) -> None:
    async with Producer(settings=settings_of(secured, "producer", tmp_path)) as producer:
        await workers.ready(producer, 2)
        run = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)
        assert (await run.results(20)).state == "done"
    assert [worker.end() for worker in workers.processes] == [0, 0]
    secured.admin.zadd("swarmkv:runs", {"abcdef": 1})  # expired entries, which others drop
    secured.admin.zadd("swarmkv:workers", {"branch-gone": 1})
    monitor = home.with_settings(redis_url=secured.url("monitor"))
    for command in (("runs",), ("workers",), ("dead", "ls"), ("doctor",)):
        assert monitor.run(*command, "--json").code in (0, 1, 5), command
    shown = monitor.run("show", run.id, "--json")
    assert (shown.code, shown.json["state"]) == (0, "done")
    assert monitor.run("results", run.id, "--json").code == 0
    assert secured.admin.zscore("swarmkv:runs", "abcdef") == 1
    for writing in (("cancel", run.id), ("enqueue", "-", "-p", "What?")):
        refused = monitor.run(*writing, stdin=DOCUMENT.encode())
        assert refused.code == 4
        assert "no permissions" in refused.stderr.lower()


async def test_counts_are_kept_by_workers_and_producers_and_read_by_a_monitor(
    secured: SecuredRedis, workers: Fleet, tmp_path: Path
) -> None:
    async with Producer(settings=settings_of(secured, "producer", tmp_path)) as producer:
        await workers.ready(producer, 2)
        run = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)
        assert (await run.results(20)).state == "done"
    for user in ("worker", "producer"):

        async def sweep(client: Any, user: str = user) -> None:
            secured.admin.set(keys.SWEPT, 0)  # a minute has passed
            await Ledger(client, max_events=100).fleet.sweep(max_solo_crashes=2, lease_ms=2_000)
            assert secured.admin.keys(keys.key("model_stats_minute", alias="default", minute="*")), user

        secured.admin.delete(*secured.admin.keys(keys.key("model_stats_minute", alias="*", minute="*")), "none")
        await connected(secured.url(user), sweep)

    async def watch(client: Any) -> None:
        ledger = Ledger(client, max_events=100)

        async def sees_the_store() -> bool:
            stores = (await read_overview(ledger)).stores
            return any(snapshot.hits == 1 for store in stores for snapshot in store.info.snapshots)

        await eventually(sees_the_store)
        overview = await read_overview(ledger)
        assert overview.models[0].hour.counters["branches_done"] == 1
        assert overview.broker is not None

    await connected(secured.url("monitor"), watch)
    assert secured.refused() == []


async def test_an_operator_tells_workers_what_producers_and_monitors_may_not(
    secured: SecuredRedis, workers: Fleet, home: Home, tmp_path: Path
) -> None:
    async with Producer(settings=settings_of(secured, "operator", tmp_path)) as producer:
        await workers.ready(producer, 2)
        run = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)
        key = (await run.results(20)).snapshot
    operator = home.with_settings(redis_url=secured.url("operator"))
    for command in (
        ("workers", "pause", "branch"), ("workers", "resume", "branch"),
        ("snapshots", "pin", str(key), "--remote"), ("snapshots", "unpin", str(key), "--remote"),
        ("snapshots", "rm", str(key), "--remote"),
    ):  # fmt: skip
        done = operator.run(*command)
        assert done.code == 0, done.stderr
    assert secured.refused() == []
    for user in ("producer", "monitor"):
        refused = home.with_settings(redis_url=secured.url(user)).run("workers", "pause", "branch")
        assert (refused.code, "users.acl lists the rights" in refused.stderr) == (4, True)
    secured.refused()
    assert operator.run("workers", "drain", "branch").code == 0
    assert workers.processes[1].process.wait(timeout=20) == 0
    assert secured.refused() == []


async def test_the_page_shows_all_of_it_with_the_rights_of_a_monitor_and_acts_with_those_of_an_operator(
    secured: SecuredRedis, workers: Fleet, tmp_path: Path
) -> None:
    async with Producer(settings=settings_of(secured, "producer", tmp_path)) as producer:
        await workers.ready(producer, 2)
        done = await (await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)).results(20)
        waits = await producer.submit(DOCUMENT, ["What?"], model="nobody", any_model=True)
    paths = (
        "/",
        "/runs",
        f"/runs/{done.run_id}",
        "/workers",
        "/snapshots",
        "/dead",
        "/audit",
        "/metrics",
    )
    for user, status in (("monitor", 503), ("operator", 200)):
        settings = settings_of(secured, user, tmp_path).model_copy(
            update={"monitor_token": "a-token-of-some-length"}
        )
        app = create_app(settings, settings.redis_url, "127.0.0.1")
        with TestClient(
            app, base_url="http://127.0.0.1", headers={"authorization": "Bearer a-token-of-some-length"}
        ) as page:
            for path in (*paths, "/readyz"):
                assert page.get(path).status_code == 200, (user, path)
            # /readyz asks once whether scripts are taken, and remembers that they are not.
            assert secured.refused() == (["monitor: command script|load"] if user == "monitor" else [])
            answer = page.post(f"/runs/{waits.id}/cancel")
            assert answer.status_code == status, answer.text
            if status == 503:
                assert "Redis refused a command" in answer.text
                secured.refused()
            assert secured.refused() == []


# -- what each role is refused

FORBIDDEN = {
    "producer": [
        ("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("SCAN", "0"), ("ACL", "LIST"),
        ("EVAL", "return 1", "0"), ("SCRIPT", "FLUSH"), ("CLIENT", "LIST"), ("CLIENT", "KILL", "TYPE", "normal"),
        ("SHUTDOWN",), ("MONITOR",), ("SAVE",), ("MODULE", "LIST"), ("REPLICAOF", "NO", "ONE"),
        ("SET", "other", "1"), ("GET", "other"), ("HSET", "swarmkv:worker:x", "a", "b"),
        ("SADD", "swarmkv:models", "x"),
        ("PUBLISH", "other", "x"), ("SUBSCRIBE", "swarmkv:control"),
        ("HSET", "swarmkv:command:x", "state", "waiting"), ("ZADD", "swarmkv:commands:branch-1", "1", "x"),
        ("HGETALL", "swarmkv:command:x"),
    ],
    "operator": [
        ("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("ACL", "LIST"), ("EVAL", "return 1", "0"),
        ("HSET", "swarmkv:worker:x", "a", "b"), ("SADD", "swarmkv:models", "x"), ("SET", "other", "1"),
        ("SUBSCRIBE", "swarmkv:control"),
    ],
    "worker": [
        ("FLUSHALL",), ("CONFIG", "SET", "dir", "/"), ("KEYS", "*"), ("ACL", "LIST"), ("SCRIPT", "KILL"),
        ("MONITOR",),
        ("SET", "swarmkv:document:x", "forged"), ("DEL", "swarmkv:document:x"),
        ("SET", "other", "1"), ("SUBSCRIBE", "other"),
    ],
    "monitor": [
        ("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("MONITOR",), ("EVALSHA", "0" * 40, "0"),
        ("SCRIPT", "LOAD", "return 1"), ("HSET", "swarmkv:run:x", "a", "b"), ("DEL", "swarmkv:run:x"),
        ("ZREM", "swarmkv:runs", "x"), ("SET", "swarmkv:run:x", "1"),
        ("XADD", "swarmkv:run:x:events", "*", "e", "1"), ("HSET", "swarmkv:command:x", "state", "waiting"),
        ("ZADD", "swarmkv:commands:branch-1", "1", "x"),
        ("PUBLISH", "swarmkv:control", "x"), ("SUBSCRIBE", "swarmkv:control"), ("GET", "swarmkv:document:x"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("user", "command"),
    [(user, command) for user, commands in FORBIDDEN.items() for command in commands],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:30],
)
async def test_what_a_role_does_not_need_is_refused(
    secured: SecuredRedis, user: str, command: tuple[str, ...]
) -> None:
    async def call(client: Any) -> None:
        with pytest.raises(BrokerForbidden), broker_errors():
            await client.execute_command(*command)

    await connected(secured.url(user), call)


async def test_a_script_gives_no_rights_that_its_caller_lacks(secured: SecuredRedis) -> None:
    async def call(client: Any) -> None:
        digest = await client.script_load("return redis.call('FLUSHALL')")
        with pytest.raises(BrokerForbidden), broker_errors():
            await client.evalsha(digest, 0)

    await connected(secured.url("producer"), call)


async def test_the_users_of_the_example_cannot_log_in_until_a_password_is_set(secured: SecuredRedis) -> None:
    lines = USERS.read_text().splitlines()
    assert [line.split()[1:3] for line in lines] == [
        [name, "off"] for name in ("default", "producer", "operator", "worker", "monitor")
    ]
    assert not any(word.startswith((">", "#", "nopass")) for line in lines for word in line.split())
