"""A context that memory does not hold is an error with a remedy, and no crash."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from swarmkv.protocol.errors import ModelError
from tests.engine_driver import driven, random_tokens
from tests.new_process import in_a_new_process

MEMORY_BYTES = 4 << 30
CELLS_OF_32_GIB = 64 << 20


def _refusal_and_an_answer_after_it(path: Path) -> tuple[str, str]:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with pytest.raises(ModelError) as refused, driven(path, n_ctx=CELLS_OF_32_GIB):
        pass
    with driven(path) as driver:
        payload = driver.prefill(random_tokens(100, seed=1))
        return str(refused.value), driver.answer("a", payload, 100, random_tokens(9, seed=2))


def test_a_context_larger_than_memory_is_refused_with_its_size_and_a_smaller_one_answers(
    tiny_llama_path: Path,
) -> None:
    refusal, answer = in_a_new_process(_refusal_and_an_answer_after_it, tiny_llama_path)
    assert str(CELLS_OF_32_GIB) in refusal
    assert "SWARMKV_N_CTX" in refusal
    assert answer
