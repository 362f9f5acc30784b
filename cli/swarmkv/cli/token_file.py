"""A token that is made once and kept in a file, so that a page can be started without thinking of one."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from swarmkv.protocol.errors import ConfigError

_RANDOM_BYTES = 24
_MODE = 0o600
_HINT = "Name another file by SWARMKV_MONITOR_TOKEN_FILE, in a directory that this user can write to."


def kept_token(path: Path) -> str:
    """The token in `path`; a new one, for this user's eyes alone, if there is no file.

    Raises ConfigError when it cannot be read or made, is empty, or others may read it.
    """
    try:
        _make(path)
        return _read(path)
    except OSError as exc:
        raise ConfigError(f"The token file {path} cannot be used: {exc.strerror}.", hint=_HINT) from exc


def _make(path: Path) -> None:
    """Whole or not at all, and never over one that is there: two processes may start at once."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_urlsafe(_RANDOM_BYTES) + "\n")
        with suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        token = file.read().strip()
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"The token file {path} is open to other users (mode {mode:04o}).", hint=f"Run: chmod 600 {path}"
        )
    if not token:
        raise ConfigError(f"The token file {path} is empty.", hint="Remove it: a new token is made then.")
    return token
