"""Text to token ids and back, for one model's vocabulary.

Text of users never becomes a control token, whatever it spells; template text may. No BOS is added here:
`templates` places it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from swarmkv.protocol.errors import InvalidInput
from swarmkv.workers.engine.backend import llama
from swarmkv.workers.engine.stack import call_with_room, longest_run

MAX_TEXT_BYTES = 2**31 - 1  # llama.cpp counts bytes in an int32
TOO_MANY_TOKENS = -(2**31)  # llama_tokenize: the count does not fit an int32
PIECE_BYTES = 64


class Vocab:
    """The vocabulary of a loaded model. Every call is thread-safe; the model must outlive it.

    `space_prefix`: the model's tokenizer was trained to see a space in front of the text, and was loaded with
    tokenizer.ggml.add_space_prefix off; `templates` then puts that one space where it belongs.
    """

    def __init__(self, model_ptr: int, *, space_prefix: bool) -> None:
        self.ptr: int = llama.llama_model_get_vocab(model_ptr)
        self.space_prefix = space_prefix
        self.n_tokens: int = llama.llama_vocab_n_tokens(self.ptr)
        self.bos: int = llama.llama_vocab_bos(self.ptr)  # -1: the model has none
        self.add_bos: bool = self.bos >= 0 and bool(llama.llama_vocab_get_add_bos(self.ptr))
        self.suppressed = _suppressed_tokens(self.ptr)
        # All that end the generation. Here and not when first asked for, in the middle of others' decoding.
        self.eog_tokens = tuple(token for token in range(self.n_tokens) if self.is_eog(token))
        # As a vocabulary spells them tokens are as long as their bytes, or longer: a text of n bytes has at least
        # n / this many tokens.
        self.longest_piece_bytes = max(len(llama.llama_vocab_get_text(self.ptr, t)) for t in range(self.n_tokens))
        attributes = [llama.llama_vocab_get_attr(self.ptr, token) for token in range(self.n_tokens)]
        self._attributes: NDArray[np.int32] = np.array(attributes, np.int32)
        marks = llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN
        self._is_special: NDArray[np.bool_] = (self._attributes & marks) != 0
        self._is_control = (self._attributes & llama.LLAMA_TOKEN_ATTR_CONTROL) != 0
        self._is_bpe = llama.llama_vocab_type(self.ptr) == llama.LLAMA_VOCAB_TYPE_BPE
        self._pieces: dict[int, bytes] = {}

    def tokenize(self, text: str, *, parse_special: bool) -> NDArray[np.int32]:
        """Token ids, shape (n,), without BOS. NUL is a character like others.

        With `parse_special` off no id is a control token. Raises InvalidInput for a lone surrogate, for
        text of 2 GiB and more, and for a stretch of a million characters that no tokenizer could cut.
        """
        ids = self._tokenize(text, parse_special)
        if not parse_special and self._is_control[ids].any():
            return self._tokenize_apart(text, ids)
        return ids

    def split_special(self, text: str) -> Iterator[int | str]:
        """Template text as its special tokens and the plain text between them."""
        ids = self._tokenize(text, True)
        strip_next = False
        for token in ids[self._is_special[ids]].tolist():
            before, marker, after = text.partition(self.text(token))
            if not marker:  # an unknown character, not spelled out in the text
                continue
            yield from _plain(before, strip_next, self._has(token, llama.LLAMA_TOKEN_ATTR_LSTRIP))
            yield token
            strip_next = self._has(token, llama.LLAMA_TOKEN_ATTR_RSTRIP)
            text = after
        yield from _plain(text, strip_next, False)

    def text(self, token: int) -> str:
        """How the vocabulary spells a token, e.g. "<|im_start|>"; "" for no token."""
        if not 0 <= token < self.n_tokens:
            return ""
        return str(llama.llama_vocab_get_text(self.ptr, token).decode("utf-8", "replace"))

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to a text; control tokens add none. May end inside a character."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def is_eog(self, token: int) -> bool:
        """Whether a token ends the generation."""
        return bool(llama.llama_vocab_is_eog(self.ptr, token))

    def _has(self, token: int, attribute: int) -> bool:
        return bool(self._attributes[token] & attribute)

    def _tokenize(self, text: str, parse_special: bool) -> NDArray[np.int32]:
        data = _utf8(text)
        run = longest_run(text) if self._is_bpe else 0
        if run:
            return call_with_room(run, lambda: self._read(data, parse_special))
        return self._read(data, parse_special)

    def _read(self, data: bytes, parse_special: bool) -> NDArray[np.int32]:
        size = len(data) + 8  # a token is at least a byte, in all but the oddest vocabularies
        ids, count = self._fill(data, size, parse_special)
        if count < 0:
            if count == TOO_MANY_TOKENS:
                raise InvalidInput(f"A text of {len(data)} bytes is more than 2**31 tokens.")
            ids, count = self._fill(data, -count, parse_special)
        return ids[:count].copy()

    def _fill(self, data: bytes, size: int, parse_special: bool) -> tuple[NDArray[np.int32], int]:
        """A buffer of `size` ids and llama_tokenize's answer: ids written, or minus the size it needs."""
        ids = np.empty(size, np.int32)
        pointer = ids.ctypes.data_as(ctypes.POINTER(llama.llama_token))
        count = llama.llama_tokenize(self.ptr, data, len(data), pointer, size, False, parse_special)
        return ids, int(count)

    def _tokenize_apart(self, text: str, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Ids of a text whose plain merges built a control token: its spelling is cut, the parts tokenised.

        llama.cpp does not look for special tokens in such a text, but a SentencePiece vocabulary that has
        "</s" and ">" still merges the two into the control token.
        """
        marker = self.text(int(ids[self._is_control[ids]][0])).replace("▁", " ")
        parts = [part for part in _cut_inside(text, marker) if part]
        if len(parts) < 2:
            raise InvalidInput(f"The text spells the control token {marker!r} of this model.")
        return np.concatenate([self.tokenize(part, parse_special=False) for part in parts])

    def _read_piece(self, token: int) -> bytes:
        if not 0 <= token < self.n_tokens:  # llama.cpp would throw through C, and end the process
            raise InvalidInput(f"Token {token} is not in the vocabulary of {self.n_tokens} tokens.")
        size = PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama.llama_token_to_piece(self.ptr, token, buffer, size, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            size = -count


def _utf8(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInput(
            f"Character {exc.start} of the text is a lone surrogate (U+{ord(text[exc.start]):04X}).",
            hint="Decode the text as UTF-8, or with errors='replace'.",
        ) from exc
    if len(data) > MAX_TEXT_BYTES:
        raise InvalidInput(f"A text of {len(data)} bytes; llama.cpp takes {MAX_TEXT_BYTES}.")
    return data


def _plain(text: str, strip_left: bool, strip_right: bool) -> Iterator[str]:
    """Text between special tokens, less the white space that its neighbours swallow."""
    if strip_left:
        text = text.lstrip()
    if strip_right:
        text = text.rstrip()
    if text:
        yield text


def _cut_inside(text: str, marker: str) -> Iterator[str]:
    """The text cut behind the first character of every occurrence of `marker`."""
    head, *rest = text.split(marker) if len(marker) > 1 else [text]
    for part in rest:
        yield head + marker[0]
        head = marker[1:] + part
    yield head


def _suppressed_tokens(vocab_ptr: int) -> tuple[int, ...]:
    """Tokens that the model's file forbids to sample."""
    count = ctypes.c_int32(0)
    tokens = llama.llama_vocab_get_suppress_tokens(vocab_ptr, ctypes.byref(count))
    return tuple(tokens[: count.value]) if tokens and count.value else ()
