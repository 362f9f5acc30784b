"""The embedded broker: a real Valkey, started, found, shared and stopped."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swarmkv.cli import broker
from swarmkv.cli.broker import ServerClaim
from swarmkv.cli.supervise import Supervisor
from swarmkv.protocol import place as places
from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.place import BrokerPlace
from swarmkv.protocol.settings import Settings


@pytest.fixture
def place(tmp_path: Path) -> BrokerPlace:
    return BrokerPlace(tmp_path / "run", tmp_path / "data")


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    async with Supervisor(tmp_path / "log", notice=lambda message: None) as supervisor:
        yield supervisor


async def start(place: BrokerPlace, supervisor: Supervisor) -> ServerClaim:
    claim = await broker.claim(place)
    assert isinstance(claim, ServerClaim)
    await supervisor.start(claim.program())
    await supervisor.during(broker.wait_live(place.socket))
    return claim


def command(place: BrokerPlace, *words: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(place.socket))
        client.sendall(" ".join(words).encode() + b"\r\n")
        return client.recv(65_536)


async def test_a_started_broker_answers_on_a_private_socket_and_evicts_nothing(
    place: BrokerPlace, supervisor: Supervisor
) -> None:
    claim = await start(place, supervisor)
    assert place.runtime_dir.stat().st_mode & 0o777 == 0o700
    assert place.socket.stat().st_mode & 0o777 == 0o700
    assert b"noeviction" in command(place, "CONFIG", "GET", "maxmemory-policy")
    assert b"\r\n0\r\n" in command(place, "CONFIG", "GET", "port")
    claim.close()


async def test_what_a_stopped_broker_accepted_is_there_again(place: BrokerPlace, tmp_path: Path) -> None:
    async with Supervisor(tmp_path / "log", notice=lambda message: None) as supervisor:
        claim = await start(place, supervisor)
        command(place, "SET", "kept", "value")
        claim.close()
    assert not places.is_live(place.socket)
    async with Supervisor(tmp_path / "log", notice=lambda message: None) as supervisor:
        claim = await start(place, supervisor)
        assert b"value" in command(place, "GET", "kept")
        claim.close()


async def test_a_second_claim_finds_the_live_broker(place: BrokerPlace, supervisor: Supervisor) -> None:
    claim = await start(place, supervisor)
    assert await broker.claim(place) == place.socket
    claim.close()


async def test_a_shell_with_another_runtime_directory_finds_it_through_its_data(
    place: BrokerPlace, supervisor: Supervisor, tmp_path: Path
) -> None:
    claim = await start(place, supervisor)
    elsewhere = BrokerPlace(tmp_path / "elsewhere", place.data_dir)
    assert places.find_live(elsewhere) == place.socket
    assert await broker.claim(elsewhere) == place.socket
    claim.close()


@pytest.mark.parametrize(
    ("answer", "is_live", "is_ready"),
    [
        (b"+PONG\r\n", True, True),
        (b"-MISCONF Errors writing to the AOF file: No space left on device\r\n", True, True),
        (b"-LOADING Valkey is loading the dataset in memory\r\n", True, False),
        (b"HTTP/1.1 400 Bad Request\r\n", False, False),
        (b"", False, False),
    ],
)
def test_a_broker_that_answers_by_an_error_is_there(
    place: BrokerPlace, answer: bytes, is_live: bool, is_ready: bool
) -> None:
    place.runtime_dir.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place.socket))
        server.listen()
        answering = threading.Thread(target=answer_pings, args=(server, answer))
        answering.start()
        assert places.find_live(place) == (place.socket if is_live else None)
        assert places.is_ready(place.socket) is is_ready
        server.shutdown(socket.SHUT_RDWR)
        answering.join(timeout=10)


def answer_pings(server: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError):  # shut down
        while True:
            client, _ = server.accept()
            with client:
                client.recv(64)
                client.sendall(answer)


async def test_a_stale_socket_is_no_broker_and_makes_room(place: BrokerPlace, supervisor: Supervisor) -> None:
    place.runtime_dir.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(place.socket))
    assert places.find_live(place) is None
    claim = await start(place, supervisor)
    assert places.find_live(place) == place.socket
    claim.close()


async def test_data_in_use_by_a_silent_server_is_not_opened_twice(
    place: BrokerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await broker.claim(place)
    assert isinstance(first, ServerClaim)
    monkeypatch.setattr(broker, "_START_TIMEOUT_S", 0.1)
    with pytest.raises(BrokerError, match="does not answer"):
        await broker.claim(place)
    first.close()
    again = await broker.claim(place)
    assert isinstance(again, ServerClaim)
    again.close()


async def test_the_lock_outlives_the_starter_as_long_as_the_server_runs(
    place: BrokerPlace, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await start(place, supervisor)
    claim.close()
    monkeypatch.setattr(places, "is_live", lambda path: False)
    monkeypatch.setattr(broker, "_START_TIMEOUT_S", 0.1)
    with pytest.raises(BrokerError, match="Another broker holds"):
        await broker.claim(place)


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    with pytest.raises(BrokerError, match="open to other users"):
        broker.make_private(tmp_path / "run")


def test_a_symbolic_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    with pytest.raises(BrokerError, match="cannot be trusted"):
        broker.make_private(tmp_path / "run")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused_for_starting_and_for_finding(place: BrokerPlace) -> None:
    place.runtime_dir.mkdir(mode=0o700)
    os.chown(place.runtime_dir, 12_345, 12_345)
    with pytest.raises(BrokerError, match="belongs to user 12345"):
        broker.make_private(place.runtime_dir)
    with pytest.raises(BrokerError, match="cannot be trusted"):
        places.find_live(place)


async def test_a_socket_path_that_the_system_cannot_take_is_refused_with_its_length(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"has \d+ bytes; the system takes 107"):
        await broker.claim(BrokerPlace(tmp_path / ("x" * 100), None))


def test_without_a_url_and_without_a_broker_both_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    settings = Settings(_env_file=None)
    with pytest.raises(BrokerError, match=f"none runs on {tmp_path}/swarmkv/broker.sock") as caught:
        places.redis_url(settings)
    assert "swarmkv up" in caught.value.hint
    assert places.redis_url(settings.model_copy(update={"redis_url": "redis://h"})) == "redis://h"


def test_the_server_binary_runs() -> None:
    done = subprocess.run([str(broker.server_binary()), "--version"], capture_output=True, check=True)
    assert b"server v=" in done.stdout
