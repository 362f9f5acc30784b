"""How close a restored prefix is to a cold run: the distributions behind many teacher-forced tokens.

cold       prefix, then the tokens one by one; logits kept in a file
restored   the snapshot of a prefill, in a new process; compared with cold
flash      a cold run with flash attention on: the noise that another kernel makes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine.jobs import EngineConfig, Tokens
from swarmkv.workers.opening import engine_config
from tests.decode_probe import Probe, probing
from tests.new_process import in_a_new_process

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Agreement:
    """Two runs over the same tokens. `mean_kl`: nats from the first; `top1`: share of equal likeliest tokens."""

    is_bit_equal: bool
    mean_kl: float
    top1: float


@dataclass(frozen=True)
class Comparison:
    """Against the cold run with flash attention off."""

    restored: Agreement
    flash: Agreement | None

    @property
    def is_as_close_as_flash(self) -> bool:
        """Within what the project promises beyond a sliding window."""
        assert self.flash is not None
        is_near = self.restored.mean_kl <= 2 * self.flash.mean_kl
        return is_near and self.restored.top1 >= self.flash.top1 - 0.03


def compare(
    model_path: Path, prefix: Tokens, forced: Tokens, directory: Path, *, with_flash: bool = True
) -> Comparison:
    """Run cold, restored and, if asked for, with flash attention; each in its own process, workers' settings."""
    settings = Settings(_env_file=None)
    branch = engine_config("branch", model_path, settings)
    payload = in_a_new_process(_export, engine_config("prefill", model_path, settings), prefix)
    cold = directory / "cold.npy"
    in_a_new_process(_write_cold, branch, prefix, forced, cold)
    try:
        restored = in_a_new_process(_compare_restored, branch, payload, len(prefix), forced, cold)
        with_other_kernel = replace(branch, flash_attention=True)
        flash = in_a_new_process(_compare_cold, with_other_kernel, prefix, forced, cold) if with_flash else None
    finally:
        cold.unlink()  # a gigabyte for a thousand tokens
    return Comparison(restored, flash)


def _export(config: EngineConfig, prefix: Tokens) -> bytes:
    with probing(config) as probe:
        return probe.export(prefix)


def _write_cold(config: EngineConfig, prefix: Tokens, forced: Tokens, path: Path) -> None:
    with probing(config) as probe:
        rows = np.lib.format.open_memmap(path, "w+", np.float32, (len(forced), probe.context.n_vocab))
        for index, row in enumerate(_cold_rows(probe, prefix, forced)):
            rows[index] = row


def _compare_cold(config: EngineConfig, prefix: Tokens, forced: Tokens, reference: Path) -> Agreement:
    with probing(config) as probe:
        assert probe.context.flash_attention == config.flash_attention
        return _agreement(np.load(reference, mmap_mode="r"), _cold_rows(probe, prefix, forced))


def _compare_restored(
    config: EngineConfig, payload: bytes, prefix_tokens: int, forced: Tokens, reference: Path
) -> Agreement:
    with probing(config) as probe:
        probe.context.restore(0, memoryview(payload), prefix_tokens)
        probe.context.fork(0, 1)
        rows = _forced_rows(probe, prefix_tokens, forced, sequence=1)
        return _agreement(np.load(reference, mmap_mode="r"), rows)


def _cold_rows(probe: Probe, prefix: Tokens, forced: Tokens) -> Iterator[Logits]:
    probe.feed(prefix, 0, 0)
    yield from _forced_rows(probe, len(prefix), forced, sequence=0)


def _forced_rows(probe: Probe, position: int, forced: Tokens, *, sequence: int) -> Iterator[Logits]:
    for index in range(len(forced)):
        yield probe.feed(forced[index : index + 1], position + index, sequence)


def _agreement(reference: Logits, rows: Iterator[Logits]) -> Agreement:
    equal, divergences, agreeing = [], [], []
    for expected, row in zip(reference, rows, strict=True):
        equal.append(np.array_equal(expected, row))
        divergences.append(_divergence(expected, row))
        agreeing.append(expected.argmax() == row.argmax())
    return Agreement(all(equal), float(np.mean(divergences)), float(np.mean(agreeing)))


def _divergence(expected: Logits, row: Logits) -> float:
    """KL divergence in nats, in double precision."""
    log_p, log_q = (_log_softmax(logits.astype(np.float64)) for logits in (expected, row))
    return float(np.sum(np.exp(log_p) * (log_p - log_q)))


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())  # type: ignore[no-any-return]
