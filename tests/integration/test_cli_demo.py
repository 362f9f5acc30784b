"""`swarmkv demo`, end to end on a tiny model: it shows all, and nothing of it stays."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from swarmkv.cli.demo import load_sample
from tests import tiny_models
from tests.command import Home, all_gone, descendants
from tests.waiting import wait_until

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    # The sample has 13,191 bytes, which are as many tokens of the tiny model.
    return Home(tmp_path).with_settings(threads=1, n_ctx=20_000, slots=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model that was trained, so it says, on contexts that hold the sample."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_models, "CONTEXT", 32_768)
        return str(tiny_models.tiny_llama(tmp_path_factory.mktemp("demo") / "tiny.gguf"))


def leftovers(home: Home, pid: int) -> set[Path]:
    """Directories of the demo that ran as `pid`; other demos may run on this machine."""
    return {*home.directory.glob("swarmkv-demo-*"), *SHARED_MEMORY.glob(f"swarmkv-demo-{pid}-*")}


def test_the_sample_is_a_document_with_eight_named_prompts() -> None:
    sample = load_sample()
    assert len({name for name, _ in sample.branches}) == 8
    assert 10_000 < len(sample.document) < 20_000


def test_demo_json_prints_one_document_and_leaves_nothing(home: Home, model: str) -> None:
    with home.started("demo", "--model", model, "--max-tokens", "4", "--json") as process:
        stdout, _ = process.communicate(timeout=120)
    assert (process.returncode, home.stderr) == (0, "")
    report = json.loads(stdout)
    assert (report["state"], report["prefills_run"], len(report["branches"])) == ("done", 1, 8)
    for branch in report["branches"]:
        assert branch["tokens"]["recomputed"] == 0
        assert branch["tokens"]["reused"] == report["document_tokens"]
    assert leftovers(home, process.pid) == set()


def test_demo_prints_answers_a_row_for_each_branch_and_what_was_saved(home: Home, model: str) -> None:
    done = home.with_settings(null_engine=True).run("demo", "--model", model, "--max-tokens", "4")
    assert done.code == 0
    for name, _ in load_sample().branches:
        lines = [line for line in done.stdout.splitlines() if line.split(" ")[0] == name]
        assert len(lines) == 2  # its answer's heading, its row in the table
    assert "prefills run" in done.stdout
    assert "computed from the measured prefill, not measured" in done.stdout
    assert "prefill: " in done.stderr


def test_a_demo_leaves_a_running_broker_and_its_store_alone(home: Home, model: str, redis_url: str) -> None:
    configured = home.with_settings(redis_url=redis_url, null_engine=True)
    done = configured.run("demo", "--model", model, "--max-tokens", "2", "--json")
    assert done.code == 0
    assert configured.run("runs", "--json").json == []
    assert not (home.directory / "store").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_no_process_and_no_file(home: Home, model: str, number: signal.Signals) -> None:
    with home.started("demo", "--model", model, "--max-tokens", "500") as process:
        wait_until(lambda: process.poll() is not None or "prefill: " in home.stderr, timeout_s=60)
        family = descendants(process.pid)
        assert len(family) == 4, home.stderr  # broker, two workers, janitor
        assert len(leftovers(home, process.pid)) == 2
        process.send_signal(number)
        code = process.wait(timeout=40)
        wait_until(lambda: all_gone(family), timeout_s=20)
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 3)
    assert leftovers(home, process.pid) == set()
    assert "Traceback" not in home.stderr


def test_a_model_that_is_not_there_ends_the_demo_before_it_starts(home: Home) -> None:
    with home.started("demo", "--model", "none.gguf", "--json") as process:
        stdout, _ = process.communicate(timeout=60)
    assert (process.returncode, json.loads(stdout)["error"]["code"]) == (2, "model")
    assert leftovers(home, process.pid) == set()
