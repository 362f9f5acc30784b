"""`swarmkv tune` measures, writes a profile, and workers use it, but for what the user has set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from swarmkv.cli import exits
from swarmkv.cli.children import Child, ChildFailed
from swarmkv.cli.lab import Lab, Work
from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine.fingerprint import fingerprint
from swarmkv.workers.trials import Candidate
from swarmkv.workers.tuning import Profile, TunedSettings, measured_with, this_machine
from tests.command import Home
from tests.waiting import wait_until

DEFAULT = Candidate("default")
QUIET = Work(document_tokens=200, answer_tokens=3, rounds=3)


@pytest.fixture
def home(redis_url: str, tmp_path: Path) -> Home:
    return Home(tmp_path).with_settings(
        redis_url=redis_url, threads=1, n_ctx=2048, lease_s=2, heartbeat_s=0.5, sweep_s=0.2
    )


def profile_file(home: Home, model: Path) -> Path:
    return home.directory / "config" / "swarmkv" / "tuned" / f"{fingerprint(model)}.json"


def write_profile(home: Home, model: Path, **tuned: Any) -> None:
    profile = Profile(
        model=model.name,
        fingerprint=fingerprint(model),
        machine=this_machine(),
        measured_with=measured_with(Settings(_env_file=None)),
        settings=TunedSettings(**tuned),
    )
    path = profile_file(home, model)
    path.parent.mkdir(parents=True)
    path.write_text(profile.model_dump_json())


@contextmanager
def worker_log(home: Home, model: Path) -> Iterator[list[dict[str, Any]]]:
    """The log of a worker that is ready, while it runs."""
    with home.started("worker", "all", "--model", str(model), "--log-format", "json") as process:
        wait_until(lambda: home.stderr.count("worker_ready") == 2 or process.poll() is not None, timeout_s=60)
        yield [json.loads(line) for line in home.stderr.splitlines()]


def test_tune_measures_every_candidate_and_writes_what_is_fastest(home: Home, tiny_llama_path: Path) -> None:
    fixed = home.with_settings(n_ubatch=512, slots=16, omp_spin_count=2000)
    done = fixed.run("tune", str(tiny_llama_path), "--quick", "--json", timeout_s=170)
    assert done.code == exits.DONE, done.stderr
    found = done.json
    default, control, flash = found["measured"]
    assert (default["factor"], default["settings"], default["gain"]) == ("default", {}, None)
    assert flash["settings"] == {"flash_attention": "on"}
    for row in (default, control, flash):
        assert row["failure"] is None
        assert min(row["prefill_tps"], *row["decode_tps"].values()) > 0
        assert sorted(row["decode_tps"]) == ["1", "16", "8"]
    assert flash["gain_low"] <= flash["gain"] <= flash["gain_high"]
    noise = max(abs(control["gain_low"]), abs(control["gain_high"]))
    assert flash["taken"] == (flash["gain_low"] > 0.03 + noise)
    assert (control["factor"], control["settings"], control["taken"]) == ("default again", {}, False)
    profile = Profile.model_validate_json(profile_file(home, tiny_llama_path).read_bytes())
    assert profile.settings.chosen == found["settings"] == (flash["settings"] if flash["taken"] else {})
    assert (profile.machine, found["profile"]) == (this_machine(), str(profile_file(home, tiny_llama_path)))


def test_a_dry_run_prints_a_table_and_writes_nothing(home: Home, tiny_llama_path: Path) -> None:
    fixed = home.with_settings(flash_attention="off", n_ubatch=512, slots=16, omp_spin_count=2000)
    done = fixed.run("tune", str(tiny_llama_path), "--quick", "--dry-run", timeout_s=170)
    assert done.code == exits.DONE, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["setting", "default", "default"]
    assert "set by you" in done.stderr
    assert not profile_file(home, tiny_llama_path).exists()


def test_a_model_that_cannot_be_served_is_not_tuned(home: Home, tiny_encoder_path: Path) -> None:
    done = home.run("tune", str(tiny_encoder_path))
    assert (done.code, "encoder" in done.stderr) == (exits.USAGE, True)


def test_a_worker_uses_the_profile_and_says_so(home: Home, tiny_llama_path: Path) -> None:
    write_profile(home, tiny_llama_path, slots=5, flash_attention="on")
    with worker_log(home, tiny_llama_path) as lines:
        [used] = [line for line in lines if line.get("action") == "tuning_used"]
        assert used["tuned"] == {"slots": 5, "flash_attention": "on"}
        [branch] = [row for row in home.run("workers", "--json").json if row["role"] == "branch"]
        assert branch["slots"] == 5


def test_a_setting_of_the_user_wins_over_the_profile(home: Home, tiny_llama_path: Path) -> None:
    write_profile(home, tiny_llama_path, slots=5, n_ubatch=128)
    with worker_log(home.with_settings(slots=3), tiny_llama_path) as lines:
        [used] = [line for line in lines if line.get("action") == "tuning_used"]
        assert (used["tuned"], used["overruled"]) == ({"n_ubatch": 128}, ["slots"])
        [branch] = [row for row in home.run("workers", "--json").json if row["role"] == "branch"]
        assert branch["slots"] == 3


def lab(model: Path, home: Home, work: Work = QUIET) -> Lab:
    return Lab(model, Settings(_env_file=None, threads=1, slots=4), work, home.env)


def test_each_scenario_measures_what_it_is_about(home: Home, tiny_gemma3_path: Path) -> None:
    here = lab(tiny_gemma3_path, home)
    alone = here.measure(DEFAULT, "alone")
    assert (sorted(alone.decode_tps), alone.beside_s) == ([1, 8, 16], 0.0)
    assert min(alone.prefill_tps, *alone.decode_tps.values()) > 0
    assert sorted(here.measure(Candidate("slots", {"slots": 8}, "crowd"), "crowd").decode_tps) == [64]
    assert here.measure(DEFAULT, "beside").beside_s > 0


def test_a_candidate_that_fails_is_told_and_the_others_go_on(home: Home, tiny_llama_path: Path) -> None:
    bad = Candidate("kv", {"kv_type_v": "q8_0"})  # whose blocks do not fit the heads
    good = Candidate("n_ubatch", {"n_ubatch": 64})
    series = lab(tiny_llama_path, home).rounds(DEFAULT, [bad, good], lambda _: None)
    assert "block size" in series.failures[bad]
    assert [len(series.costs_s((one, "alone"))) for one in (DEFAULT, bad, good)] == [3, 0, 3]


def test_a_default_that_fails_ends_it_with_the_reason(home: Home, tiny_llama_path: Path) -> None:
    here = Lab(tiny_llama_path, Settings(_env_file=None, kv_type_v="q8_0"), QUIET, home.env)
    with pytest.raises(ChildFailed, match="block size"):
        here.measure(DEFAULT, "alone")


def test_a_child_that_dies_says_how_and_one_that_is_left_is_killed() -> None:
    with Child("swarmkv.workers.engine.measure", ("{}",)) as child, pytest.raises(ChildFailed, match="KeyError"):
        child.read_line()
