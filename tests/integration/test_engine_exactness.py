"""A branch on a snapshot gives what a cold run gives, at equal batch shape and cell layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.decode_probe import logits_in_a_new_process, probing
from tests.engine_driver import driven, engine_config, random_tokens

N_BATCH, N_UBATCH = 256, 64
BOUNDARIES = sorted(
    {1, 2, 127, 128, 129, 130, 255, 256, 257, 511, 512, 513}
    | {N_UBATCH - 1, N_UBATCH, N_UBATCH + 1, N_BATCH - 1, N_BATCH, N_BATCH + 1}
)
PROMPT = random_tokens(20, seed=1)


@pytest.mark.parametrize("flash_attention", [False, True])
def test_full_attention_is_bit_equal_cold_forked_and_restored_in_another_process(
    tiny_llama_path: Path, tmp_path: Path, flash_attention: bool
) -> None:
    config = engine_config(tiny_llama_path, flash_attention=flash_attention)
    prefixes = {str(length): random_tokens(length, seed=length) for length in BOUNDARIES}
    with probing(config) as probe:
        payloads = {name: probe.export(prefix) for name, prefix in prefixes.items()}
        cold = {name: probe.logits_cold(prefix, PROMPT) for name, prefix in prefixes.items()}
        forked = {
            name: probe.logits_forked(payloads[name], len(prefix), PROMPT) for name, prefix in prefixes.items()
        }
    cases = {name: (payloads[name], len(prefix), PROMPT) for name, prefix in prefixes.items()}
    restored = logits_in_a_new_process(tmp_path, config, cases)

    for name in prefixes:
        np.testing.assert_array_equal(forked[name], cold[name], err_msg=f"forked, {name} tokens")
        np.testing.assert_array_equal(restored[name], cold[name], err_msg=f"restored, {name} tokens")


def test_a_sliding_window_is_bit_equal_up_to_the_window_and_close_beyond(
    tiny_gemma3_path: Path, tmp_path: Path
) -> None:
    config = engine_config(tiny_gemma3_path, n_ctx=2048)
    window = 64
    prefixes = {
        str(length): random_tokens(length, seed=length)
        for length in (window - 1, window, window + 1, 2 * window, 5 * window)
    }
    with probing(config) as probe:
        payloads = {name: probe.export(prefix) for name, prefix in prefixes.items()}
        cold = {name: probe.logits_cold(prefix, PROMPT) for name, prefix in prefixes.items()}
    cases = {name: (payloads[name], len(prefix), PROMPT) for name, prefix in prefixes.items()}
    restored = logits_in_a_new_process(tmp_path, config, cases)

    for name, prefix in prefixes.items():
        if len(prefix) <= window:
            np.testing.assert_array_equal(restored[name], cold[name], err_msg=f"{name} tokens")
        else:
            np.testing.assert_allclose(restored[name], cold[name], atol=1e-3, err_msg=f"{name} tokens")


def test_another_documents_snapshot_gives_other_logits(tiny_llama_path: Path) -> None:
    # Or the tests above would pass on a context that ignores the prefix.
    with probing(engine_config(tiny_llama_path)) as probe:
        one, other = (
            probe.logits_forked(probe.export(random_tokens(200, seed=seed)), 200, PROMPT) for seed in (1, 2)
        )
    assert np.abs(one - other).max() > 0.1


def test_three_snapshots_on_one_sequence_each_match_their_cold_run(tiny_llama_path: Path) -> None:
    config = engine_config(tiny_llama_path)
    long, short = random_tokens(900, seed=1), random_tokens(50, seed=2)
    with probing(config) as probe:
        payloads = {900: probe.export(long), 50: probe.export(short)}
        cold = {900: probe.logits_cold(long, PROMPT), 50: probe.logits_cold(short, PROMPT)}
        for length in (900, 50, 900):
            np.testing.assert_array_equal(probe.logits_forked(payloads[length], length, PROMPT), cold[length])


def test_a_snapshots_size_depends_on_its_tokens_alone(tiny_llama_path: Path) -> None:
    sizes = []
    for n_ctx in (1024, 8192):
        with driven(tiny_llama_path, n_ctx=n_ctx) as driver:
            size = len(driver.prefill(random_tokens(300, seed=1)))
            predicted = 300 * driver.engine.info.kv_bytes_per_token
            assert size == pytest.approx(predicted, rel=0.1)
            sizes.append(size)
    assert sizes[0] == sizes[1]


def test_the_engine_answers_as_a_cold_greedy_run_does(tiny_llama_path: Path) -> None:
    prefix = random_tokens(300, seed=5)
    config = engine_config(tiny_llama_path)
    with probing(config) as probe:
        logits = probe.feed(prefix, 0, 0)
        logits = probe.feed(PROMPT, 300, 0)
        expected = []
        for number in range(24):
            expected.append(int(np.argmax(logits)))
            logits = probe.feed(np.array(expected[-1:], np.int32), 320 + number, 0)
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(prefix)
        driver.start("a", payload, 300, PROMPT, max_tokens=24)
        text = driver.text("a")
        pieces = b"".join(driver.engine._vocab.piece(token) for token in expected)
    assert text == pieces.decode("utf-8", "replace")
