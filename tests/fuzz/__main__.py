"""`python -m tests.fuzz --minutes 10 [--seed N] [--target NAME] [--keep]`: exit code 1 when something crashed."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

from tests.fuzz.campaign import CORPUS, MAX_KEPT, MAX_KEPT_BYTES, Campaign, kept, peak_bytes
from tests.fuzz.targets import Target, targets

_TURN = 200  # executions of one target before the next


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--target", help="only those whose name holds this")
    parser.add_argument("--keep", action="store_true", help="keep small inputs that were answered in a new way")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        chosen = [item for item in targets(Path(directory)) if (options.target or "") in item.name]
        before = peak_bytes()
        campaign = run(chosen, Random(options.seed), options.minutes * 60)
        total = sum(campaign.executions.values())
        say(f"seed {options.seed}, {total:,} executions, {len(campaign.crashes)} crashes")
        say(f"slowest {campaign.slowest_ms:.0f} ms, memory grew by {(peak_bytes() - before) / 1e6:.0f} MB at most")
    for name, count in sorted(campaign.executions.items()):
        say(f"  {name:<24} {count:>12,} executions, {campaign.taken[name]:,} taken")
    if options.keep:
        keep(campaign, chosen)
    for number, crash in enumerate(campaign.crashes):
        path = Path(f"crash-{number}-{crash.target}")
        path.write_bytes(crash.data)
        say(f"CRASH of {crash.target}, input in {path}:\n{''.join(traceback.format_exception(crash.error))}")
    return 1 if campaign.crashes else 0


def run(chosen: list[Target], random: Random, seconds: float) -> Campaign:
    """Every target in turn, until the time is over."""
    campaign = Campaign()
    end_s = time.monotonic() + seconds
    for target in chosen:
        campaign.start(target)
    while time.monotonic() < end_s:
        for target in chosen:
            for _ in range(_TURN):
                campaign.step(target, random)
    return campaign


def keep(campaign: Campaign, chosen: list[Target]) -> None:
    """Add small inputs to those that are kept, up to MAX_KEPT of a target, and all that crashed."""
    CORPUS.mkdir(exist_ok=True)
    for target in chosen:
        crashed = [crash.data for crash in campaign.crashes if crash.target == target.name]
        found = [data for data in campaign.pools[target.name] if data not in target.seeds]
        small = [data for data in found if 0 < len(data) <= MAX_KEPT_BYTES]
        lines = dict.fromkeys(data.hex() for data in [*kept(target.name), *crashed, *small])
        if lines:
            (CORPUS / f"{target.name}.hex").write_text("\n".join(list(lines)[:MAX_KEPT]) + "\n")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
