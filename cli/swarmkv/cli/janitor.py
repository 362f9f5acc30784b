"""Remove directories when the process that started this one ends, however it ends.

    python -I -S janitor.py DIRECTORY...    (stdin: a pipe whose other end the starter holds)

The end of stdin is the one sign that a process cannot fail to give, be it killed by SIGKILL.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

_PATIENCE_S = 10.0  # programs that die with the starter may still write for a moment
_RETRY_S = 0.05


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    deadline = time.monotonic() + _PATIENCE_S
    while any(map(os.path.lexists, sys.argv[1:])) and time.monotonic() < deadline:
        for directory in sys.argv[1:]:
            shutil.rmtree(directory, ignore_errors=True)
        time.sleep(_RETRY_S)


if __name__ == "__main__":
    main()
