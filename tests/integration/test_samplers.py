"""Sampler chains against distributions worked out by hand, and against llama.cpp's own samplers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from swarmkv.protocol.errors import DecodeFailed, InvalidBranch
from swarmkv.protocol.messages import Sampling
from swarmkv.workers.engine.backend import llama
from swarmkv.workers.engine.samplers import Greedy, Sampler, is_greedy
from tests.raw_context import RawContext, raw_context

Logits = NDArray[np.float32]
NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
# Probabilities 0.4, 0.3, 0.2, 0.1 for tokens 10 to 13, nothing for others.
FOUR = {10: 0.4, 11: 0.3, 12: 0.2, 13: 0.1}


@pytest.fixture(scope="module")
def context(tiny_llama_path: Path) -> Iterator[RawContext]:
    with raw_context(tiny_llama_path) as context:
        context.decode([1, 50, 60])
        yield context


def logits_of(context: RawContext, probabilities: dict[int, float]) -> Logits:
    logits = np.full(context.vocab.n_tokens, -1e9, np.float32)
    for token, probability in probabilities.items():
        logits[token] = np.log(probability)
    return logits


def distribution(context: RawContext, sampling: Sampling, logits: Logits, *before: int) -> dict[int, float]:
    """What a branch's chain makes of logits after it has seen `before`: token to probability."""
    sampler = Sampler(context.vocab, sampling)
    sampler.accept(np.array(before, np.int32))
    rows = (llama.llama_token_data * len(logits))(
        *(llama.llama_token_data(token, value, 0.0) for token, value in enumerate(logits.tolist()))
    )
    array = llama.llama_token_data_array(rows, len(logits), -1, False)
    llama.llama_sampler_apply(sampler._chain, ctypes.byref(array))
    left = {int(array.data[i].id): float(array.data[i].p) for i in range(array.size)}
    sampler.close()
    return {token: probability for token, probability in left.items() if probability > 1e-9}


def draw(context: RawContext, sampling: Sampling, count: int) -> list[int]:
    """Tokens drawn one after another from the same logits by one branch's sampler."""
    sampler = Sampler(context.vocab, sampling)
    tokens = [sampler.sample(context.ptr, -1) for _ in range(count)]
    sampler.close()
    return tokens


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, FOUR),
        ({"top_k": 2}, {10: 0.4, 11: 0.3}),
        ({"top_k": 1}, {10: 1.0}),
        ({"top_p": 0.65}, {10: 0.4, 11: 0.3}),
        ({"top_p": 0.0}, {10: 1.0}),
        ({"min_p": 0.6}, {10: 0.4, 11: 0.3}),
        ({"temperature": 0.5}, {10: 0.16, 11: 0.09, 12: 0.04, 13: 0.01}),
        # Entropy 1.28 nats; surprise of 0.3 (1.20) is the nearest to it, then 0.2's (1.61).
        ({"typical_p": 0.4}, {11: 0.3, 12: 0.2}),
        ({"logit_bias": {13: float(np.log(4))}}, {10: 0.4, 11: 0.3, 12: 0.2, 13: 0.4}),
        ({"logit_bias": {10: -1e300}}, {11: 0.3, 12: 0.2, 13: 0.1}),
        ({"logit_bias": {200: 1e300}}, {200: 1.0}),
        # Order: top_k 3 leaves 4:3:2, of which top_p 0.7 keeps two; temperature sees only those.
        ({"top_k": 3, "top_p": 0.7, "temperature": 0.5}, {10: 0.16, 11: 0.09}),
        # top_p before min_p: the other way round three would be left.
        ({"top_p": 0.69, "min_p": 0.45}, {10: 0.4, 11: 0.3}),
    ],
)
def test_a_chain_gives_the_distribution_worked_out_by_hand(
    context: RawContext, changes: dict[str, Any], expected: dict[int, float]
) -> None:
    sampling = Sampling(**{**NEUTRAL, **changes})
    total = sum(expected.values())
    wanted = {token: pytest.approx(share / total, rel=1e-4) for token, share in expected.items()}
    assert distribution(context, sampling, logits_of(context, FOUR)) == wanted


def test_penalties_lower_what_was_seen_by_count_presence_and_factor(context: RawContext) -> None:
    logits = logits_of(context, FOUR)
    penalties = {"repeat_penalty": 2.0, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    got = distribution(context, Sampling(**NEUTRAL, **penalties), logits, 10, 10, 11)
    # Negative logits are multiplied by the factor; 10 was seen twice, 11 once.
    shares = {10: 0.4**2 * np.exp(-1.0), 11: 0.3**2 * np.exp(-0.75), 12: 0.2, 13: 0.1}
    total = sum(shares.values())
    assert got == {token: pytest.approx(share / total, rel=1e-4) for token, share in shares.items()}


def test_penalties_forget_what_lies_before_the_last_n(context: RawContext) -> None:
    sampling = Sampling(**NEUTRAL, presence_penalty=1.0, repeat_last_n=2)
    logits = logits_of(context, FOUR)
    forgotten = distribution(context, sampling, logits, 10, 200, 201)
    assert forgotten == {token: pytest.approx(share, rel=1e-4) for token, share in FOUR.items()}


def test_a_bias_is_applied_before_the_penalties_as_in_llama_server(context: RawContext) -> None:
    # log(0.4) + 5 is positive and so divided; the other way round it would have been multiplied first.
    sampling = Sampling(**NEUTRAL, repeat_penalty=2.0, logit_bias={10: 5.0})
    got = distribution(context, sampling, logits_of(context, FOUR), 10)
    share = np.exp((np.log(0.4) + 5.0) / 2)
    assert got[10] == pytest.approx(share / (share + 0.6), rel=1e-4)


def test_sample_remembers_what_it_drew_for_the_penalties(context: RawContext) -> None:
    context.overwrite_logits(logits_of(context, FOUR))
    sampling = Sampling(temperature=0.0, presence_penalty=2.0, repeat_last_n=64)
    assert draw(context, sampling, 4) == [10, 11, 12, 13]


def test_a_long_draw_follows_the_distribution(context: RawContext) -> None:
    context.overwrite_logits(logits_of(context, FOUR))
    counts = np.bincount(draw(context, Sampling(**NEUTRAL, seed=1), 4000), minlength=14)[10:14]
    assert counts.sum() == 4000
    np.testing.assert_allclose(counts / 4000, list(FOUR.values()), atol=0.03)


def test_ignore_eos_forbids_every_token_that_ends_and_no_other(context: RawContext) -> None:
    eog = context.vocab.eog_tokens[0]
    logits = logits_of(context, {eog: 0.9, 10: 0.1})
    assert distribution(context, Sampling(**NEUTRAL), logits)[eog] == pytest.approx(0.9, rel=1e-4)
    ignoring = Sampling(**NEUTRAL, ignore_eos=True, logit_bias={eog: 100.0})
    assert distribution(context, ignoring, logits) == {10: pytest.approx(1.0)}


def test_tokens_that_the_model_suppresses_are_never_drawn(
    context: RawContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context.vocab, "suppressed", (10,))
    assert 10 not in distribution(context, Sampling(**NEUTRAL), logits_of(context, FOUR))
    logits = logits_of(context, FOUR)
    assert Greedy(context.vocab, Sampling(temperature=0.0)).pick(logits) == 11


@pytest.mark.parametrize("token", [260, 2**31 - 1])
def test_a_bias_on_a_token_that_is_not_there_is_refused_with_the_range(context: RawContext, token: int) -> None:
    with pytest.raises(InvalidBranch, match=f"token {token}; the model has tokens 0 to 259"):
        Sampler(context.vocab, Sampling(logit_bias={token: 1.0}))


@pytest.mark.parametrize("seed", [0, 1, 0xFFFFFFFE, 0xFFFFFFFF])
def test_the_same_seed_draws_the_same_tokens_and_another_others(context: RawContext, seed: int) -> None:
    context.overwrite_logits(np.zeros(context.vocab.n_tokens, np.float32))
    sampling = Sampling(**NEUTRAL, seed=seed)
    assert draw(context, sampling, 50) == draw(context, sampling, 50)
    assert draw(context, sampling, 50) != draw(context, Sampling(**NEUTRAL, seed=7), 50)


def test_no_state_of_one_branch_reaches_the_next(context: RawContext) -> None:
    context.overwrite_logits(logits_of(context, FOUR))
    plain = Sampling(**NEUTRAL, seed=3)
    first_use = draw(context, plain, 50)
    draw(context, Sampling(temperature=2.0, presence_penalty=2.0, logit_bias={10: -100.0}, seed=9), 50)
    assert draw(context, plain, 50) == draw(context, plain, 50) == first_use


def test_two_branches_that_take_turns_draw_what_each_draws_alone(context: RawContext) -> None:
    context.overwrite_logits(logits_of(context, FOUR))
    samplings = [Sampling(**NEUTRAL, seed=seed, presence_penalty=0.5) for seed in (3, 4)]
    alone = [draw(context, sampling, 30) for sampling in samplings]
    samplers = [Sampler(context.vocab, sampling) for sampling in samplings]
    turns = [[sampler.sample(context.ptr, -1) for sampler in samplers] for _ in range(30)]
    for sampler in samplers:
        sampler.close()
    assert [list(tokens) for tokens in zip(*turns, strict=True)] == alone


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0),
        Sampling(temperature=1e-40),
        Sampling(temperature=0.0, top_k=5, top_p=0.1, seed=1),
        Sampling(temperature=0.0, repeat_last_n=0, presence_penalty=1.0),
        Sampling(temperature=0.0, ignore_eos=True),
    ],
)
def test_greedy_is_what_the_chain_picks_ties_and_bans_included(context: RawContext, sampling: Sampling) -> None:
    assert is_greedy(sampling)
    rng = np.random.default_rng(0)
    rows = rng.integers(-3, 3, (50, context.vocab.n_tokens)).astype(np.float32)  # full of ties
    rows[0] = -np.inf
    rows[1] = 0.0
    rows[2, context.vocab.eog_tokens[0]] = 9.0
    picked = []
    for row in rows:
        context.overwrite_logits(row)
        picked += draw(context, sampling, 1)
    greedy = Greedy(context.vocab, sampling)
    assert [greedy.pick(row) for row in rows] == picked


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.1),
        Sampling(temperature=0.0, repeat_penalty=1.1),
        Sampling(temperature=0.0, frequency_penalty=0.1),
        Sampling(temperature=0.0, logit_bias={5: 1.0}),
    ],
)
def test_what_weighs_the_logits_is_not_greedy(sampling: Sampling) -> None:
    assert not is_greedy(sampling)


def test_a_row_without_logits_is_an_error_and_no_crash(context: RawContext) -> None:
    sampler = Sampler(context.vocab, Sampling())
    with pytest.raises(DecodeFailed, match="Row 5"):
        sampler.sample(context.ptr, 5)
    sampler.close()


def test_closing_a_sampler_twice_is_harmless(context: RawContext) -> None:
    sampler = Sampler(context.vocab, Sampling())
    sampler.close()
    sampler.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 100.0, "repeat_penalty": 1e-300},
        {"temperature": 1e-6, "logit_bias": {10: 1e300, 11: 1e300}},
        {"temperature": 1e-6, "logit_bias": dict.fromkeys(range(260), -1e300)},
        {"typical_p": 0.0, "top_p": 0.0, "min_p": 1.0, "top_k": 1_000_000},
        {"repeat_last_n": 65536, "repeat_penalty": 10.0, "frequency_penalty": -2.0},
    ],
)
def test_extreme_but_valid_settings_draw_tokens_of_the_vocabulary(
    context: RawContext, changes: dict[str, Any]
) -> None:
    context.overwrite_logits(logits_of(context, FOUR))
    tokens = draw(context, Sampling(**changes, seed=1), 20)
    assert all(0 <= token < context.vocab.n_tokens for token in tokens)


@pytest.mark.real_model
def test_the_defaults_on_the_real_model_draw_only_tokens_that_survive_them(real_model_path: Path) -> None:
    with raw_context(real_model_path, n_ctx=64) as context:
        ids = context.vocab.tokenize("The capital of France is", parse_special=False).tolist()
        logits = context.decode([context.vocab.bos, *ids]).astype(np.float64)
        best = np.sort(logits)[::-1][:40]
        shares = np.exp(best - best[0])
        kept = int(np.searchsorted(np.cumsum(shares / shares.sum()), 0.95) + 1)
        kept = min(kept, int((shares >= 0.05).sum()))
        drawn = draw(context, Sampling(seed=5), 500)
        assert drawn == draw(context, Sampling(seed=5), 500)
    assert set(drawn) == set(np.argsort(-logits)[:kept].tolist())
