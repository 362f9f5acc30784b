"""Workers whose snapshot store is full, tiny or removed while they run: clear errors, and other jobs go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol.events import BranchText, PrefillDone, RunWarning
from swarmkv.protocol.settings import MIB, Settings
from tests.fault_support import FaultyFleet, heard_of, store_files, until
from tests.mounts import mounted_tmpfs
from tests.waiting import wait_until

DOCUMENT = "The retry limit is four.\n" * 20
OTHER_DOCUMENT = "The retry limit is nine.\n" * 20
LARGE_DOCUMENT = "x" * 2500
SHORT = Sampling(temperature=0, max_tokens=6, ignore_eos=True)
LONG = Sampling(temperature=0, max_tokens=90, ignore_eos=True)
SLOW = {"decode_s": 0.05}
DOCKER_SHM_BYTES = 64 * MIB


@pytest.fixture
def small_store(settings: Settings) -> Iterator[Path]:
    """The store on a tmpfs of the size that Docker gives containers."""
    settings.store_dir.mkdir(mode=0o700)
    with mounted_tmpfs(settings.store_dir, DOCKER_SHM_BYTES) as path:
        yield path


def fill(store: Path, free_bytes: int) -> Path:
    """Take the file system's room but for so many bytes."""
    ballast = store / "ballast"
    with ballast.open("wb") as file:
        file.write(bytes(shutil.disk_usage(store).free - free_bytes))
    return ballast


async def test_a_full_file_system_makes_a_prefill_wait_and_say_so_while_others_go_on(
    small_store: Path, fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    workers = [fleet.start(role, tiny_llama_path) for role in ("prefill", "branch")]
    await fleet.beats(producer, *workers)
    assert "has 64.0 MiB" in workers[0].log, "the start must name the size"
    first = await (await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)).results(30)
    ballast = fill(small_store, 64 * 1024)
    running = await producer.submit(DOCUMENT, ["And now?"], sampling=LONG)
    stuck = await producer.submit(LARGE_DOCUMENT, ["What?"], sampling=SHORT)
    wait_until(lambda: "waits for room" in workers[0].log, timeout_s=30)
    again = await (await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)).results(30)
    assert (again.state, again.prefills_run) == ("done", 0)
    assert again.branches[0].text == first.branches[0].text
    assert (await running.results(30)).state == "done"
    assert not (await stuck.report()).is_finished
    ballast.unlink()
    heard, report = await heard_of(stuck), await stuck.report()
    assert (report.state, report.prefills_run) == ("done", 1)
    (warning,) = [event for event in heard.events if isinstance(event, RunWarning)]
    assert "needs" in warning.message
    assert "KiB free" in warning.message
    assert store_files(settings)[1] == []
    assert [worker.process.poll() for worker in workers] == [None, None]


async def test_a_file_system_that_can_never_hold_a_snapshot_fails_its_run_with_both_sizes(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    settings.store_dir.mkdir(mode=0o700)
    with mounted_tmpfs(settings.store_dir, MIB // 2):
        workers = [fleet.start(role, tiny_llama_path) for role in ("prefill", "branch")]
        await fleet.beats(producer, *workers)
        report = await (await producer.submit(LARGE_DOCUMENT, ["What?"], sampling=SHORT)).results(30)
        assert report.state == "failed"
        assert report.error is not None
        assert report.error.code == "snapshot_too_large"
        assert "holds 512.0 KiB in all" in report.error.message
        good = await (await producer.submit("A short one.", ["What?"], sampling=SHORT)).results(30)
        assert good.state == "done"
        for worker in workers:
            assert worker.end() == 0


async def test_a_store_removed_while_workers_run_is_made_again_and_costs_one_prefill(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    prefill = fleet.start("prefill", tiny_llama_path)
    branch = fleet.start_faulty("branch", tiny_llama_path, SLOW)
    await fleet.beats(producer, prefill, branch)
    before = await (await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)).results(30)
    running = await producer.submit(DOCUMENT, ["And now?"], sampling=LONG)
    await until(running, BranchText)
    shutil.rmtree(settings.store_dir)
    other = await (await producer.submit(OTHER_DOCUMENT, ["What?"], sampling=SHORT)).results(30)
    assert (other.state, other.prefills_run) == ("done", 1)
    report = await running.results(30)
    assert (report.state, report.branches[0].attempts) == ("done", 1)
    shutil.rmtree(settings.store_dir)
    branch.kill()
    await fleet.beats(producer, fleet.start("branch", tiny_llama_path))
    after = await (await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)).results(30)
    assert (after.state, after.prefills_run) == ("done", 1)
    assert after.branches[0].text == before.branches[0].text


async def test_a_store_that_became_somebody_elses_fails_runs_with_the_reason_until_it_is_ours_again(
    fleet: FaultyFleet, producer: Producer, settings: Settings, tiny_llama_path: Path
) -> None:
    workers = [fleet.start(role, tiny_llama_path) for role in ("prefill", "branch")]
    await fleet.beats(producer, *workers)
    settings.store_dir.chmod(0o777)
    report = await (await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)).results(30)
    assert report.state == "failed"
    assert report.error is not None
    assert "can be written by others" in report.error.message
    settings.store_dir.chmod(0o700)
    run = await producer.submit(DOCUMENT, ["What?"], sampling=SHORT)
    await until(run, PrefillDone)
    assert (await run.results(30)).state == "done"
    assert [worker.process.poll() for worker in workers] == [None, None]
