"""The generated models are good for the tests that stand on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from swarmkv.protocol.errors import ModelError
from swarmkv.workers.engine.model import Model
from tests import tiny_models
from tests.raw_context import raw_context

FIXTURES = ["tiny_llama_path", "tiny_gemma3_path", "tiny_bpe_chat_path"]


@pytest.mark.parametrize("fixture", FIXTURES)
def test_another_first_half_of_the_document_gives_clearly_other_logits(
    request: pytest.FixtureRequest, fixture: str
) -> None:
    # gemma3's window is 64 tokens: only its global layer can see a first half that far back.
    document, other = ("x" * 150 + "y" * 150, "z" * 150 + "y" * 150)
    with raw_context(request.getfixturevalue(fixture)) as context:
        ids, other_ids = (context.vocab.tokenize(text, parse_special=False).tolist() for text in (document, other))
        logits, other_logits = context.decode(ids), context.decode(other_ids)
    assert np.abs(logits - other_logits).max() > 0.5


def test_the_same_seed_writes_the_same_file_and_another_seed_another_model(tmp_path: Path) -> None:
    files = [
        tiny_models.tiny_llama(tmp_path / name, seed=seed).read_bytes()
        for name, seed in (("a.gguf", 0), ("b.gguf", 0), ("c.gguf", 1))
    ]
    assert files[0] == files[1] != files[2]


def test_the_window_of_the_sliding_model_is_the_one_asked_for(tmp_path: Path) -> None:
    model = Model(tiny_models.tiny_gemma3(tmp_path / "window.gguf", window=32))
    assert model.window == 32
    model.close()


def test_the_encoder_is_refused_by_name(tiny_encoder_path: Path) -> None:
    with pytest.raises(ModelError, match="encoder"):
        Model(tiny_encoder_path)
