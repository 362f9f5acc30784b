"""Pins: snapshots that people want kept. They live in the store's directory, so that every worker on it obeys them,
whichever Redis it serves, and no restart forgets them.

A pin is an empty file beside its snapshot, and goes with it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from io import FileIO

from swarmkv.snapshots.directory import SUFFIX, open_private
from swarmkv.snapshots.meta import KEY_PATTERN

PIN_SUFFIX = ".pin"


def pinned_keys(dir_fd: int) -> frozenset[str]:
    """The keys that are pinned; a file that another user has put there pins nothing."""
    names = (name for name in os.listdir(dir_fd) if name.endswith(PIN_SUFFIX))
    keys = ((name, name.removesuffix(PIN_SUFFIX)) for name in names)
    return frozenset(key for name, key in keys if KEY_PATTERN.fullmatch(key) and _is_ours(dir_fd, name))


def pin(dir_fd: int, key: str) -> None:
    """Pin a snapshot that is there; any number of times. Call it inside `locked`. Raises OSError."""
    FileIO(open_private(dir_fd, key + PIN_SUFFIX, os.O_WRONLY | os.O_CREAT), "w").close()


def unpin(dir_fd: int, key: str) -> bool:
    """Whether it was pinned."""
    try:
        os.unlink(key + PIN_SUFFIX, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True


def sweep_pins(dir_fd: int) -> None:
    """Remove the pins of snapshots that are gone. Call it inside `locked`."""
    there = set(os.listdir(dir_fd))
    for key in pinned_keys(dir_fd):
        if key + SUFFIX not in there:
            with suppress(FileNotFoundError):
                unpin(dir_fd, key)


def _is_ours(dir_fd: int, name: str) -> bool:
    try:
        status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
