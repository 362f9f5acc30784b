"""Fixtures shared by all tests: a real Valkey (and redis-server where it is installed), a fresh database and a
fresh snapshot store for each test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from swarmkv.producer import Producer
from swarmkv.protocol.broker import connect
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.settings import Settings
from tests.fixtures_models import *  # noqa: F403 - fixtures are found by name
from tests.processes import Fleet, fleet_of
from tests.waiting import wait_until

SOCKET_NAME = "broker.sock"


@dataclass(frozen=True)
class Server:
    """A running broker of this test run."""

    kind: str
    url: str
    process: subprocess.Popen[bytes]


def start_server(binary: str, directory: Path, kind: str, *options: str) -> Server:
    """Start a broker on a unix socket in `directory` and wait until it answers."""
    socket = directory / SOCKET_NAME
    arguments = ["--port", "0", "--unixsocket", str(socket), "--dir", str(directory), "--save", ""]
    with (directory / "broker.log").open("wb") as log:
        process = subprocess.Popen([binary, *arguments, *options], stdout=log, stderr=log)
    url = f"unix://{socket}?db=0"

    def answers() -> bool:
        try:
            return bool(redis.Redis.from_url(url).ping())
        except redis.exceptions.ConnectionError:
            return False

    wait_until(answers, timeout_s=20)
    return Server(kind, url, process)


def stop_server(server: Server) -> None:
    """End a broker that `start_server` started."""
    server.process.terminate()
    server.process.wait(timeout=20)


def server_binary(kind: str) -> str | None:
    """Path of the broker program of this kind, None if it is not installed."""
    if kind == "redis":
        return shutil.which("redis-server")
    from swarmkv.cli.broker import server_binary as embedded

    return str(embedded())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Modules that say EVERY_BROKER run once on the embedded Valkey and once on redis-server."""
    if "server" in metafunc.fixturenames and getattr(metafunc.module, "EVERY_BROKER", False):
        metafunc.parametrize("server", ["valkey", "redis"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker of the kind asked for, the embedded Valkey if none is."""
    kind = getattr(request, "param", "valkey")
    binary = server_binary(kind)
    if binary is None:
        pytest.skip("redis-server is not installed on this machine")
    started = start_server(binary, tmp_path_factory.mktemp(kind), kind)
    yield started
    stop_server(started)


@pytest.fixture
def redis_url(server: Server) -> str:
    """URL of an empty database."""
    redis.Redis.from_url(server.url).flushall()
    return server.url


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    """Settings of a small, quick installation on the test's own broker database and store."""
    return quick_settings(redis_url, tmp_path / "store")


def quick_settings(redis_url: str, store_dir: Path) -> Settings:
    """Short leases and a small context, so that faults are noticed within a test's patience."""
    return Settings(
        _env_file=None,
        redis_url=redis_url,
        store_dir=store_dir,
        store_budget_bytes=256 * 1024 * 1024,
        n_ctx=4096,
        n_batch=512,
        n_ubatch=128,
        slots=8,
        residents=3,
        threads=1,
        lease_s=2.0,
        heartbeat_s=0.5,
        sweep_s=0.2,
        poll_s=0.5,
        grace_s=5.0,
    )


@pytest.fixture
async def ledger(settings: Settings) -> AsyncIterator[Ledger]:
    """A ledger over the test's database."""
    client = connect(settings.redis_url, timeout_s=5)
    yield Ledger(client, max_events=settings.max_events)
    await client.aclose(close_connection_pool=True)


@pytest.fixture
async def producer(settings: Settings) -> AsyncIterator[Producer]:
    """A producer on the test's database."""
    async with Producer(settings=settings) as producer:
        yield producer


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[Fleet]:
    """Starts worker processes on the test's database and store; they end with the test."""
    with fleet_of(settings, tmp_path / "logs") as fleet:
        yield fleet
