"""vLLM on the CPU: token ids in, prefix caching on, all branches in one `generate`.

Its weights are random, in BF16, of the model's own shape: time does not depend on their values.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from swarmkv.benchmarks.errors import BenchFailed
from swarmkv.benchmarks.fanout.case import Case, Measured, Outcome
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.processes import Child, peer_environment
from swarmkv.benchmarks.sizing import Sizing
from swarmkv.workers.engine.model import Model

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
KV_GIB = 4
_NAMES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "query_pre_attn_scalar": "attention.key_length",
}


class Vllm:
    """The scheme; vLLM lives in a process of the given Python."""

    name = "vllm"

    def __init__(self, ground: Ground, python: Path, model_path: Path, sizing: Sizing) -> None:
        self._ground = ground
        self._python = python.absolute()  # not resolved: a venv's is a link
        self._model_path = model_path
        self._sizing = sizing
        self._driver: Child | None = None

    def setup(self) -> None:
        """Make the model and load it, once for all cases; takes a minute."""
        if self._driver is not None:
            return
        script = Path(__file__).parent / "drivers" / "vllm_driver.py"
        home = self._ground.directory
        argv = self._ground.tether([str(self._python), str(script), str(home / "vllm-model")])
        env = {**peer_environment(), **ENVIRONMENT}
        env.setdefault(KV_SPACE, str(KV_GIB))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._driver = Child.start(self.name, argv, home / "vllm.log", env, **pipes)
        self._ask(
            {
                "model": shape_of(self._model_path),
                "max_model_len": self._sizing.document_tokens + self._sizing.own_tokens,
                "max_num_seqs": max(self._sizing.slots, 1),
            }
        )

    def run(self, case: Case) -> Outcome:
        prefix, prompts, ready = case.ids()
        asked = [[[*prefix.tolist(), *prompt.tolist()] for prompt in side] for side in (prompts, ready)]
        cold, warm = (self._timed(side, case.max_tokens) for side in asked)
        return Outcome(cold, warm)

    def close(self) -> None:
        if self._driver is not None:
            self._driver.end()
            self._driver = None

    def _timed(self, prompts: list[list[int]], max_tokens: int) -> Measured:
        answer = self._ask({"prompts": prompts, "max_tokens": max_tokens})
        if answer["generated"] != len(prompts) * max_tokens:
            raise BenchFailed(f"vLLM made {answer['generated']} tokens of {len(prompts) * max_tokens}.")
        return Measured(answer["wall_s"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._driver is not None
        stdin, stdout = self._driver.process.stdin, self._driver.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            self._driver.process.wait()
            self._driver.check()
        answer: dict[str, Any] = json.loads(line)
        return answer


def shape_of(model_path: Path) -> dict[str, int]:
    """The model's shape in the words of transformers. Raises BenchFailed for any but a Gemma 3."""
    model = Model(model_path)
    try:
        if model.architecture != "gemma3":
            raise BenchFailed(
                f"The comparison with vLLM knows the shape of Gemma 3 models alone, not of {model.architecture}.",
                hint="Leave --vllm out, or take --model demo.",
            )
        found = {name: int(model.metadata[f"gemma3.{key}"]) for name, key in _NAMES.items()}
        return {**found, "vocab_size": model.n_vocab, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    finally:
        model.close()
