"""The option --model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarmkv.cli.models import ModelChoice, parse_alias, parse_model, parse_models
from swarmkv.protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "alias", "ref"),
    [
        ("demo", "default", "demo"),
        ("legal=demo", "legal", "demo"),
        ("/models/a.gguf", "default", "/models/a.gguf"),
        ("./a=b.gguf", "default", "./a=b.gguf"),
        ("legal=./a=b.gguf", "legal", "./a=b.gguf"),
        ("hf://owner/repo/file.gguf", "default", "hf://owner/repo/file.gguf"),
        ("code=hf://owner/repo/file.gguf", "code", "hf://owner/repo/file.gguf"),
    ],
)
def test_the_alias_is_what_stands_before_the_equals_sign(value: str, alias: str, ref: str) -> None:
    assert parse_model(value) == ModelChoice(alias, ref)


@pytest.mark.parametrize("value", ["", "=a.gguf", "legal="])
def test_half_a_model_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="names no"):
        parse_model(value)


def test_an_alias_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'default' 2 times"):
        parse_models(["a.gguf", "b.gguf"])


@pytest.mark.parametrize(
    ("value", "alias"),
    [
        ("legal", "legal"),
        ("legal=a.gguf", "legal"),
        ("demo", "default"),
        ("a.gguf", "default"),
        ("hf://o/r/f.gguf", "default"),
    ],
)
def test_enqueue_takes_the_same_option_and_means_the_alias(value: str, alias: str) -> None:
    assert parse_alias(value) == alias


@pytest.mark.parametrize("value", ["a\x1b[31m=b", "a b=c", "a b", "a\x1b[31m", "-x", "x" * 65, "hf:x"])
def test_what_can_be_no_alias_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="is no alias"):
        parse_alias(value)


def test_an_empty_alias_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no model"):
        parse_alias("")


def test_a_bad_alias_of_a_model_to_load_is_refused_and_not_taken_for_a_path() -> None:
    with pytest.raises(ConfigError, match="'a b' is no alias"):
        parse_model("a b=c.gguf")
    assert parse_model("./a b=c.gguf") == ModelChoice("default", "./a b=c.gguf")


@pytest.mark.parametrize("arguments", [["up"], ["worker", "branch"], ["doctor"]])
def test_the_model_that_is_not_named_is_that_of_the_settings(tmp_path: Path, arguments: list[str]) -> None:
    env = {**os.environ, "SWARMKV_MODEL": "legal=nowhere.gguf", "SWARMKV_REDIS_URL": "redis://127.0.0.1:1"}
    env |= {"SWARMKV_STORE_DIR": str(tmp_path / "store"), "XDG_STATE_HOME": str(tmp_path)}
    argv = [sys.executable, "-c", "from swarmkv.cli.main import run; run()", *arguments]
    done = subprocess.run(argv, capture_output=True, env=env, cwd=tmp_path, text=True, check=False)
    assert done.returncode != 0
    assert "There is no model file 'nowhere.gguf'" in done.stdout + done.stderr
