"""The files of a loaded model. Their weights are mapped: whoever writes into one changes a model that is in use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from swarmkv.protocol.errors import ModelError
from swarmkv.workers.engine.fingerprint import model_parts


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    fd: int
    size_bytes: int
    mtime_ns: int


class WeightFiles:
    """Knows whether the files are as they were when it was made: before their digest was taken.

    A file that another was renamed over is still ours, and unchanged. Owns descriptors until `close`.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError; nothing is left open then."""
        self._files: list[_File] = []
        try:
            for part in model_parts(path):
                self._files.append(_opened(part))
        except OSError:
            self.close()
            raise

    def check(self) -> None:
        """Raise ModelError when a file was written to since. Takes a microsecond a file."""
        for file in self._files:
            status = os.fstat(file.fd)
            if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
                raise ModelError(
                    f"The model file {file.path} was overwritten while it was in use.",
                    hint="Start the worker again. To change a model safely, rename the new file over the old one.",
                )

    def close(self) -> None:
        """Any number of times."""
        while self._files:
            os.close(self._files.pop().fd)


def _opened(path: Path) -> _File:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    status = os.fstat(fd)
    return _File(path, fd, status.st_size, status.st_mtime_ns)
