"""The row about memory: what a branch worker holds beside weights and cells, and whether it grows."""

from __future__ import annotations

import re
from pathlib import Path

from swarmkv.producer import Sampling
from swarmkv.workers.opening import engine_config
from tests.figures.alone import MIB, kv_bytes
from tests.figures.figure import Figure
from tests.figures.lab import PROMPTS, Installation, Lab
from tests.new_process import in_a_new_process

JOBS = 2_000
JOBS_A_RUN = 100
MAX_REST_MIB = 200
MAX_GROWTH_MIB = 2.0  # what allocators scatter; a leak of 1 kB a job would be as much
TWO_TOKENS = Sampling(temperature=0, max_tokens=2, ignore_eos=True)


async def branch_worker(lab: Lab) -> list[Figure]:
    """Resident memory less the mapped weights and the KV cells, before and after many jobs."""
    document = lab.document("Remembered")
    async with lab.installation("prefill", "branch") as installation:
        await installation.run(document, PROMPTS)
        await _run_jobs(installation, document, JOBS // 4)
        pid = installation.fleet.processes[1].pid
        before = _resident_mib(pid, lab.model_path)
        await _run_jobs(installation, document, JOBS)
        after = _resident_mib(pid, lab.model_path)
        config = engine_config("branch", lab.model_path, installation.settings)
    cells_mib = in_a_new_process(kv_bytes, config) / MIB
    rest_mib = after["all"] - after["weights"] - cells_mib
    growth_mib = after["all"] - after["weights"] - before["all"] + before["weights"]
    return [
        Figure(
            "memory of a branch worker with 16 slots: resident, less mapped weights and KV cells; growth",
            f"<= {MAX_REST_MIB} MB; none over {JOBS:,} jobs",
            f"{rest_mib:.0f} MB ({after['all']:.0f} resident, {after['weights']:.0f} of it mapped weights, "
            f"{cells_mib:.0f} KV cells); {growth_mib:+.1f} MB",
            rest_mib <= MAX_REST_MIB and growth_mib <= MAX_GROWTH_MIB,
            {
                "rest_mib": rest_mib,
                "growth_mib": growth_mib,
                "cells_mib": cells_mib,
                "resident": [before, after],
            },
        )
    ]


async def _run_jobs(installation: Installation, document: str, jobs: int) -> None:
    for _ in range(jobs // JOBS_A_RUN):
        await installation.run(document, PROMPTS[:1] * JOBS_A_RUN, TWO_TOKENS)


def _resident_mib(pid: int, model_path: Path) -> dict[str, float]:
    """Resident MiB of a process: all, and what is mapped from the model's file (from smaps)."""
    all_kib = weights_kib = 0
    is_weights = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_weights = line.endswith(str(model_path.resolve()))
        elif line.startswith("Rss:"):
            kib = int(line.split()[1])
            all_kib += kib
            weights_kib += kib if is_weights else 0
    return {"all": all_kib / 1024, "weights": weights_kib / 1024}
