"""A branch on a snapshot says what a cold run says, on the real model with its sliding window.

Full attention, bit by bit, is in tests/integration/test_engine_exactness.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmkv.producer import Producer, Sampling
from tests.forced import compare
from tests.processes import Fleet
from tests.real_texts import COMPLETION, RealText, needles

WINDOW = 512
FORCED_TOKENS = 256

pytestmark = pytest.mark.real_model


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW])
def test_up_to_the_window_a_restored_branch_is_bit_equal_to_a_cold_run(
    text: RealText, real_model_path: Path, tmp_path: Path, length: int
) -> None:
    ids = text.prefix(text.document(length + FORCED_TOKENS))
    found = compare(real_model_path, ids[:length], ids[length:], tmp_path, with_flash=False)
    assert found.restored.is_bit_equal, found


@pytest.mark.parametrize("length", [WINDOW + 1, 2 * WINDOW, 5 * WINDOW])
def test_beyond_the_window_a_restored_branch_is_as_close_as_another_attention_kernel(
    text: RealText, real_model_path: Path, tmp_path: Path, length: int
) -> None:
    ids = text.prefix(text.document(length + FORCED_TOKENS))
    found = compare(real_model_path, ids[:length], ids[length:], tmp_path)
    assert found.is_as_close_as_flash, found
    assert found.flash is not None
    assert found.flash.mean_kl > 0, "the other kernel made no noise: nothing was measured"


async def test_a_fact_in_the_document_is_found_at_every_length_around_the_window(
    workers: Fleet, producer: Producer, text: RealText
) -> None:
    lengths = [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 5 * WINDOW]
    greedy = Sampling(temperature=0, max_tokens=10)
    for length, needle in zip(lengths, needles(), strict=False):
        document = text.document(length, needle)
        run = await producer.submit(document, [needle.prompt], template=COMPLETION, sampling=greedy)
        report = await run.results(60)
        branch = report.branches[0]
        assert (report.document_tokens, branch.tokens.reused, branch.tokens.recomputed) == (length, length, 0)
        assert needle.code in branch.text, (length, branch.text)
