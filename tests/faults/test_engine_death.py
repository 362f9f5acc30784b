"""An engine that dies over a state takes no job with it: it is seen, said, and the jobs run again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol.settings import Settings
from tests.fault_support import FaultyFleet, heard_of
from tests.processes import WorkerProcess, environment_of
from tests.waiting import wait_until

DYING_WORKER = Path(__file__).parents[1] / "dying_restore.py"
DOCUMENT = "The retry limit is four.\n" * 20
SHORT = Sampling(temperature=0, max_tokens=6, ignore_eos=True)


def start_dying(fleet: FaultyFleet, model: Path) -> WorkerProcess:
    number = len(fleet.processes)
    log_path = fleet.directory / f"dying-{number}.log"
    command = [sys.executable, str(DYING_WORKER), "default", str(model), str(fleet.directory / "died")]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, env=environment_of(fleet.settings), stdout=log, stderr=log)
    worker = WorkerProcess(process, log_path)
    fleet.processes.append(worker)
    return worker


async def test_an_engine_that_dies_over_a_bad_state_costs_its_branches_only_time(
    fleet: FaultyFleet, settings: Settings, tiny_llama_path: Path
) -> None:
    async with Producer(settings=settings) as producer:
        dying = start_dying(fleet, tiny_llama_path)
        await fleet.beats(producer, fleet.start("prefill", tiny_llama_path), dying)
        run = await producer.submit(DOCUMENT, ["What?", "Why?", "Who?"], sampling=SHORT)
        await asyncio.to_thread(wait_until, lambda: dying.process.poll() is not None, timeout_s=60)
        assert dying.process.returncode == -signal.SIGABRT, dying.log
        again = start_dying(fleet, tiny_llama_path)
        report = await asyncio.wait_for(run.results(), 60)
        heard = await heard_of(run)
    assert report.state == "done"
    assert report.prefills_run == 1
    assert all(branch.attempts > 1 for branch in report.branches)
    assert heard.ends == {branch.name: 1 for branch in report.branches}
    assert any("worker" in reason for reason in heard.reasons)
    assert again.process.poll() is None, again.log
