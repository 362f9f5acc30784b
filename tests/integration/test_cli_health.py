"""`swarmkv health`: what a container runtime is told, by exit code and in words."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from swarmkv.cli import main
from swarmkv.protocol.broker import connect
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.messages import WorkerInfo
from tests.command import Home
from tests.waiting import wait_until

HERE = socket.gethostname()


@pytest.fixture
def asked(redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """This process asks the test's broker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWARMKV_REDIS_URL", redis_url)
    return monkeypatch


def health(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str]:
    """Exit code and stdout; stderr stays empty."""
    with pytest.raises(SystemExit) as caught:
        main.run(["health", *arguments])
    out, err = capsys.readouterr()
    assert err == ""
    return caught.value.code, out


def beat(redis_url: str, role: Literal["prefill", "branch"], host: str = HERE, lease_ms: int = 60_000) -> str:
    """A heartbeat as a worker leaves it; its id."""
    info = WorkerInfo(id=f"{role}-{host}-12-abcd", role=role, model="default", pid=12, host=host, slots=8)

    async def tell() -> None:
        redis = connect(redis_url, timeout_s=5)
        await Ledger(redis, max_events=100).fleet.beat(info, [], lease_ms=lease_ms)
        await redis.aclose(close_connection_pool=True)

    asyncio.run(tell())
    return info.id


def test_a_host_without_a_worker_is_unhealthy_and_says_so(asked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = health(capsys)
    assert (code, out) == (1, f"unhealthy: no worker of host '{HERE}' has a live heartbeat\n")


def test_the_role_that_is_asked_for_must_be_there(
    asked: Any, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    branch = beat(redis_url, "branch")
    code, out = health(capsys, "--role", "branch")
    assert code == 0
    assert out.startswith(f"healthy: branch worker {branch} serves 'default', 0 of 8 slots used, last beat ")
    assert health(capsys)[0] == 0
    assert health(capsys, "--role", "prefill") == (
        1,
        f"unhealthy: no prefill worker of host '{HERE}' has a live heartbeat\n",
    )
    assert health(capsys, "--role", "all")[0] == 1
    beat(redis_url, "prefill")
    assert health(capsys, "--role", "all")[0] == 0


def test_a_worker_of_another_host_does_not_make_this_one_healthy(
    asked: Any, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = beat(redis_url, "branch", host="another-host")
    beat(redis_url, "branch", host=f"not-{HERE}")  # whose id holds this host's name
    assert health(capsys)[0] == 1
    assert health(capsys, "--worker", other)[0] == 0
    assert health(capsys, "--worker", other, "--role", "prefill")[0] == 1
    code, out = health(capsys, "--worker", "branch-nobody")
    assert (code, out) == (1, "unhealthy: no worker called 'branch-nobody' has a live heartbeat\n")


def test_a_heartbeat_that_stopped_makes_it_unhealthy(
    asked: Any, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = beat(redis_url, "branch", lease_ms=1)
    wait_until(lambda: health(capsys, "--worker", worker)[0] == 1, timeout_s=10)


def test_json_names_the_workers_or_the_problem(
    asked: Any, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = health(capsys, "--json")
    assert (code, json.loads(out)["healthy"], json.loads(out)["workers"]) == (1, False, [])
    assert "heartbeat" in json.loads(out)["problem"]
    worker = beat(redis_url, "branch")
    code, out = health(capsys, "--json")
    document = json.loads(out)
    assert (code, document["healthy"], document["problem"]) == (0, True, None)
    assert [row["id"] for row in document["workers"]] == [worker]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis://user:secret/more@localhost/0", ""])
def test_without_a_broker_it_is_unhealthy_with_the_same_code(
    asked: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, url: str
) -> None:
    asked.setenv("SWARMKV_REDIS_URL", url)
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        asked.setenv(name, str(tmp_path))
    code, out = health(capsys)
    assert code == 1
    assert out.startswith("unhealthy: ")
    assert "secret" not in out


def test_a_broker_that_does_not_answer_costs_the_timeout_and_no_more(
    asked: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with silent_server() as port:
        asked.setenv("SWARMKV_REDIS_URL", f"redis://127.0.0.1:{port}/0")
        code, out = health(capsys, "--timeout", "0.2")
    assert code == 1
    assert out.startswith("unhealthy: Redis")


@contextmanager
def silent_server() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield int(server.getsockname()[1])


def test_a_real_worker_is_healthy_while_it_lives(redis_url: str, tmp_path: Path) -> None:
    home = Home(tmp_path).with_settings(
        redis_url=redis_url, null_engine=True, lease_s=2, heartbeat_s=0.5, sweep_s=0.2
    )
    with home.started("worker", "branch") as process:
        wait_until(lambda: home.run("health", "--role", "branch").code == 0, timeout_s=60)
        process.kill()
        wait_until(lambda: home.run("health", "--role", "branch").code == 1, timeout_s=30)
