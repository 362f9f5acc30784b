"""README's commands, run as its reader would: `swarmkv up` with the demo model, then the others in order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmkv.protocol.settings import PREFIX
from tests.readme import EXAMPLE, ROOT, commands
from tests.waiting import wait_until

UP = "swarmkv up --model demo"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a reader whose `swarmkv up` runs in another terminal."""
    home = tmp_path_factory.mktemp("reader")
    runtime = home / "run"
    runtime.mkdir(mode=0o700)
    env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(runtime)}
    env |= {"XDG_STATE_HOME": str(home / "state"), PREFIX + "STORE_DIR": str(home / "store")}
    with (home / "up.log").open("wb") as log:
        up = subprocess.Popen(UP.split(), cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)

    def has_two_workers() -> bool:
        assert up.poll() is None, (home / "up.log").read_text()
        answer = subprocess.run(
            ["swarmkv", "workers", "--json"], env=env, capture_output=True, text=True, check=False
        )
        return answer.stdout.count('"role"') == 2

    wait_until(has_two_workers, timeout_s=90)
    yield env
    up.terminate()
    assert up.wait(timeout=60) is not None


@pytest.mark.real_model
@pytest.mark.parametrize("command", [line for line in commands() if line.startswith("swarmkv ") and line != UP])
def test_a_readme_command_does_what_it_says(command: str, reader: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=reader, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.real_model
def test_the_example_of_readme_runs(reader: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=reader, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines() if ": " in line][:1] == ["liability"]
    assert "prefill of" not in done.stderr


def test_a_plain_install_compiles_nothing_and_has_the_command(tmp_path: Path) -> None:
    source = tmp_path / "source"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--no-input", "."], cwd=source, capture_output=True, text=True, check=False
    )
    assert installed.returncode == 0, installed.stderr
    assert "llama" not in installed.stdout.lower()
    shown = subprocess.run(
        [tmp_path / "venv" / "bin" / "swarmkv", "--version"], capture_output=True, text=True, check=True
    )
    assert "0.1.0" in shown.stdout
    refused = subprocess.run(
        [tmp_path / "venv" / "bin" / "swarmkv", "worker", "branch", "--model", "x.gguf"],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(tmp_path), "SWARMKV_REDIS_URL": "redis://127.0.0.1:1/0"},
    )
    assert refused.returncode == 2
    assert "swarmkv[worker]" in refused.stderr
