"""Run docker-compose.yml for real: from nothing to a stack that was scaled, killed, mended, drained and stopped."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.containers import images, machine
from tests.containers.stack import Stack
from tests.containers.story import Story
from tests.containers.told import Told


def main() -> int:
    """Exit code 0 when the whole story came true, 1 otherwise."""
    arguments = _arguments()
    if os.getuid() != 0:
        sys.stderr.write("This installs packages and runs containers: run it as root, on a machine for tests.\n")
        return 2
    arguments.work.mkdir(parents=True, exist_ok=True)
    told = Told()
    try:
        place = machine.prepare(arguments.work, told)
        images.build(place, told)
        _tell(Stack(place), told, keep=arguments.keep)
    except machine.Failed as exc:
        told.fail(str(exc))
        return 1
    return 0


def _tell(stack: Stack, told: Told, *, keep: bool) -> None:
    stack.remove()  # what an earlier run had to leave
    try:
        Story(stack, told).tell()
    except BaseException:
        stack.show_logs()
        raise
    finally:
        if not keep:
            stack.remove()
    told.passed(
        "the containers are left running" if keep else "no container, volume or network of the test is left"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deploy/test-compose", description=__doc__)
    default = Path(tempfile.gettempdir()) / "swarmkv-test-compose"
    parser.add_argument("--work", type=Path, default=default, help="bases, tools and a clone are kept here")
    parser.add_argument("--keep", action="store_true", help="leave the containers running")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
