"""What a tiny model says of a document and a prompt in a cold run, and of no other document."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swarmkv.protocol.identity import digest_bytes
from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine.jobs import Tokens
from swarmkv.workers.opening import engine_config
from tests.decode_probe import Probe, probing

ANSWER_TOKENS = 6
GAP = 1e-3  # logits closer than this may swap places in a batch of another shape
BOS, FIRST_BYTE, SPACE = 1, 3, 259  # of the tiny models' vocabulary


@dataclass(frozen=True)
class Ask:
    """A prompt on a document, and the only right answer."""

    document: str
    prompt: str
    answer: str


def documents(count: int, length: int) -> list[str]:
    """Each begins with its own secret word; no two share a line."""
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(count)]
    texts = [f"The secret word is {word}. " for word in words]
    return [text + "".join(draw.choices("abcdefghij .", k=length - len(text))) for text in texts]


def prefix_of(document: str) -> Tokens:
    """The ids that a document has, told without the engine."""
    return np.array([BOS, *_ids(document)], np.int32)


def suffix_of(prompt: str) -> Tokens:
    """The ids of a prompt in the plain template."""
    return np.array(_ids(f"\n\nQuestion: {prompt}\nAnswer:"), np.int32)


def token_digest(document: str) -> str:
    """Of the ids as a snapshot holds them."""
    return digest_bytes(prefix_of(document).astype("<i4").tobytes())


def cold_answers(model_path: Path, settings: Settings, texts: list[str], prompts: list[str]) -> list[Ask]:
    """Every pair whose answer is clear and that no other document has. For a process of its own."""
    asks: list[Ask] = []
    with probing(engine_config("branch", model_path, settings)) as probe:
        for prompt in prompts:
            found = {text: _cold_answer(probe, text, prompt) for text in texts}
            answers = [answer for answer in found.values() if answer]
            asks += [Ask(text, prompt, a) for text, a in found.items() if a and answers.count(a) == 1]
    return asks


def is_bit_equal(model_path: Path, settings: Settings, payload: bytes, ask: Ask) -> bool:
    """A stored snapshot in an empty context against a cold run: every logit. For a process of its own."""
    prefix, prompt = prefix_of(ask.document), suffix_of(ask.prompt)
    with probing(engine_config("branch", model_path, settings)) as probe:
        restored = probe.logits_forked(payload, len(prefix), prompt)
    with probing(engine_config("branch", model_path, settings)) as probe:
        return bool(np.array_equal(restored, probe.logits_cold(prefix, prompt)))


def _cold_answer(probe: Probe, document: str, prompt: str) -> str | None:
    """Greedy; None where two tokens were near each other, or one was no byte."""
    tokens = np.concatenate([prefix_of(document), suffix_of(prompt)])
    position, answer = 0, bytearray()
    try:
        for _ in range(ANSWER_TOKENS):
            logits = probe.feed(tokens, position, 0)
            position += len(tokens)
            second, best = np.argsort(logits)[-2:]
            if logits[best] - logits[second] < GAP or best < FIRST_BYTE:
                return None
            answer += b" " if best == SPACE else bytes([best - FIRST_BYTE])
            tokens = np.array([best], np.int32)
    finally:
        probe.context.remove(0)
    return answer.decode("utf-8", "replace")


def _ids(text: str) -> list[int]:
    return [SPACE if byte == 0x20 else byte + FIRST_BYTE for byte in text.encode()]
