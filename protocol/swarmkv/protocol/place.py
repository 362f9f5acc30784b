"""Finding the embedded broker: a unix socket in a place that every process of this user knows.

    $XDG_RUNTIME_DIR/swarmkv, else /tmp/swarmkv-<uid>    0700: broker.sock
    $XDG_STATE_HOME/swarmkv, else ~/.local/state/swarmkv 0700: append-only data, broker.lock

The lock file is held by the server process itself (the descriptor is inherited), so it tells whether a
server is using the data however its starter ended. It holds the path of the socket: a shell with another
XDG_RUNTIME_DIR finds the broker through it.
"""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from swarmkv.protocol.errors import BrokerError
from swarmkv.protocol.settings import Settings

_ANSWER_TIMEOUT_S = 2.0
_MAX_SOCKET_PATH_BYTES = 107  # sun_path of sockaddr_un, less its NUL


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """Where an embedded broker listens and keeps its data; `data_dir` None: it keeps nothing."""

    runtime_dir: Path
    data_dir: Path | None

    @property
    def socket(self) -> Path:
        return self.runtime_dir / "broker.sock"

    @property
    def lock_file(self) -> Path | None:
        """The file that names the socket of the server that uses the data."""
        return None if self.data_dir is None else self.data_dir / "broker.lock"

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
    """Whether a server on this unix socket answers PING with a Redis reply, be it an error.

    One that still loads its data (-LOADING) or cannot write it (-MISCONF) is there: what it says of itself
    helps, and a second server on its data would not.
    """
    return _answer(path).startswith((b"+", b"-"))


def is_ready(path: Path) -> bool:
    """Whether it is live and has loaded its data."""
    answer = _answer(path)
    return answer.startswith((b"+", b"-")) and not answer.startswith(b"-LOADING")


def _answer(path: Path) -> bytes:
    """The first bytes of what a server on `path` answers to PING; none when nobody does."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_ANSWER_TIMEOUT_S)
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(64)
    except OSError:
        return b""


def check_socket_path(path: Path) -> None:
    """Raise BrokerError when the system takes no unix socket of so long a path."""
    length = len(os.fsencode(path))
    if length > _MAX_SOCKET_PATH_BYTES:
        raise BrokerError(
            f"The socket path {path} has {length} bytes; the system takes {_MAX_SOCKET_PATH_BYTES}.",
            hint="Set XDG_RUNTIME_DIR to a shorter directory; for a demo, TMPDIR.",
        )


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


def _recorded_socket(place: BrokerPlace) -> Path | None:
    if place.lock_file is None:
        return None
    try:
        recorded = place.lock_file.read_bytes()
    except OSError:
        return None
    return Path(os.fsdecode(recorded)) if recorded else None
