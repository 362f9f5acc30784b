"""How a branch picks its tokens: the likeliest, or one llama.cpp sampler chain a branch in llama-server's order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from swarmkv.protocol.errors import DecodeFailed, InvalidBranch
from swarmkv.protocol.messages import Sampling
from swarmkv.workers.engine.backend import llama
from swarmkv.workers.engine.tokens import Vocab

MIN_TEMPERATURE = 1e-6  # logits divided by less overflow float32; it is greedy in all but name
MAX_BIAS = 1e30  # a larger one turns into infinity on the way, and two infinities into NaN
MAX_SEED = 0xFFFFFFFE  # the one above asks llama.cpp for a random seed
RANDOM_SEED = 0xFFFFFFFF


class Sampler:
    """The sampler chain of one branch: a random state, and the last tokens for the penalties.

    Owns C memory until `close`. Not thread-safe: it belongs to the thread that owns the context. Raises
    InvalidBranch for a logit_bias on a token that the vocabulary does not have.
    """

    def __init__(self, vocab: Vocab, sampling: Sampling) -> None:
        biases = _biases(vocab, sampling)
        self._memory = sampling.repeat_last_n if _has_penalties(sampling) else 0
        params = llama.llama_sampler_chain_default_params()
        params.no_perf = True
        self._chain: int | None = llama.llama_sampler_chain_init(params)
        for link in _links(vocab, sampling, biases):
            llama.llama_sampler_chain_add(self._chain, link)  # the chain frees it

    def accept(self, tokens: NDArray[np.int32]) -> None:
        """Let the penalties see tokens that were not sampled here, as llama-server does with a prompt."""
        if self._memory:
            for token in tokens[-self._memory :].tolist():
                llama.llama_sampler_accept(self._chain, token)

    def sample(self, ctx_ptr: int, row: int) -> int:
        """Draw a token from logits row `row` of the last decode, and remember it for the penalties.

        Raises DecodeFailed when that row asked for no logits.
        """
        if not llama.llama_get_logits_ith(ctx_ptr, row):  # llama_sampler_sample would abort
            raise DecodeFailed(f"Row {row} of the batch has no logits.")
        return int(llama.llama_sampler_sample(self._chain, ctx_ptr, row))

    def close(self) -> None:
        """Free the chain; the sampler is of no use afterwards. May be called twice."""
        if self._chain is not None:
            llama.llama_sampler_free(self._chain)
            self._chain = None


class Greedy:
    """The likeliest token that is not banned, the first of equals; nothing is remembered, nothing to free.

    Picks what `Sampler` would pick for the same branch, without copying a row of a large vocabulary.
    """

    def __init__(self, vocab: Vocab, sampling: Sampling) -> None:
        self._banned: NDArray[np.intp] = np.array(_banned(vocab, sampling), np.intp)

    def pick(self, logits: NDArray[np.float32]) -> int:
        """The id for one row of logits, shape (n_vocab,), in which the banned tokens' are overwritten."""
        logits[self._banned] = -np.inf
        return int(logits.argmax())


def is_greedy(sampling: Sampling) -> bool:
    """Whether `Greedy` does for this branch: its logits are compared, and none is changed but by a ban."""
    return sampling.temperature < MIN_TEMPERATURE and not sampling.logit_bias and not _has_penalties(sampling)


def _links(vocab: Vocab, sampling: Sampling, biases: list[tuple[int, float]]) -> Iterator[int]:
    """The chain's samplers in order, less those that llama.cpp itself makes empty."""
    if biases:
        yield _bias_link(vocab, biases)
    if _has_penalties(sampling):
        yield llama.llama_sampler_init_penalties(
            vocab.n_tokens,
            sampling.repeat_last_n,
            sampling.repeat_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
    if sampling.temperature < MIN_TEMPERATURE:
        yield llama.llama_sampler_init_greedy()
    else:
        yield from _drawing_links(sampling)


def _drawing_links(sampling: Sampling) -> Iterator[int]:
    if sampling.top_k > 0:
        yield llama.llama_sampler_init_top_k(sampling.top_k)
    if sampling.typical_p < 1.0:
        yield llama.llama_sampler_init_typical(sampling.typical_p, 0)
    if sampling.top_p < 1.0:
        yield llama.llama_sampler_init_top_p(sampling.top_p, 0)
    if sampling.min_p > 0.0:
        yield llama.llama_sampler_init_min_p(sampling.min_p, 0)
    if sampling.temperature != 1.0:
        yield llama.llama_sampler_init_temp(sampling.temperature)
    seed = RANDOM_SEED if sampling.seed is None else min(sampling.seed, MAX_SEED)
    yield llama.llama_sampler_init_dist(seed)


def _bias_link(vocab: Vocab, biases: list[tuple[int, float]]) -> int:
    entries = [llama.llama_logit_bias(token, bias) for token, bias in biases]
    array = (llama.llama_logit_bias * len(entries))(*entries)  # copied by llama.cpp
    link: int = llama.llama_sampler_init_logit_bias(vocab.n_tokens, len(biases), array)
    return link


def _biases(vocab: Vocab, sampling: Sampling) -> list[tuple[int, float]]:
    for token in sampling.logit_bias:
        if not 0 <= token < vocab.n_tokens:
            raise InvalidBranch(f"logit_bias names token {token}; the model has tokens 0 to {vocab.n_tokens - 1}.")
    biases = [(token, max(-MAX_BIAS, min(bias, MAX_BIAS))) for token, bias in sampling.logit_bias.items()]
    return biases + [(token, -float("inf")) for token in _banned(vocab, sampling)]


def _banned(vocab: Vocab, sampling: Sampling) -> list[int]:
    """Tokens that this branch may never draw."""
    return [*vocab.suppressed, *(vocab.eog_tokens if sampling.ignore_eos else ())]


def _has_penalties(sampling: Sampling) -> bool:
    is_neutral = (
        sampling.repeat_penalty == 1.0 and sampling.frequency_penalty == 0.0 and sampling.presence_penalty == 0.0
    )
    return sampling.repeat_last_n > 0 and not is_neutral
