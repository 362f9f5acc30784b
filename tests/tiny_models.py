"""Random-weight GGUF files of about a megabyte: a whole engine is tested on them in seconds.

Weights are F32 and large enough that attention matters: changing the first half of a document
changes the last logits, so a branch that decodes from the wrong prefix is seen
(tests/integration/test_tiny_models.py holds this up).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

EMBED, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD = 64, 4, 2, 16, 128
CONTEXT = 8192
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
BPE_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BPE_WORDS = (
    *("the", "of", "and", "to", "in", "is", "a", "document", "question", "answer", "Question"),
    *("Answer", "system", "user", "assistant", "licence", "what", "What", "are", "shall", "not"),
)


def tiny_llama(path: Path, seed: int = 0, *, space_prefix: bool = False, pieces: Sequence[str] = ()) -> Path:
    """Full attention, 2 layers, add_bos; tokens are `<unk> <s> </s>`, 256 bytes, the space, `pieces`."""
    writer = _decoder(path, "llama", layers=2)
    writer.add_rope_dimension_count(HEAD_DIM)
    rows = _byte_vocabulary(writer, space_prefix=space_prefix, pieces=pieces)
    _decoder_tensors(writer, "llama", layers=2, rows=rows, seed=seed)
    return _write(writer, path)


def tiny_gemma3(path: Path, window: int = 64, seed: int = 0) -> Path:
    """Sliding window, 6 layers of which the last is global, the byte vocabulary of `tiny_llama`."""
    writer = _decoder(path, "gemma3", layers=6)
    writer.add_sliding_window(window)
    rows = _byte_vocabulary(writer)
    _decoder_tensors(writer, "gemma3", layers=6, rows=rows, seed=seed)
    return _write(writer, path)


def tiny_bpe_chat(path: Path, seed: int = 0, *, pre: str = "gpt-2") -> Path:
    """`tiny_llama` with a byte-level BPE vocabulary, ChatML with a system role, and no BOS.

    `pre` is llama.cpp's name of the rules that cut text into words.
    """
    writer = _decoder(path, "llama", layers=2)
    writer.add_rope_dimension_count(HEAD_DIM)
    rows = _bpe_vocabulary(writer, pre)
    writer.add_chat_template(CHATML)
    _decoder_tensors(writer, "llama", layers=2, rows=rows, seed=seed)
    return _write(writer, path)


def tiny_encoder(path: Path, seed: int = 0) -> Path:
    """A BERT: no causal attention, no KV cache. It loads; a server must refuse it."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("tiny encoder")
    writer.add_context_length(512)
    writer.add_embedding_length(EMBED)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    rows = _wordpiece_vocabulary(writer)
    _encoder_tensors(writer, rows, seed)
    return _write(writer, path)


def _decoder(path: Path, architecture: str, *, layers: int) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBED)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    return writer


def _byte_vocabulary(writer: gguf.GGUFWriter, *, space_prefix: bool = False, pieces: Sequence[str] = ()) -> int:
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    tokens.append("▁".encode())  # SPM's space; without it a space is three byte tokens
    tokens += [piece.encode() for piece in pieces]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, NORMAL, *[NORMAL] * len(pieces)])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(space_prefix)
    return len(tokens)


def _byte_letters() -> list[str]:
    """GPT-2's letter for each byte: printable Latin-1 is itself, the rest moves above U+00FF."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(moved)) for byte in range(256)]


def _bpe_merges(letters: list[str]) -> dict[str, str]:
    """Merged token -> its rule, by rank: words grow letter by letter, bare and after a space."""
    space, newline = letters[0x20], letters[0x0A]
    merges = {newline * 2: f"{newline} {newline}"}
    for word in BPE_WORDS:
        for spelled in (word, space + word):
            for end in range(2, len(spelled) + 1):
                merges.setdefault(spelled[:end], f"{spelled[: end - 1]} {spelled[end - 1]}")
    return merges


def _bpe_vocabulary(writer: gguf.GGUFWriter, pre: str) -> int:
    letters = _byte_letters()
    merges = _bpe_merges(letters)
    tokens = [*BPE_SPECIALS, *letters, *merges]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL] * 3 + [NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(list(merges.values()))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    return len(tokens)


def _wordpiece_vocabulary(writer: gguf.GGUFWriter) -> int:
    letters = [f"▁{chr(code)}" for code in range(0x61, 0x7B)]
    letters += [chr(code) for code in range(0x61, 0x7B)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([CONTROL] * 5 + [NORMAL] * len(letters))
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)
    return len(tokens)


class _Tensors:
    """Adds random and constant F32 tensors to a file."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)

    def random(self, name: str, *shape: int, scale: float) -> None:
        values = self._random.standard_normal(shape) * scale
        self._writer.add_tensor(name, values.astype(np.float32))

    def fill(self, name: str, size: int, value: float = 1.0) -> None:
        self._writer.add_tensor(name, np.full(size, value, np.float32))


def _decoder_tensors(writer: gguf.GGUFWriter, architecture: str, *, layers: int, rows: int, seed: int) -> None:
    tensors = _Tensors(writer, seed)
    # gemma3 multiplies embeddings by sqrt(EMBED); undone, so that they do not drown attention.
    embedding_scale = EMBED**-0.5 if architecture == "gemma3" else 1.0
    tensors.random("token_embd.weight", rows, EMBED, scale=embedding_scale)
    tensors.fill("output_norm.weight", EMBED)
    tensors.random("output.weight", rows, EMBED, scale=0.3)
    for layer in range(layers):
        _decoder_layer(tensors, f"blk.{layer}.")
        if architecture == "gemma3":
            _gemma3_norms(tensors, f"blk.{layer}.")


def _decoder_layer(tensors: _Tensors, block: str) -> None:
    tensors.fill(f"{block}attn_norm.weight", EMBED)
    tensors.random(f"{block}attn_q.weight", HEADS * HEAD_DIM, EMBED, scale=0.3)
    tensors.random(f"{block}attn_k.weight", KV_HEADS * HEAD_DIM, EMBED, scale=0.3)
    tensors.random(f"{block}attn_v.weight", KV_HEADS * HEAD_DIM, EMBED, scale=0.3)
    tensors.random(f"{block}attn_output.weight", EMBED, HEADS * HEAD_DIM, scale=0.3)
    tensors.fill(f"{block}ffn_norm.weight", EMBED)
    tensors.random(f"{block}ffn_gate.weight", FEED_FORWARD, EMBED, scale=0.2)
    tensors.random(f"{block}ffn_up.weight", FEED_FORWARD, EMBED, scale=0.2)
    tensors.random(f"{block}ffn_down.weight", EMBED, FEED_FORWARD, scale=0.2)


def _gemma3_norms(tensors: _Tensors, block: str) -> None:
    tensors.fill(f"{block}attn_q_norm.weight", HEAD_DIM)
    tensors.fill(f"{block}attn_k_norm.weight", HEAD_DIM)
    tensors.fill(f"{block}post_attention_norm.weight", EMBED)
    tensors.fill(f"{block}post_ffw_norm.weight", EMBED)


def _encoder_tensors(writer: gguf.GGUFWriter, rows: int, seed: int) -> None:
    tensors = _Tensors(writer, seed)
    tensors.random("token_embd.weight", rows, EMBED, scale=0.1)
    tensors.random("token_types.weight", 2, EMBED, scale=0.1)
    tensors.random("position_embd.weight", 512, EMBED, scale=0.1)
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        tensors.fill(f"{name}.weight", EMBED)
        tensors.fill(f"{name}.bias", EMBED, 0.0)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        tensors.random(f"blk.0.{name}.weight", EMBED, EMBED, scale=0.1)
        tensors.fill(f"blk.0.{name}.bias", EMBED, 0.0)
    tensors.random("blk.0.ffn_up.weight", FEED_FORWARD, EMBED, scale=0.1)
    tensors.fill("blk.0.ffn_up.bias", FEED_FORWARD, 0.0)
    tensors.random("blk.0.ffn_down.weight", EMBED, FEED_FORWARD, scale=0.1)
    tensors.fill("blk.0.ffn_down.bias", EMBED, 0.0)


def _write(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
