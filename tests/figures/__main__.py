"""python -m tests.figures [--only NAME ...] [--json FILE] [--model PATH]: measure and show every row."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console

from swarmkv.workers.models import DEMO, resolve_model
from tests.figures import exactness, idle, memory, page, recovery, speed, survival
from tests.figures.figure import Figure, as_json, machine, show
from tests.figures.lab import Lab, open_lab

Measure = Callable[[Lab], Awaitable[list[Figure]]]
MEASURES: dict[str, Measure] = {
    "prefills": exactness.prefills,
    "full-attention": exactness.full_attention,
    "sliding-window": exactness.sliding_window,
    "restore": speed.restore,
    "first-token": speed.first_token,
    "eight-branches": speed.eight_branches,
    "beside-a-prefill": speed.beside_a_prefill,
    "wake-up": idle.wake_up,
    "memory": memory.branch_worker,
    "killed-worker": survival.killed_worker,
    "page": page.page,
    "recovery": recovery.recovery,
}
LONG = {"recovery"}  # measured only when asked for, as `make faults` does


def main() -> int:
    """Exit code 0 when every row holds, 1 otherwise."""
    arguments = _arguments()
    facts = machine()
    with open_lab(resolve_model(arguments.model)) as lab:
        figures = asyncio.run(_measure(lab, arguments.only or [name for name in MEASURES if name not in LONG]))
    facts["model"] = Path(lab.model_path).name
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(facts, figures), indent=2))
    show(Console(), facts, figures)
    return 0 if all(figure.is_ok for figure in figures) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description="Measure the promised figures.")
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures with all their numbers")
    parser.add_argument("--model", default=DEMO, help="a GGUF path, hf://..., or demo (the default)")
    return parser.parse_args()


async def _measure(lab: Lab, names: list[str]) -> list[Figure]:
    progress = Console(stderr=True)
    figures: list[Figure] = []
    for name in names:
        progress.print(f"measuring {name} ...")
        figures += await MEASURES[name](lab)
    return figures


if __name__ == "__main__":
    sys.exit(main())
