"""Run a program that dies when the process that started it dies, even by SIGKILL.

    python -I -S tether.py PARENT_PID SIGNAL PROGRAM ARGUMENT...

A script of its own instead of a preexec_fn, which would run Python between fork and exec, where a lock held
by another thread is held for ever. It becomes the program by exec, so the process id is the program's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h; survives exec


def main() -> None:
    parent, death_signal, *argv = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    # The parent may have died before prctl, and then nobody would ever send the signal.
    if os.getppid() != int(parent):
        sys.exit(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
    try:
        os.execv(argv[0], argv)  # noqa: S606 - no shell is the point
    except OSError as exc:
        sys.stderr.write(f"error: {argv[0]} cannot be executed: {exc.strerror}.\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
