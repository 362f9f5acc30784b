"""Models that change under the workers: nothing that one model computed is continued by another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from swarmkv.producer import Producer, Sampling
from swarmkv.protocol.events import BranchText
from swarmkv.protocol.messages import RunReport
from swarmkv.protocol.settings import Settings
from tests import tiny_models
from tests.fault_support import FaultyFleet, faulty_fleet, until
from tests.processes import WorkerProcess

DOCUMENT = "The retry limit is four.\n" * 20
ANSWER = Sampling(temperature=0, max_tokens=40, ignore_eos=True)
QUESTION = "What?"


@pytest.fixture(scope="module")
def tuned_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same shape, size and name: what a fine-tune is."""
    return tiny_models.tiny_llama(tmp_path_factory.mktemp("models") / "tuned.gguf", seed=1)


@pytest.fixture
def model_path(tiny_llama_path: Path, tmp_path: Path) -> Path:
    """A model file of this test's own."""
    return Path(shutil.copy(tiny_llama_path, tmp_path / "model.gguf"))


@pytest.fixture
async def tuned_answer(tuned_path: Path, settings: Settings, producer: Producer, tmp_path: Path) -> str:
    """What the other model says when no file was ever changed."""
    apart = settings.model_copy(update={"store_dir": tmp_path / "apart"})
    with faulty_fleet(apart, tmp_path / "apart-logs") as fleet:
        await fleet.beats(producer, fleet.start("all", tuned_path, "tuned"))
        report = await (await producer.submit(DOCUMENT, [QUESTION], model="tuned", sampling=ANSWER)).results(30)
        assert report.state == "done"
        return report.branches[0].text


async def ask(producer: Producer) -> RunReport:
    return await (await producer.submit(DOCUMENT, [QUESTION], sampling=ANSWER)).results(60)


def overwrite(path: Path, other: Path) -> None:
    """Byte for byte in the same file, as `rsync --inplace` does."""
    with path.open("r+b") as file:
        file.write(other.read_bytes())


def rename_over(path: Path, other: Path) -> None:
    """Another file takes the name in one step, as a careful download does."""
    new = path.with_suffix(".new")
    shutil.copy(other, new)
    new.replace(path)


def check_ended_by_the_change(worker: WorkerProcess) -> None:
    assert worker.process.wait(timeout=30) == 1, worker.log
    assert "was overwritten while it was in use" in worker.log
    assert "Traceback" not in worker.log.partition("error: ")[2]


async def test_a_snapshot_of_a_fine_tune_is_refused_by_name_and_its_worker_goes_on(
    fleet: FaultyFleet, producer: Producer, tiny_llama_path: Path, tuned_path: Path, tuned_answer: str
) -> None:
    bad = fleet.start("prefill", tiny_llama_path)
    branch = fleet.start("branch", tuned_path)
    await fleet.beats(producer, bad, branch)
    report = await ask(producer)
    assert report.state == "failed"
    (refused,) = report.branches
    assert (refused.text, refused.attempts) == ("", 4)
    assert refused.error is not None
    assert refused.error.code == "snapshot_mismatch"
    assert "fingerprint" in refused.error.message
    assert bad.end() == 0
    await fleet.beats(producer, fleet.start("prefill", tuned_path))
    report = await ask(producer)
    assert (report.state, report.branches[0].text) == ("done", tuned_answer)
    assert branch.process.poll() is None


async def test_a_model_that_was_renamed_over_is_prefilled_anew_when_its_workers_start_again(
    fleet: FaultyFleet, producer: Producer, model_path: Path, tuned_path: Path, tuned_answer: str
) -> None:
    old = fleet.start("all", model_path)
    await fleet.beats(producer, old)
    before = await ask(producer)
    rename_over(model_path, tuned_path)
    same = await ask(producer)
    assert (same.state, same.prefills_run, same.branches[0].text) == ("done", 0, before.branches[0].text)
    assert old.end() == 0
    await fleet.beats(producer, fleet.start("all", model_path))
    after = await ask(producer)
    assert (after.state, after.prefills_run, after.branches[0].text) == ("done", 1, tuned_answer)
    assert after.branches[0].text != before.branches[0].text


async def test_a_model_that_was_overwritten_ends_its_idle_workers_and_new_ones_prefill_anew(
    fleet: FaultyFleet, producer: Producer, model_path: Path, tuned_path: Path, tuned_answer: str
) -> None:
    workers = [fleet.start(role, model_path) for role in ("prefill", "branch")]
    await fleet.beats(producer, *workers)
    assert (await ask(producer)).state == "done"
    overwrite(model_path, tuned_path)
    for worker in workers:
        check_ended_by_the_change(worker)
    await fleet.beats(producer, *(fleet.start(role, model_path) for role in ("prefill", "branch")))
    report = await ask(producer)
    assert (report.state, report.prefills_run, report.branches[0].text) == ("done", 1, tuned_answer)


async def test_a_model_that_was_overwritten_while_it_answers_gives_no_word_more(
    fleet: FaultyFleet, producer: Producer, model_path: Path, tuned_path: Path, tuned_answer: str
) -> None:
    patient = {"heartbeat_s": 60.0, "lease_s": 240.0}  # nobody but the decode itself can notice
    busy = fleet.start_faulty("all", model_path, {"decode_s": 0.05}, "default", **patient)
    await fleet.beats(producer, busy)
    run = await producer.submit(DOCUMENT, [QUESTION], sampling=ANSWER)
    await until(run, BranchText)
    overwrite(model_path, tuned_path)
    check_ended_by_the_change(busy)
    assert not (await run.report()).is_finished
    assert await run.cancel()
    await fleet.beats(producer, fleet.start("all", model_path))
    report = await ask(producer)
    assert (report.state, report.prefills_run, report.branches[0].text) == ("done", 1, tuned_answer)
