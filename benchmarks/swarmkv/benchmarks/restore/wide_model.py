"""A model with tiny weights and a wide KV cache: snapshots of gigabytes, without the time to prefill them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from swarmkv.protocol.errors import ConfigError

LAYERS, HEADS, HEAD_DIM, EMBED, CONTEXT = 8, 32, 128, 64, 65_536
F16_BYTES = 2
BYTES_PER_TOKEN = LAYERS * HEADS * HEAD_DIM * 2 * F16_BYTES  # K and V: 128 KB
_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6


def write_wide_model(path: Path) -> Path:
    """A llama with as many KV heads as heads, random weights, and a vocabulary of bytes. Raises ConfigError."""
    try:
        import gguf
    except ImportError as exc:
        hint = "pip install 'swarmkv[bench]'"
        raise ConfigError("The wide model needs the package gguf, which is not installed.", hint=hint) from exc
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer)
    for name, values in _tensors():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: Any) -> None:
    writer.add_name("wide KV")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBED)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(EMBED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _tensors() -> Any:
    """Names and values, in the order of the file."""
    random = np.random.default_rng(0)
    width, rows = HEADS * HEAD_DIM, 259
    shapes = {
        "attn_q": (width, EMBED),
        "attn_k": (width, EMBED),
        "attn_v": (width, EMBED),
        "attn_output": (EMBED, width),
        "ffn_gate": (EMBED, EMBED),
        "ffn_up": (EMBED, EMBED),
        "ffn_down": (EMBED, EMBED),
    }
    yield "token_embd.weight", random.standard_normal((rows, EMBED)).astype(np.float32)
    yield "output_norm.weight", np.ones(EMBED, np.float32)
    yield "output.weight", random.standard_normal((rows, EMBED)).astype(np.float32)
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{norm}.weight", np.ones(EMBED, np.float32)
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}.weight", (random.standard_normal(shape) * 0.1).astype(np.float32)
