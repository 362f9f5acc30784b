"""Programs are kept running, stopped in order, and never outlive their supervisor."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from io import FileIO
from pathlib import Path

import psutil
import pytest

from swarmkv.cli import supervise
from swarmkv.cli.supervise import Program, ProgramFailed, Supervisor
from tests.command import all_gone
from tests.waiting import eventually, wait_until

SLEEPER = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER


def python(name: str, code: str, *, stage: int = 1, grace_s: float = 10.0) -> Program:
    return Program(name, (sys.executable, "-I", "-c", code), stage=stage, grace_s=grace_s)


class Stand:
    """A supervisor's log and notices."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "log"
        self.notices: list[str] = []

    def supervisor(self) -> Supervisor:
        return Supervisor(self.path, self.notices.append)

    @property
    def log(self) -> str:
        return self.path.read_text()

    async def says(self, text: str, times: int = 1) -> None:
        async def said() -> bool:
            return self.log.count(text) >= times

        await eventually(said)


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


async def test_output_is_logged_behind_the_time_and_the_name(stand: Stand) -> None:
    async with stand.supervisor() as supervisor:
        await supervisor.start(python("worker", "import sys\nprint('out')\nsys.stderr.write('half a line')"))
        await stand.says("half a line")
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d worker \| out$", stand.log, re.MULTILINE)
    assert stand.path.stat().st_mode & 0o777 == 0o600


async def test_leaving_the_block_ends_every_program(stand: Stand) -> None:
    async with stand.supervisor() as supervisor:
        await supervisor.start(python("a", SLEEPER))
        await supervisor.start(python("b", SLEEPER))
        family = [psutil.Process(pid) for pid in supervisor.pids().values()]
    assert len(family) == 2
    assert all_gone(family)
    assert stand.notices == []


async def test_higher_stages_end_before_lower_ones(stand: Stand) -> None:
    code = (
        "import os, signal, sys, time\n"
        # Not by print, which may be at work on 'ready' still when the signal comes.
        "def end(*_):\n    os.write(1, b'ended\\n')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    async with stand.supervisor() as supervisor:
        await supervisor.start(python("broker", code, stage=0))
        await supervisor.start(python("worker", code, stage=1))
        await stand.says("ready", times=2)
    assert re.findall(r"(\w+) \| ended", stand.log) == ["worker", "broker"]


async def test_a_program_that_will_not_end_is_killed_after_its_grace_time(stand: Stand) -> None:
    async with stand.supervisor() as supervisor:
        await supervisor.start(python("deaf", DEAF, grace_s=0.2))
        await stand.says("ready")
        [pid] = supervisor.pids().values()
        process = psutil.Process(pid)
    assert all_gone([process])
    assert stand.notices == ["deaf did not stop in 0 s: killed."]


async def test_a_cancelled_stop_kills_at_once(stand: Stand) -> None:
    async def run() -> None:
        async with stand.supervisor() as supervisor:
            await supervisor.start(python("deaf", DEAF, grace_s=600))
            await stand.says("ready")
            family.extend(psutil.Process(pid) for pid in supervisor.pids().values())

    family: list[psutil.Process] = []
    task = asyncio.create_task(run())

    async def is_stopping() -> bool:
        return bool(family)

    await eventually(is_stopping)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all_gone(family)


async def test_a_dead_program_is_started_again_and_said_so(stand: Stand) -> None:
    async with stand.supervisor() as supervisor:
        await supervisor.start(python("worker", SLEEPER))
        await stand.says("ready")
        [first] = supervisor.pids().values()
        os.kill(first, signal.SIGKILL)
        await stand.says("ready", times=2)
        [second] = supervisor.pids().values()
    assert first != second
    [notice] = stand.notices
    assert re.fullmatch(r"worker ended \(SIGKILL\); restarting in 0\.[234] s\.", notice)


async def test_restarts_come_ever_later(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_FIRST_BACKOFF_S", 0.01)
    async with stand.supervisor() as supervisor:
        await supervisor.start(python("worker", "import sys\nprint('run')\nsys.exit(1)"))
        await stand.says("run", times=5)
        with pytest.raises(ProgramFailed, match=r"worker died \d+ times at its start") as caught:
            supervisor.check_starting("worker")
    assert "run" in caught.value.hint
    waits = [float(wait) for wait in re.findall(r"exit 1\); restarting in ([\d.]+) s", str(stand.notices))]
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]


async def test_a_program_that_refuses_its_arguments_is_not_started_again(stand: Stand) -> None:
    code = "import sys\nprint('noise')\nprint('error: No such model.')\nprint('  Give another.')\nsys.exit(2)"
    async with stand.supervisor() as supervisor:
        await supervisor.start(python("worker", code))
        with pytest.raises(ProgramFailed) as caught:
            await supervisor.during(asyncio.sleep(600))
    assert caught.value.message == "worker cannot run."
    assert caught.value.hint == "No such model. Give another."
    assert stand.notices == []


async def test_a_binary_that_is_not_there_is_named(stand: Stand) -> None:
    async with stand.supervisor() as supervisor:
        await supervisor.start(Program("worker", ("/no/such/program",)))
        with pytest.raises(ProgramFailed) as caught:
            await supervisor.watch()
    assert "/no/such/program cannot be executed" in caught.value.hint


async def test_work_beside_programs_gives_its_result(stand: Stand) -> None:
    async def work() -> int:
        return 7

    async with stand.supervisor() as supervisor:
        await supervisor.start(python("worker", SLEEPER))
        assert await supervisor.during(work()) == 7


async def test_a_flood_of_output_without_line_ends_is_cut_into_lines(stand: Stand) -> None:
    async with stand.supervisor() as supervisor:
        await supervisor.start(python("worker", "import time\nprint('x' * 1_000_000, flush=True)\ntime.sleep(600)"))

        async def is_read() -> bool:
            return stand.log.count("x") >= 1_000_000

        await eventually(is_read)
    assert max(map(len, stand.log.splitlines())) < 200_000


async def test_the_log_is_bounded(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_MAX_LOG_BYTES", 10_000)
    code = "for n in range(2_000):\n    print('line', n)\nprint('end', flush=True)\nimport time\ntime.sleep(600)"
    async with stand.supervisor() as supervisor:
        await supervisor.start(python("worker", code))
        await stand.says("| end")
    files = sorted(path.name for path in stand.path.parent.glob("log*"))
    assert files == ["log", "log.1.log"]
    assert all(path.stat().st_size < 11_000 for path in stand.path.parent.glob("log*"))


async def test_a_full_disk_costs_the_log_and_not_the_programs(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise.LogFile, "_open", lambda log: FileIO("/dev/full", "w"))
    async with stand.supervisor() as supervisor:
        await supervisor.start(python("worker", "print('lost', flush=True)\nimport sys\nsys.exit(2)"))
        with pytest.raises(ProgramFailed) as caught:
            await asyncio.wait_for(supervisor.watch(), 30)
    assert caught.value.hint == "lost"


PARENT = """
import asyncio, sys
from pathlib import Path
from swarmkv.cli.supervise import Program, Supervisor

async def main():
    async with Supervisor(Path(sys.argv[1]), print) as supervisor:
        await supervisor.start(Program("deaf", (sys.executable, "-I", "-c", sys.argv[2])))
        print(*supervisor.pids().values(), flush=True)
        await supervisor.watch()

asyncio.run(main())
"""


def test_programs_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log"), DEAF], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    wait_until(lambda: "ready" in (tmp_path / "log").read_text())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: all_gone([child]), timeout_s=5)


def test_a_program_whose_supervisor_is_already_dead_does_not_run(tmp_path: Path) -> None:
    tether = Path(supervise.__file__).with_name("tether.py")
    argv = [sys.executable, "-I", "-S", str(tether), "1", "9", "/bin/echo", "ran"]
    done = subprocess.run(argv, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_the_janitor_removes_its_directories_when_its_starter_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "file").write_text("x")
    janitor = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(supervise.__file__).with_name("janitor.py")), str(tmp_path / "a")],
        stdin=subprocess.PIPE,
    )
    assert janitor.stdin is not None
    wait_until(lambda: psutil.Process(janitor.pid).status() == psutil.STATUS_SLEEPING)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        _send_when_ignored(janitor, number)
    assert (tmp_path / "a" / "deep" / "file").exists()
    janitor.stdin.close()
    assert janitor.wait(timeout=20) == 0
    assert not (tmp_path / "a").exists()


def _send_when_ignored(process: subprocess.Popen[bytes], number: int) -> None:
    def is_ignored() -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        mask = int(re.search(r"SigIgn:\s+([0-9a-f]+)", status)[1], 16)  # type: ignore[index]
        return bool(mask >> (number - 1) & 1)

    wait_until(is_ignored)
    process.send_signal(number)


async def test_a_program_that_may_end_is_left_alone_once_it_was_told_to(stand: Stand) -> None:
    drained = Program("drained", (sys.executable, "-I", "-c", "print('done')"), may_end=True)
    async with stand.supervisor() as supervisor:
        await supervisor.start(drained)
        await asyncio.wait_for(supervisor.watch(), 20)
        assert supervisor.pids() == {}
    assert stand.log.count("done") == 1
    assert stand.notices == ["drained was told to end, and has ended; it is not started again."]


async def test_one_that_ends_well_hides_no_other_that_fails(stand: Stand) -> None:
    async with stand.supervisor() as supervisor:
        await supervisor.start(Program("drained", (sys.executable, "-I", "-c", ""), may_end=True))
        await supervisor.start(python("wrong", "import time; time.sleep(0.3); raise SystemExit(2)"))
        with pytest.raises(ProgramFailed, match="wrong cannot run"):
            await asyncio.wait_for(supervisor.watch(), 20)
