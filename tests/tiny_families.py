"""Random-weight GGUF files, one for each way in which models do attention; made as `tiny_models` makes its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf

from tests import tiny_models
from tests.tiny_models import EMBED, FEED_FORWARD, HEAD_DIM, HEADS

EXPERTS, EXPERTS_USED = 4, 2
LATENT, ROPE_DIM = 24, 8  # of multi-head latent attention
CONVOLVED = 3  # tokens that a short convolution looks at
LAYERS = 2


def tiny_mha(path: Path, seed: int = 0) -> Path:
    """As many KV heads as heads."""
    return _llama(path, seed, kv_heads=HEADS)


def tiny_mqa(path: Path, seed: int = 0) -> Path:
    """One KV head for all."""
    return _llama(path, seed, kv_heads=1)


def tiny_moe(path: Path, seed: int = 0) -> Path:
    """A mixture of four experts, two of which see each token."""
    writer, rows = _begin(path, "llama")
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(EXPERTS_USED)
    tensors = _ends(writer, rows, seed)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        _attention(tensors, block, tiny_models.KV_HEADS)
        tensors.fill(f"{block}ffn_norm.weight", EMBED)
        tensors.random(f"{block}ffn_gate_inp.weight", EXPERTS, EMBED, scale=0.5)
        tensors.random(f"{block}ffn_gate_exps.weight", EXPERTS, FEED_FORWARD, EMBED, scale=0.2)
        tensors.random(f"{block}ffn_up_exps.weight", EXPERTS, FEED_FORWARD, EMBED, scale=0.2)
        tensors.random(f"{block}ffn_down_exps.weight", EXPERTS, EMBED, FEED_FORWARD, scale=0.2)
    return tiny_models._write(writer, path)


def tiny_mla(path: Path, seed: int = 0) -> Path:
    """Multi-head latent attention: the cache holds one latent row a token, and no V."""
    writer, rows = _begin(path, "deepseek2", kv_heads=1, key_length=LATENT + ROPE_DIM, value_length=LATENT)
    writer.add_rope_dimension_count(ROPE_DIM)
    writer.add_q_lora_rank(LATENT)
    writer.add_kv_lora_rank(LATENT)
    writer.add_key_length_mla(HEAD_DIM)
    writer.add_value_length_mla(HEAD_DIM)
    writer.add_leading_dense_block_count(LAYERS)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(EXPERTS_USED)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(FEED_FORWARD)
    writer.add_expert_weights_scale(1.0)
    tensors = _ends(writer, rows, seed)
    nope = HEAD_DIM - ROPE_DIM
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        tensors.fill(f"{block}attn_norm.weight", EMBED)
        tensors.random(f"{block}attn_q_a.weight", LATENT, EMBED, scale=0.3)
        tensors.fill(f"{block}attn_q_a_norm.weight", LATENT)
        tensors.random(f"{block}attn_q_b.weight", HEADS * HEAD_DIM, LATENT, scale=0.3)
        tensors.random(f"{block}attn_kv_a_mqa.weight", LATENT + ROPE_DIM, EMBED, scale=0.3)
        tensors.fill(f"{block}attn_kv_a_norm.weight", LATENT)
        tensors.random(f"{block}attn_k_b.weight", HEADS, LATENT, nope, scale=0.3)
        tensors.random(f"{block}attn_v_b.weight", HEADS, HEAD_DIM, LATENT, scale=0.3)
        tensors.random(f"{block}attn_output.weight", EMBED, HEADS * HEAD_DIM, scale=0.3)
        _feed_forward(tensors, block)
    return tiny_models._write(writer, path)


def tiny_hybrid(path: Path, seed: int = 0) -> Path:
    """A short convolution, which keeps a running state, below a layer of attention."""
    writer, rows = _begin(path, "lfm2", kv_heads=[0, tiny_models.KV_HEADS])
    writer.add_shortconv_l_cache(CONVOLVED)
    tensors = _ends(writer, rows, seed, output_norm="token_embd_norm")
    tensors.fill("blk.0.attn_norm.weight", EMBED)
    tensors.random("blk.0.shortconv.conv.weight", EMBED, CONVOLVED, scale=0.3)
    tensors.random("blk.0.shortconv.in_proj.weight", 3 * EMBED, EMBED, scale=0.3)
    tensors.random("blk.0.shortconv.out_proj.weight", EMBED, EMBED, scale=0.3)
    _feed_forward(tensors, "blk.0.")
    _attention(tensors, "blk.1.", tiny_models.KV_HEADS)
    for name in ("attn_q_norm", "attn_k_norm"):
        tensors.fill(f"blk.1.{name}.weight", HEAD_DIM)
    _feed_forward(tensors, "blk.1.")
    return tiny_models._write(writer, path)


FAMILIES: dict[str, Callable[[Path], Path]] = {
    "mha": tiny_mha,
    "mqa": tiny_mqa,
    "moe": tiny_moe,
    "mla": tiny_mla,
}


def _llama(path: Path, seed: int, *, kv_heads: int) -> Path:
    writer, rows = _begin(path, "llama", kv_heads=kv_heads)
    writer.add_rope_dimension_count(HEAD_DIM)
    tensors = _ends(writer, rows, seed)
    for layer in range(LAYERS):
        _attention(tensors, f"blk.{layer}.", kv_heads)
        _feed_forward(tensors, f"blk.{layer}.")
    return tiny_models._write(writer, path)


def _begin(
    path: Path,
    architecture: str,
    *,
    kv_heads: int | list[int] = tiny_models.KV_HEADS,
    key_length: int = HEAD_DIM,
    value_length: int = HEAD_DIM,
) -> tuple[gguf.GGUFWriter, int]:
    """A writer with all that every family says of itself, and the size of its vocabulary."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(tiny_models.CONTEXT)
    writer.add_embedding_length(EMBED)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_key_length(key_length)
    writer.add_value_length(value_length)
    rows = tiny_models._byte_vocabulary(writer)
    writer.add_vocab_size(rows)
    return writer, rows


def _ends(
    writer: gguf.GGUFWriter, rows: int, seed: int, *, output_norm: str = "output_norm"
) -> tiny_models._Tensors:
    """What is below the first layer and above the last one."""
    tensors = tiny_models._Tensors(writer, seed)
    tensors.random("token_embd.weight", rows, EMBED, scale=1.0)
    tensors.fill(f"{output_norm}.weight", EMBED)
    tensors.random("output.weight", rows, EMBED, scale=0.3)
    return tensors


def _attention(tensors: tiny_models._Tensors, block: str, kv_heads: int) -> None:
    tensors.fill(f"{block}attn_norm.weight", EMBED)
    tensors.random(f"{block}attn_q.weight", HEADS * HEAD_DIM, EMBED, scale=0.3)
    tensors.random(f"{block}attn_k.weight", kv_heads * HEAD_DIM, EMBED, scale=0.3)
    tensors.random(f"{block}attn_v.weight", kv_heads * HEAD_DIM, EMBED, scale=0.3)
    tensors.random(f"{block}attn_output.weight", EMBED, HEADS * HEAD_DIM, scale=0.3)


def _feed_forward(tensors: tiny_models._Tensors, block: str) -> None:
    tensors.fill(f"{block}ffn_norm.weight", EMBED)
    tensors.random(f"{block}ffn_gate.weight", FEED_FORWARD, EMBED, scale=0.2)
    tensors.random(f"{block}ffn_up.weight", FEED_FORWARD, EMBED, scale=0.2)
    tensors.random(f"{block}ffn_down.weight", EMBED, FEED_FORWARD, scale=0.2)
