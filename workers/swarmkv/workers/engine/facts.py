"""What a model file is, whether swarmkv can serve it, and what its KV cache takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from swarmkv.protocol.errors import ModelError
from swarmkv.workers.engine.context import Context
from swarmkv.workers.engine.fingerprint import model_parts
from swarmkv.workers.engine.gguf import Header, Value, read_header
from swarmkv.workers.engine.jobs import EngineConfig
from swarmkv.workers.engine.model import Model, check_file

_GIB = 1024**3
_FEW_CELLS = 64  # only two are decoded


@dataclass(frozen=True, slots=True)
class WeightType:
    """All tensors of one ggml type."""

    type: str
    tensors: int
    size_bytes: int
    share: float  # of the bytes of all tensors


@dataclass(frozen=True, slots=True)
class KvFacts:
    """State bytes a token, as a snapshot holds them: window layers keep only the last `window` tokens."""

    type_k: str
    type_v: str
    bytes_per_token: int
    global_bytes_per_token: int
    window_bytes_per_token: int
    window: int  # 0: full attention in every layer

    def snapshot_bytes(self, tokens: int) -> int:
        """About the size of a snapshot of that many tokens."""
        return tokens * self.global_bytes_per_token + min(tokens, self.window) * self.window_bytes_per_token

    @property
    def tokens_per_gib(self) -> int | None:
        """Tokens whose state takes a GiB; None: no layer grows with the document."""
        if not self.global_bytes_per_token:
            return None
        return (_GIB - self.window * self.window_bytes_per_token) // self.global_bytes_per_token


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the files of a model say; `problem` says why it cannot be served, and `kv` is None then."""

    path: str
    parts: int
    size_bytes: int
    name: str
    architecture: str
    parameters: int
    weight_types: tuple[WeightType, ...]
    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int
    n_ctx_train: int
    has_chat_template: bool
    kv: KvFacts | None
    problem: str


def read_facts(config: EngineConfig) -> ModelFacts:
    """Read the headers, then load the model and decode two tokens: the KV sizes are measured, not computed.

    Raises ModelError for what is no GGUF; a GGUF that cannot be served is told in the facts.
    """
    path = Path(config.model_path)
    check_file(path)
    headers = [read_header(part) for part in model_parts(path)]
    try:
        kv, problem = _measure(config), ""
    except ModelError as exc:
        kv, problem = None, str(exc)
    return _facts(path, headers, kv, problem)


def _measure(config: EngineConfig) -> KvFacts:
    model = Model(config.model_path, n_gpu_layers=config.n_gpu_layers)
    try:
        small = replace(config, n_ctx=_FEW_CELLS, n_batch=_FEW_CELLS, n_ubatch=_FEW_CELLS, slots=1, residents=1)
        context = Context(model, small)
        try:
            total = context.measure_bytes_per_token()
            in_window = context.measure_bytes_per_token(context.window_export_size) if model.window else 0
        finally:
            context.close()
        return KvFacts(config.kv_type_k, config.kv_type_v, total, total - in_window, in_window, model.window)
    finally:
        model.close()


def _facts(path: Path, headers: list[Header], kv: KvFacts | None, problem: str) -> ModelFacts:
    values = headers[0].values
    tensors = [tensor for header in headers for tensor in header.tensors]
    architecture = str(values.get("general.architecture", ""))
    return ModelFacts(
        path=str(path),
        parts=len(headers),
        size_bytes=sum(part.stat().st_size for part in model_parts(path)),
        name=str(values.get("general.name", "")),
        architecture=architecture,
        parameters=sum(tensor.elements for tensor in tensors),
        weight_types=_weight_types(headers),
        layers=_count(values, f"{architecture}.block_count"),
        embedding=_count(values, f"{architecture}.embedding_length"),
        feed_forward=_count(values, f"{architecture}.feed_forward_length"),
        heads=_count(values, f"{architecture}.attention.head_count"),
        kv_heads=_count(values, f"{architecture}.attention.head_count_kv"),
        vocabulary=headers[0].lengths.get("tokenizer.ggml.tokens", 0),
        n_ctx_train=_count(values, f"{architecture}.context_length"),
        has_chat_template="tokenizer.chat_template" in values,
        kv=kv,
        problem=problem,
    )


def _weight_types(headers: list[Header]) -> tuple[WeightType, ...]:
    """The largest first."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for header in headers:
        for tensor in header.tensors:
            sizes[tensor.type] += tensor.size_bytes
            counts[tensor.type] += 1
    total = max(1, sizes.total())
    return tuple(WeightType(name, counts[name], size, size / total) for name, size in sizes.most_common())


def _count(values: dict[str, Value], key: str) -> int:
    """A number of the header; 0 where it has none, or one for each layer."""
    value = values.get(key, 0)
    return value if isinstance(value, int) else 0
