"""Where a profile counts, and what it may change."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swarmkv.protocol.errors import ConfigError
from swarmkv.protocol.settings import Settings
from swarmkv.workers import tuning
from swarmkv.workers.engine import machine
from swarmkv.workers.engine.fingerprint import fingerprint
from swarmkv.workers.tuning import Machine, Profile, TunedSettings, measured_with, this_machine, with_tuning


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def settings(**values: Any) -> Settings:
    return Settings(_env_file=None, **values)


def write(model: Path, *, at: Machine | None = None, base: Settings | None = None, **tuned: Any) -> Path:
    return tuning.write_profile(
        Profile(
            model=model.name,
            fingerprint=fingerprint(model),
            machine=at or this_machine(),
            measured_with=measured_with(base or settings()),
            settings=TunedSettings(**tuned),
        )
    )


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["action"] for record in caplog.records]


def test_a_profile_is_a_file_under_the_models_fingerprint(model: Path, tmp_path: Path) -> None:
    path = write(model)
    assert path == tmp_path / "config" / "swarmkv" / "tuned" / f"{fingerprint(model)}.json"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_what_was_tuned_takes_the_place_of_defaults(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write(model, flash_attention="on", slots=32, omp_spin_count=0)
    tuned = with_tuning(model, settings())
    assert (tuned.flash_attention, tuned.slots, tuned.omp_spin_count) == ("on", 32, 0)
    assert tuned.n_ubatch == settings().n_ubatch
    assert actions(caplog) == ["tuning_used"]


def test_what_the_user_set_wins_even_if_it_is_the_default(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(model, flash_attention="on", slots=32, n_ubatch=128)
    monkeypatch.setenv("SWARMKV_N_UBATCH", "512")
    tuned = with_tuning(model, settings(slots=16))
    assert (tuned.flash_attention, tuned.slots, tuned.n_ubatch) == ("on", 16, 512)


@pytest.mark.parametrize(
    "other", [{"cpu": "another"}, {"cores": 4_096}, {"build": "another"}], ids=["cpu", "cores", "build"]
)
def test_another_machine_or_build_does_not_use_it(
    model: Path, caplog: pytest.LogCaptureFixture, other: dict[str, Any]
) -> None:
    write(model, at=this_machine().model_copy(update=other), slots=32)
    assert with_tuning(model, settings()) == settings()
    assert actions(caplog) == ["tuning_ignored"]
    assert next(iter(other)) in caplog.text


def test_other_kv_types_than_those_it_was_measured_with_do_not_use_it(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(model, flash_attention="off")
    quantised = settings(kv_type_v="q8_0")
    assert with_tuning(model, quantised) == quantised
    assert "measured with kv_type_v=f16, now it is q8_0" in caplog.text


def test_another_model_does_not_use_it(model: Path, tmp_path: Path) -> None:
    write(model, slots=32)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF other")
    assert with_tuning(other, settings()) == settings()


def test_a_setting_that_leaves_a_profile_no_room_puts_it_aside(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(model, slots=64)
    crowded = settings(residents=239)
    assert with_tuning(model, crowded) == crowded
    assert actions(caplog) == ["tuning_ignored"]


@pytest.mark.parametrize("content", ["", "{", '{"version": 2}', "[]"])
def test_a_damaged_profile_stops_nothing_and_is_named(
    model: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path = write(model, slots=32)
    path.write_text(content)
    assert with_tuning(model, settings()) == settings()
    assert str(path) in caplog.text


def test_without_any_profile_no_model_is_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_fingerprint", lambda _: pytest.fail("the model was read"))
    assert with_tuning(model, settings()) == settings()


def test_a_directory_that_cannot_be_written_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(model))
    with pytest.raises(ConfigError, match=r"cannot be written: Not a directory"):
        write(model)


def test_a_build_is_known_by_the_libraries_that_were_installed() -> None:
    assert len(machine.library_build()) == 32


def test_a_cpu_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Made Up 3000\n")
    assert machine.cpu_model(path) == "Made Up 3000"
    assert machine.cpu_model(tmp_path / "absent")


@pytest.mark.parametrize(
    ("chosen", "own", "expected"),
    [("777", None, "777"), ("0", None, "None"), ("777", "5", "5"), ("", None, "2000")],
    ids=["asked for", "left alone", "set by the user", "default"],
)
def test_openmp_is_told_how_long_to_spin_before_it_is_loaded(chosen: str, own: str | None, expected: str) -> None:
    code = (
        "import os, sys; from swarmkv.workers.engine import spinning; assert 'llama_cpp' not in sys.modules; "
        + (f"spinning.choose({chosen}); " if chosen else "")
        + "import swarmkv.workers.engine.backend; print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    env = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    env |= {"GOMP_SPINCOUNT": own} if own else {}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
