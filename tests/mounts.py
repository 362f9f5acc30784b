"""Small file systems for tests, where the machine lets us mount them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted_tmpfs(path: Path, size_bytes: int, *options: str) -> Iterator[Path]:
    """A tmpfs of that size on an existing directory; skips the test where that needs rights that we lack."""
    wanted = ",".join([f"size={size_bytes}", "mode=0700", *options])
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root and the mount program")
    mount = ["mount", "-t", "tmpfs", "-o", wanted, "none", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
