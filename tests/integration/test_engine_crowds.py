"""Many branches, odd branches and odd answers in one batch: each gets what is its own."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest

from swarmkv.protocol.codec import pack, unpack
from swarmkv.protocol.errors import InvalidBranch, StoreFull
from swarmkv.workers.engine.backend import llama
from swarmkv.workers.engine.jobs import PrefillJob
from tests.engine_driver import driven, random_tokens

PROMPT = random_tokens(20, seed=1)
FORKS, ANSWER_TOKENS, PREFIX_TOKENS = 50, 256, 24
CELLS_IN_ALL = PREFIX_TOKENS + FORKS * (len(PROMPT) + ANSWER_TOKENS)


@pytest.mark.parametrize("lacking", [0, 256], ids=["just enough", "just short"])
def test_fifty_long_answers_in_as_few_cells_as_can_be_are_those_of_each_alone(
    tiny_llama_path: Path, lacking: int
) -> None:
    prefix = random_tokens(PREFIX_TOKENS, seed=3)
    prompts = {f"b{number}": random_tokens(len(PROMPT), seed=100 + number) for number in range(FORKS)}
    with driven(tiny_llama_path, n_ctx=CELLS_IN_ALL - lacking, slots=FORKS) as driver:
        assert driver.engine.info.n_ctx == CELLS_IN_ALL - lacking
        payload = driver.prefill(prefix)
        for name, prompt in prompts.items():
            driver.start(name, payload, PREFIX_TOKENS, prompt, max_tokens=ANSWER_TOKENS)
        together = {name: driver.text(name) for name in prompts}
        for name in ("b0", "b25", "b49"):
            alone = driver.answer(f"{name}-alone", payload, PREFIX_TOKENS, prompts[name], max_tokens=ANSWER_TOKENS)
            assert alone == together[name]


def test_of_eight_prompts_without_bos_the_empty_one_alone_is_refused(tiny_bpe_chat_path: Path) -> None:
    with driven(tiny_bpe_chat_path) as driver:
        engine = driver.engine
        prefix = engine.prefix_tokens(None, "the document", None)
        payload = driver.prefill(prefix)
        for number, text in enumerate(["what", " ", "\n", "a", "the answer", " .", "?"]):
            driver.start(f"b{number}", payload, len(prefix), engine.suffix_tokens(text, None))
        driver.start("empty", payload, len(prefix), np.zeros(0, np.int32))
        assert isinstance(driver.failure("empty"), InvalidBranch)
        for number in range(7):
            driver.text(f"b{number}")


def test_500_answers_of_random_bytes_survive_json_and_the_queue(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(random_tokens(100, seed=1))
        for number in range(500):
            prompt = random_tokens(3, seed=number)
            driver.start(f"b{number}", payload, 100, prompt, max_tokens=12, temperature=2.0, top_k=0, seed=number)
        texts = [driver.text(f"b{number}") for number in range(500)]
    assert json.loads(json.dumps(texts, ensure_ascii=False).encode()) == texts
    assert [unpack(pack(text)) for text in texts] == texts
    assert any("\ufffd" in text for text in texts)


def test_text_held_back_for_a_stop_string_is_released_at_the_last_token(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(random_tokens(100, seed=1))
        whole = driver.answer("whole", payload, 100, PROMPT, max_tokens=16)
        for length in (1, 2, 3):
            stop = (whole[-length:] + "\N{SNOWMAN}",)
            assert driver.answer(f"held{length}", payload, 100, PROMPT, max_tokens=16, stop=stop) == whole


def test_nothing_is_serialised_for_a_snapshot_without_room(
    tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(size_bytes: int) -> memoryview:
        asked.append(size_bytes)
        raise StoreFull("No room.")

    def never(*_: object) -> int:
        raise AssertionError("the state was written")

    with driven(tiny_llama_path) as driver, monkeypatch.context() as patch:
        patch.setattr(llama, "llama_state_seq_get_data", never)
        driver.engine.prefill(PrefillJob("p", random_tokens(300, seed=1), refuse))
        assert isinstance(driver.failure("p"), StoreFull)
        assert asked == [pytest.approx(300 * driver.engine.info.kv_bytes_per_token, rel=0.1)]


def test_sizes_of_states_cross_into_c_as_64_bits() -> None:
    size, data = llama.llama_state_seq_get_size, (llama.llama_state_seq_get_data, llama.llama_state_seq_set_data)
    for function in (size, *data):
        assert function.restype is ctypes.c_size_t
    for function in data:
        assert function.argtypes[2] is ctypes.c_size_t
    assert ctypes.sizeof(ctypes.c_size_t) == 8
