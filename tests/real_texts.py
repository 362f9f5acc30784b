"""Texts for the real model: documents of an exact number of tokens, facts to be found in them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from swarmkv.workers.engine.backend import llama
from swarmkv.workers.engine.jobs import Tokens
from swarmkv.workers.engine.model import Model
from swarmkv.workers.engine.templates import PromptTemplate, template_of
from swarmkv.workers.engine.tokens import Vocab

# A base model completes sentences more reliably than it answers questions.
COMPLETION = "{document}\n\n{prompt}"
SPECIFICATION = (files("swarmkv.cli") / "samples" / "specification.md").read_text()
_PLACES = ("Marlow", "Skerry", "Tarn", "Holm", "Ebbing", "Larkfield", "Osney", "Penrhyn", "Quay", "Redwick")
_BUILDINGS = ("pumping station", "harbour office")


@dataclass(frozen=True)
class Needle:
    """A made-up fact: a name and a code that no other text has."""

    name: str
    code: str

    @property
    def sentence(self) -> str:
        return f"The access code of the {self.name} is {self.code}."

    @property
    def prompt(self) -> str:
        """The sentence up to the code, for COMPLETION."""
        return self.sentence.removesuffix(f" {self.code}.")


def needles(seed: int = 0) -> list[Needle]:
    """Twenty facts; no code is part of another."""
    names = [f"{place} {building}" for place in _PLACES for building in _BUILDINGS]
    codes = random.Random(seed).sample(range(10_000, 100_000), len(names))
    return [Needle(name, str(code)) for name, code in zip(names, codes, strict=True)]


class RealText:
    """The real model's vocabulary, for counting and for the ids that are right."""

    def __init__(self, model: Model) -> None:
        self.vocab = Vocab(model.ptr, space_prefix=model.space_prefix)
        self._chat_template = model.chat_template

    def prefix(self, document: str) -> Tokens:
        """Ids of a document as the prefill worker makes them."""
        return self._template(None).prefix_tokens(self.vocab, None, document)

    def suffix(self, prompt: str, template: str | None = None) -> Tokens:
        """Ids of a prompt as the branch worker makes them."""
        return self._template(template).suffix_tokens(self.vocab, prompt)

    def plain(self, text: str) -> list[int]:
        """llama.cpp's ids for a text by one plain call: no BOS, nothing parsed for special tokens."""
        data = text.encode()
        ids = (llama.llama_token * (len(data) + 8))()
        count = llama.llama_tokenize(self.vocab.ptr, data, len(data), ids, len(ids), False, False)
        return list(ids[:count])

    def document(self, tokens: int, needle: Needle | None = None, *, title: str = "Copy 1") -> str:
        """Text whose prefix has exactly `tokens` tokens, the needle behind its first paragraph."""
        fact = f"{needle.sentence}\n\n" if needle else ""
        text = f"{title}\n\n{fact}{SPECIFICATION}"
        while len(ids := self.prefix(text)) < tokens:
            text += f"\n\n{SPECIFICATION}"
        pieces = [self.vocab.piece(token) for token in ids[:tokens].tolist()]
        for end in range(tokens, 0, -1):  # a cut may merge anew: give way until it does not
            cut = b"".join(pieces[:end]).decode("utf-8", "ignore")
            padded = cut + " ." * (tokens - len(self.prefix(cut)))
            if len(self.prefix(padded)) == tokens:
                return padded
        raise AssertionError(f"no document of {tokens} tokens")

    def _template(self, override: str | None) -> PromptTemplate:
        return template_of(self._chat_template, self.vocab.text(self.vocab.bos), override)


@contextmanager
def real_text(path: Path) -> Iterator[RealText]:
    """The vocabulary of a model file, which is closed afterwards."""
    model = Model(path)
    try:
        yield RealText(model)
    finally:
        model.close()
