"""What surrounds the document and the prompt.

    prefix │ head ┊ system text ┊ middle ┊ document │        prefilled once, shared by every branch
    suffix │ middle ┊ prompt ┊ tail                 │        one branch's own

A side is a row of template text and text of users. Special tokens that the template spells stand for
themselves; all text between two of them, the template's and the users', is one string to the tokenizer, in
which nothing is parsed for special tokens. Canonical ids of a branch = ids of the prefix, then ids of the
suffix, each side tokenised by itself. BOS, if the model wants one, is the first id of the prefix; it is added
nowhere else.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from swarmkv.protocol.errors import ModelError
from swarmkv.protocol.identity import digest_fields
from swarmkv.protocol.template import split_template
from swarmkv.workers.engine.chat import ChatError, render_chat
from swarmkv.workers.engine.tokens import Vocab

PLAIN_STOP = ("\n\nQuestion:",)  # a base model that has answered goes on with a question of its own
DEFAULT_PLAIN = "{document}\n\nQuestion: {prompt}\nAnswer:"
BETWEEN_TEXTS = "\n\n"  # system text and document, document and prompt, where they share a turn
SET_A_TEMPLATE = "Set a template, e.g. '{document}\\n\\nQuestion: {prompt}\\nAnswer:'."


class Slot(Enum):
    """Where text of users goes."""

    SYSTEM = "system"
    DOCUMENT = "document"
    PROMPT = "prompt"


Part = str | Slot
Side = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Immutable and thread-safe; the same source gives the same `digest` and the same tokens everywhere."""

    digest: str
    emits_bos: bool
    bare_prefix: Side  # without system text
    system_prefix: Side
    suffix: Side
    stop: tuple[str, ...] = ()  # ends an answer whose branch names no stop text of its own

    def prefix_tokens(self, vocab: Vocab, system: str | None, document: str) -> NDArray[np.int32]:
        """Ids of everything up to the document's end, shape (n,), with the one BOS if the model wants it.

        Raises InvalidInput for text that is not Unicode.
        """
        texts = {Slot.SYSTEM: system or "", Slot.DOCUMENT: document}
        runs = _runs(vocab, self._prefix(system), texts)
        if vocab.space_prefix:
            runs = _with_space(runs)
        if vocab.bos >= 0 and (self.emits_bos or vocab.add_bos):
            runs = [vocab.bos, *runs]
        return _ids(vocab, runs)

    def suffix_tokens(self, vocab: Vocab, prompt: str) -> NDArray[np.int32]:
        """Ids of one branch behind the document, shape (n,). Raises InvalidInput as `prefix_tokens`."""
        return _ids(vocab, _runs(vocab, self.suffix, {Slot.PROMPT: prompt}))

    def prefix_digest(self, system: str | None, document_digest: str) -> str:
        """Digest of the prefix's pieces, the document by its digest."""
        texts = {Slot.SYSTEM: system or "", Slot.DOCUMENT: document_digest}
        fields: dict[str, str | int | None] = {"bos": int(self.emits_bos)}
        for index, part in enumerate(self._prefix(system)):
            if isinstance(part, Slot):
                fields[f"{index}_{part.value}"] = texts[part]
            else:
                fields[f"{index}_template"] = part
        return digest_fields("prefix_pieces", **fields)

    def _prefix(self, system: str | None) -> Side:
        return self.bare_prefix if system is None else self.system_prefix


def template_of(
    chat_template: str | None, bos_text: str, override: str | None, eos_text: str = ""
) -> PromptTemplate:
    """The template of a model: `override` if given, else its own chat template, else the plain one.

    `bos_text` and `eos_text` are how the vocabulary spells those tokens ("" without one). Raises InvalidInput
    for an override without its two places, ModelError for a chat template that cannot be used.
    """
    if override is not None or chat_template is None:
        return plain_template(DEFAULT_PLAIN if override is None else override, bos_text)
    return chat_template_of(chat_template, bos_text, eos_text)


def plain_template(source: str, bos_text: str) -> PromptTemplate:
    """A template with {document} once and then {prompt} once; other braces are plain text."""
    head, middle, tail = split_template(source)
    head, emits_bos = _without_bos(head, bos_text)
    return PromptTemplate(
        digest=digest_fields("plain_template", source=source, bos=bos_text),
        emits_bos=emits_bos,
        bare_prefix=_side(head, Slot.DOCUMENT),
        system_prefix=_side(head, Slot.SYSTEM, BETWEEN_TEXTS, Slot.DOCUMENT),
        suffix=_side(middle, Slot.PROMPT, tail),
        stop=PLAIN_STOP if source == DEFAULT_PLAIN else (),
    )


def chat_template_of(source: str, bos_text: str, eos_text: str) -> PromptTemplate:
    """A model's own jinja chat template, split at the texts of users.

    The document opens the user's turn, the prompt ends it. The system text has its own turn where the
    template knows the role, and otherwise goes in front of the document. Raises ModelError.
    """
    tokens = {"bos_token": bos_text, "eos_token": eos_text}
    head, *suffix = _render_bare(source, tokens)
    head, emits_bos = _without_bos(head, bos_text)
    system_prefix = _side(head, Slot.SYSTEM, BETWEEN_TEXTS, Slot.DOCUMENT)
    with_system = _render_system(source, tokens)
    if with_system is not None:
        system_head, system_middle, *system_suffix = with_system
        system_head, system_emits_bos = _without_bos(system_head, bos_text)
        # One suffix serves both, so a system turn must change nothing behind the document.
        if system_suffix == suffix and system_emits_bos == emits_bos:
            system_prefix = _side(system_head, Slot.SYSTEM, system_middle, Slot.DOCUMENT)
    middle, tail = suffix
    return PromptTemplate(
        digest=digest_fields("chat_template", source=source, bos=bos_text, eos=eos_text),
        emits_bos=emits_bos,
        bare_prefix=_side(head, Slot.DOCUMENT),
        system_prefix=system_prefix,
        suffix=_side(middle, Slot.PROMPT, tail),
    )


def _render_bare(source: str, tokens: Mapping[str, str]) -> tuple[str, ...]:
    """Head, middle and tail of the template without a system text. Raises ModelError."""
    document, prompt = _sentinel(), _sentinel()
    messages = [("user", document + BETWEEN_TEXTS + prompt)]
    try:
        rendered = render_chat(source, messages, tokens)
    except ChatError as exc:
        raise ModelError(f"The model's chat template: {exc}", hint=SET_A_TEMPLATE) from exc
    pieces = _split(rendered, document, prompt)
    if pieces is None:
        raise ModelError("The model's chat template does not keep the user's text as it is.", hint=SET_A_TEMPLATE)
    return pieces


def _render_system(source: str, tokens: Mapping[str, str]) -> tuple[str, ...] | None:
    """Head, text behind the system text, middle and tail; None where the role is refused or ignored."""
    system, document, prompt = _sentinel(), _sentinel(), _sentinel()
    messages = [("system", system), ("user", document + BETWEEN_TEXTS + prompt)]
    try:
        rendered = render_chat(source, messages, tokens)
    except ChatError:
        return None
    return _split(rendered, system, document, prompt)


def _sentinel() -> str:
    """Stands for a text of users while a template is rendered; no template contains it."""
    return f"swarmkv{secrets.token_hex(16)}"


def _split(rendered: str, *sentinels: str) -> tuple[str, ...] | None:
    """The text around the sentinels; None unless each is there once and in order."""
    places = [rendered.find(sentinel) for sentinel in sentinels]
    are_single = all(rendered.count(sentinel) == 1 for sentinel in sentinels)
    if not are_single or places != sorted(places):
        return None
    pieces = []
    for sentinel in sentinels:
        piece, _, rendered = rendered.partition(sentinel)
        pieces.append(piece)
    return (*pieces, rendered)


def _without_bos(head: str, bos_text: str) -> tuple[str, bool]:
    """The head without the BOS text it begins with, and whether it did."""
    emits_bos = bool(bos_text) and head.startswith(bos_text)
    return head.removeprefix(bos_text), emits_bos


def _side(*parts: Part) -> Side:
    return tuple(part for part in parts if part != "")


def _runs(vocab: Vocab, side: Side, texts: Mapping[Slot, str]) -> list[int | str]:
    """A side as special tokens and the plain text between them, adjacent texts joined."""
    runs: list[int | str] = []
    plain: list[str] = []
    for item in _items(vocab, side, texts):
        if isinstance(item, str):
            plain.append(item)
        else:
            runs += ["".join(plain), item]
            plain.clear()
    return [run for run in (*runs, "".join(plain)) if run != ""]


def _items(vocab: Vocab, side: Side, texts: Mapping[Slot, str]) -> Iterator[int | str]:
    for part in side:
        if isinstance(part, Slot):
            yield texts[part]
        else:
            yield from vocab.split_special(part)


def _with_space(runs: list[int | str]) -> list[int | str]:
    """The one space that a SentencePiece tokenizer wants, in front of the first plain text."""
    for index, run in enumerate(runs):
        if isinstance(run, str):
            return [*runs[:index], f" {run}", *runs[index + 1 :]]
    return runs


def _ids(vocab: Vocab, runs: list[int | str]) -> NDArray[np.int32]:
    ids = [
        vocab.tokenize(run, parse_special=False) if isinstance(run, str) else np.array([run], np.int32)
        for run in runs
    ]
    return np.concatenate(ids) if ids else np.empty(0, np.int32)
