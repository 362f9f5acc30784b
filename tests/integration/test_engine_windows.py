"""A sliding window, whose cells are a ring: restored at any length, crowded and fragmented."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.decode_probe import logits_in_a_new_process, probing
from tests.engine_driver import driven, engine_config, random_tokens
from tests.integration.test_engine_exactness import BOUNDARIES

WINDOW = 64
NOISE = 5e-3  # of logits: sums in another order, and a GELU that is looked up by 16 bits; a wrong cell makes 0.1
PROMPT = random_tokens(20, seed=1)
SIZES = (40, 64, 65, 210, 455)


def test_a_window_comes_back_at_every_length_around_every_boundary(tiny_gemma3_path: Path, tmp_path: Path) -> None:
    config = engine_config(tiny_gemma3_path)
    prefixes = {str(length): random_tokens(length, seed=length) for length in BOUNDARIES}
    with probing(config) as probe:
        payloads = {name: probe.export(prefix) for name, prefix in prefixes.items()}
        cold = {name: probe.logits_cold(prefix, PROMPT) for name, prefix in prefixes.items()}
        forked = {
            name: probe.logits_forked(payloads[name], len(prefix), PROMPT) for name, prefix in prefixes.items()
        }
    cases = {name: (payloads[name], len(prefix), PROMPT) for name, prefix in prefixes.items()}
    restored = logits_in_a_new_process(tmp_path, config, cases)

    for name, prefix in prefixes.items():
        tolerance = 0 if len(prefix) <= WINDOW else NOISE
        for logits in (forked[name], restored[name]):
            np.testing.assert_allclose(logits, cold[name], rtol=0, atol=tolerance, err_msg=f"{name} tokens")


def test_a_fragmented_ring_keeps_answering_for_100_rounds(tiny_gemma3_path: Path) -> None:
    chance = random.Random(16)
    documents = {f"doc{size}": random_tokens(size, seed=size) for size in SIZES}
    with driven(tiny_gemma3_path, n_ctx=1024, residents=4) as driver:
        payloads = {name: driver.prefill(tokens, name) for name, tokens in documents.items()}
        for number in range(100):
            name = chance.choice(list(documents))
            prompt = random_tokens(chance.choice([1, 30, 100]), seed=number)
            driver.start(
                f"b{number}",
                payloads[name],
                len(documents[name]),
                prompt,
                snapshot=name,
                max_tokens=chance.randint(1, 60),
            )
            if number >= 8:
                driver.text(f"b{number - 8}")
        for number in range(100):
            driver.text(f"b{number}")
        context = driver.engine._context
        for name, tokens in documents.items():
            # What is restored into the holes is what a fresh context restores.
            driver.answer(f"{name}-late", payloads[name], len(tokens), PROMPT, snapshot=f"{name}-late")
            resident = driver.engine._loop._scheduler.residents[f"{name}-late"]
            assert context.position_after(resident.sequence) == len(tokens)
            late = driver.text(f"{name}-late")
            with driven(tiny_gemma3_path) as fresh:
                assert fresh.answer("fresh", payloads[name], len(tokens), PROMPT) == late


@pytest.mark.parametrize("model", ["tiny_llama_path", "tiny_gemma3_path"])
def test_a_short_snapshot_over_a_long_answer_is_as_in_an_empty_context(
    model: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(model)
    with driven(path) as driver:
        long, short = (
            driver.prefill(random_tokens(400, seed=1), "l"),
            driver.prefill(random_tokens(50, seed=2), "s"),
        )
        expected = driver.answer("first", short, 50, PROMPT, snapshot="short")
    with driven(path, slots=1, residents=1) as driver:
        context = driver.engine._context
        for turn in range(5):
            driver.answer(f"long{turn}", long, 400, PROMPT, snapshot=f"long{turn}", max_tokens=300)
            assert driver.answer(f"short{turn}", short, 50, PROMPT, snapshot=f"short{turn}") == expected
            ends = [context.position_after(sequence) for sequence in range(context.n_sequences)]
            assert ends == [50, 0, 0]  # the resident, the slot, the prefill
