"""Runs vLLM for `vllm.py`, with the Python of an environment that has it; imports nothing of ours.

    python vllm_driver.py MODEL_DIR < requests > answers      one JSON document a line

A model of random weights is made in MODEL_DIR when the first request describes one. vLLM writes what it
likes to stdout: that goes to stderr, and answers go to a copy of the descriptor.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

GLOBAL_EVERY = 6  # of Gemma 3's layers, every sixth sees the whole text


def main() -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    directory, engine = Path(sys.argv[1]), None
    for line in sys.stdin:
        request = json.loads(line)
        if "model" in request:
            make_model(directory, request["model"])
            engine = open_engine(directory, request)
            answers.write(json.dumps({"vllm": sys.modules["vllm"].__version__}) + "\n")
        else:
            answers.write(json.dumps(generate(engine, request)) + "\n")


def make_model(directory: Path, shape: dict[str, Any]) -> None:
    """Save a Gemma 3 of that shape with random BF16 weights, unless it is there."""
    if (directory / "config.json").is_file():
        return
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    layers = range(1, shape["num_hidden_layers"] + 1)
    kinds = ["full_attention" if layer % GLOBAL_EVERY == 0 else "sliding_attention" for layer in layers]
    config = Gemma3TextConfig(**shape, layer_types=kinds, tie_word_embeddings=True, dtype="bfloat16")
    Gemma3ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


def open_engine(directory: Path, request: dict[str, Any]) -> Any:
    """vLLM with prefix caching, for token ids alone."""
    from vllm import LLM

    return LLM(
        model=str(directory),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=request["max_model_len"],
        enable_prefix_caching=True,
        max_num_seqs=request["max_num_seqs"],
        max_num_batched_tokens=2048,
        disable_log_stats=True,
    )


def generate(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Seconds of one `generate` call with all prompts."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=request["max_tokens"], temperature=0, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
    started_s = time.perf_counter()
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    wall_s = time.perf_counter() - started_s
    return {"wall_s": wall_s, "generated": sum(len(output.outputs[0].token_ids) for output in outputs)}


if __name__ == "__main__":
    main()
