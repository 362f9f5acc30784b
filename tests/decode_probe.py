"""Logits of prompts behind prefixes, by the engine's context; also as a program, to do it in a new process.

    python -m tests.decode_probe CASES_DIR

reads `config.json` and, per case, `NAME.payload` and `NAME.npz` (prefix_tokens, prompt); writes `NAME.logits.npy`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarmkv.workers.engine.batch import Batch
from swarmkv.workers.engine.context import Context
from swarmkv.workers.engine.jobs import EngineConfig, Tokens
from swarmkv.workers.engine.model import Model

ANSWER_TOKENS = 4  # teacher-forced behind each prompt


class Probe:
    """One context; each `logits_*` begins with an empty one."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.context = Context(model, config)
        self._n_ubatch = config.n_ubatch
        self._batch = Batch(self.context.n_batch)

    def feed(self, tokens: Tokens, position: int, sequence: int) -> NDArray[np.float32]:
        """Decode as the engine does, in chunks of n_ubatch; logits of the last token, a copy."""
        for start in range(0, len(tokens), self._n_ubatch):
            self._batch.clear()
            chunk = tokens[start : start + self._n_ubatch]
            self._batch.add(chunk, position + start, sequence, wants_logits=True)
            self.context.decode(self._batch)
        logits: NDArray[np.float32] = self.context.logits(self._batch)[0].copy()
        return logits

    def answer(self, prompt: Tokens, position: int, sequence: int) -> NDArray[np.float32]:
        """Logits behind the prompt, then behind some more tokens: (1 + ANSWER_TOKENS, n_vocab)."""
        rows = [self.feed(prompt, position, sequence)]
        for number in range(ANSWER_TOKENS):
            token = np.array([3 + number], np.int32)
            rows.append(self.feed(token, position + len(prompt) + number, sequence))
        return np.array(rows)

    def export(self, prefix: Tokens) -> bytes:
        """Prefill sequence 0 and export it; it is removed."""
        self.feed(prefix, 0, 0)
        payload = bytearray(self.context.export_size(0))
        assert self.context.export_into(0, memoryview(payload)) == len(payload)
        self.context.remove(0)
        return bytes(payload)

    def logits_cold(self, prefix: Tokens, prompt: Tokens) -> NDArray[np.float32]:
        """No snapshot: prefix and prompt in one sequence."""
        self.feed(prefix, 0, 0)
        rows = self.answer(prompt, len(prefix), 0)
        self.context.remove(0)
        return rows

    def logits_forked(self, payload: bytes, prefix_tokens: int, prompt: Tokens) -> NDArray[np.float32]:
        """The engine's way: restore, fork, decode the prompt in the fork."""
        self.context.restore(0, memoryview(payload), prefix_tokens)
        self.context.fork(0, 1)
        rows = self.answer(prompt, prefix_tokens, 1)
        for sequence in (0, 1):
            self.context.remove(sequence)
        return rows


@contextmanager
def probing(config: EngineConfig) -> Iterator[Probe]:
    model = Model(config.model_path)
    probe = Probe(model, config)
    try:
        yield probe
    finally:
        probe.context.close()
        model.close()


def logits_in_a_new_process(
    directory: Path, config: EngineConfig, cases: dict[str, tuple[bytes, int, Tokens]]
) -> dict[str, NDArray[np.float32]]:
    """`logits_forked` of each case (payload, prefix_tokens, prompt), by a process that saw no prefill."""
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    (directory / "config.json").write_text(json.dumps(fields))
    for name, (payload, prefix_tokens, prompt) in cases.items():
        (directory / f"{name}.payload").write_bytes(payload)
        np.savez(directory / f"{name}.npz", prefix_tokens=prefix_tokens, prompt=prompt)
    subprocess.run([sys.executable, "-m", "tests.decode_probe", str(directory)], check=True, timeout=120)
    return {name: np.load(directory / f"{name}.logits.npy") for name in cases}


def _main(directory: Path) -> None:
    fields: dict[str, Any] = json.loads((directory / "config.json").read_text())
    for case in directory.glob("*.npz"):
        with np.load(case) as arrays, probing(EngineConfig(**fields)) as probe:
            payload = case.with_suffix(".payload").read_bytes()
            logits = probe.logits_forked(payload, int(arrays["prefix_tokens"]), arrays["prompt"])
        np.save(case.with_suffix(".logits.npy"), logits)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
