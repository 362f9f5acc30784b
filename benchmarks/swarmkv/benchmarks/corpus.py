"""Seeded documents of an exact number of tokens, and prompts: text for queues and servers, ids for engines."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swarmkv.benchmarks.errors import BenchFailed
from swarmkv.benchmarks.texts import Text
from swarmkv.workers.engine.jobs import Tokens
from swarmkv.workers.engine.model import Model
from swarmkv.workers.engine.templates import template_of
from swarmkv.workers.engine.tokens import Vocab

TOPICS = ("slots", "timeouts", "valves", "alarms", "power", "logging", "tests", "limits", "faults", "records")
_NUMBER = re.compile(r"\d+")


class Corpus:
    """Texts for one model, all made from `sample`. The same seed and names give the same texts.

    Owns the model's vocabulary until `close`.
    """

    def __init__(self, model_path: Path, sample: str, seed: int) -> None:
        self._model = Model(model_path)
        self._vocab = Vocab(self._model.ptr, space_prefix=self._model.space_prefix)
        bos, eos = (self._vocab.text(token) for token in (self._vocab.bos, _eos(self._vocab)))
        self._template = template_of(self._model.chat_template, bos, None, eos)
        self._sample = sample
        self._seed = seed

    def document(self, name: str, tokens: int) -> Text:
        """A document whose prefix has exactly `tokens` tokens; every name gives another one from its start on."""
        numbers = random.Random(f"{self._seed} {name}")  # noqa: S311 - text, not secret
        text = f"Edition {numbers.randrange(10**6)} ({name})\n\n"
        while len(ids := self._prefix(text)) <= tokens:
            text += _NUMBER.sub(lambda _: str(numbers.randrange(10, 100)), self._sample) + "\n\n"
        return self._cut(ids, tokens, len(self._prefix("")))

    def prompts(self, name: str, count: int) -> list[Text]:
        """Questions, each another one."""
        numbers = random.Random(f"{self._seed} {name} prompts")  # noqa: S311
        texts = [
            f"What does section {number} say about {numbers.choice(TOPICS)}?"
            for number in numbers.sample(range(10, 10 + 10 * count), count)
        ]
        return [Text(text, self._template.suffix_tokens(self._vocab, text)) for text in texts]

    def facts(self) -> dict[str, Any]:
        """What the model is, for the document of the results."""
        model = self._model
        return {
            "file": model.path.name,
            "bytes": model.path.stat().st_size,
            "architecture": model.architecture,
            "name": model.metadata.get("general.name", ""),
            "fingerprint": model.fingerprint,
            "window": model.window,
        }

    def close(self) -> None:
        self._model.close()

    def _prefix(self, document: str) -> Tokens:
        return self._template.prefix_tokens(self._vocab, None, document)

    def _cut(self, ids: Tokens, tokens: int, frame: int) -> Text:
        """Of the document behind `ids` as much as makes `tokens` ids; `frame` of them are not the document's."""
        pieces = [self._vocab.piece(token) for token in ids[: tokens + frame].tolist()]
        for end in range(tokens, tokens // 2, -1):  # what is cut may merge anew: give way until it does not
            cut = b"".join(pieces[:end]).decode("utf-8", "ignore")
            text = cut + " ." * ((tokens - len(self._prefix(cut))) // self._filler)
            if len(found := self._prefix(text)) == tokens:
                return Text(text, found)
        raise BenchFailed(
            f"No document of exactly {tokens} tokens could be made.", hint="Try another --doc-tokens."
        )

    @property
    def _filler(self) -> int:
        """Tokens of one " ."."""
        return max(1, len(self._prefix("a . . .")) - len(self._prefix("a . .")))


@contextmanager
def open_corpus(model_path: Path, sample: str, seed: int) -> Iterator[Corpus]:
    """A corpus that is closed afterwards. Raises ModelError."""
    corpus = Corpus(model_path, sample, seed)
    try:
        yield corpus
    finally:
        corpus.close()


def _eos(vocab: Vocab) -> int:
    from swarmkv.workers.engine.backend import llama

    return int(llama.llama_vocab_eos(vocab.ptr))
