"""Telling whether two processes, perhaps in two containers, see the same store directory.

The directory holds one random token, made by whoever comes first. The token names the boot of the
machine too: a directory that was copied (baked into an image, restored from a backup) does not pass
for the original.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from swarmkv.snapshots.directory import StoreDirectory, read_small, write_small

NAME = "handshake"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_RANDOM_BYTES = 16


def directory_token(directory: StoreDirectory) -> str:
    """The directory's token, made if it has none of this boot."""
    boot = _boot()
    with directory.locked() as dir_fd:
        found = read_small(dir_fd, NAME)
        if _is_of_boot(found, boot):
            return found
        token = f"{boot}-{secrets.token_hex(_RANDOM_BYTES)}"
        write_small(dir_fd, NAME, token)
    return token


def holds_token(directory: StoreDirectory, token: str) -> bool:
    """Whether this process sees the directory that gave `token`."""
    with directory.opened() as dir_fd:
        return bool(token) and read_small(dir_fd, NAME) == token


def _is_of_boot(token: str, boot: str) -> bool:
    return token.startswith(boot + "-") and len(token) == len(boot) + 1 + 2 * _RANDOM_BYTES


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return os.uname().nodename
