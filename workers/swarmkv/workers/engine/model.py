"""A loaded model: the file checked, mapped, and refused by name if it is none that we can serve."""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path
from typing import Any

from swarmkv.protocol.errors import ModelError
from swarmkv.workers.engine.backend import has_gpu, last_error, llama
from swarmkv.workers.engine.fingerprint import fingerprint, model_parts
from swarmkv.workers.engine.weights import WeightFiles

logger = logging.getLogger(__name__)

GGUF_MAGIC = b"GGUF"
ALL_LAYERS = -1
_TEXT_BYTES = 256


class Model:
    """Weights and vocabulary of one GGUF, mapped from the page cache; shared by every context made of it.

    Owns C memory and descriptors until `close`, which must come after the contexts' own. Metadata is the file's,
    before our override: tokenizer.ggml.add_space_prefix is loaded as off, since it would put a space in front of
    every piece that is tokenised; `space_prefix` says what the file wants, for the one space we place ourselves.
    """

    def __init__(self, path: str | Path, *, n_gpu_layers: int = 0) -> None:
        """Raises ModelError: absent, no GGUF, truncated, or of a kind that cannot be restored and forked."""
        self.path = Path(path)
        check_file(self.path)
        _check_gpu(n_gpu_layers)
        self._files = _open_files(self.path)
        self.ptr = 0
        try:
            self.fingerprint = _fingerprint(self.path)
            self.ptr = _load(self.path, n_gpu_layers)
            self.metadata = _read_metadata(self.ptr)
            _check_kind(self.path, self.ptr, self.architecture, self.metadata)
            self.check_unchanged()
        except ModelError:
            self.close()
            raise

    @property
    def architecture(self) -> str:
        return self.metadata.get("general.architecture", "")

    @property
    def chat_template(self) -> str | None:
        """The file's own Jinja template; None: a base model."""
        template = llama.llama_model_chat_template(self.ptr, None)
        return template.decode("utf-8", "replace") if template else None

    @property
    def space_prefix(self) -> bool:
        """Whether the tokenizer was trained to see a space in front of a text."""
        is_sentencepiece = self.metadata.get("tokenizer.ggml.model") == "llama"
        default = "true" if is_sentencepiece else "false"
        return self.metadata.get("tokenizer.ggml.add_space_prefix", default) == "true"

    @property
    def n_ctx_train(self) -> int:
        """Positions the model was trained on; text beyond them is noise."""
        return int(llama.llama_model_n_ctx_train(self.ptr))

    @property
    def n_vocab(self) -> int:
        return int(llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.ptr)))

    @property
    def window(self) -> int:
        """Tokens of the sliding window, 0 for full attention."""
        return int(llama.llama_model_n_swa(self.ptr))

    def check_unchanged(self) -> None:
        """Raise ModelError when a file was overwritten: the weights are then not those of the fingerprint."""
        self._files.check()

    def close(self) -> None:
        """Free the weights. May be called twice."""
        if self.ptr:
            llama.llama_model_free(self.ptr)
            self.ptr = 0
        self._files.close()


def check_file(path: Path) -> None:
    """Raise ModelError unless every part of the model is there, can be read and begins as a GGUF does."""
    for part in model_parts(path):
        if part.is_dir():
            raise ModelError(f"{part} is a directory.", hint="Name the GGUF file in it.")
        try:
            with part.open("rb") as file:
                magic = file.read(len(GGUF_MAGIC))
        except FileNotFoundError as exc:
            raise ModelError(f"There is no model file {part}.", hint="Check --model.") from exc
        except OSError as exc:
            raise ModelError(f"The model file {part} cannot be read: {exc.strerror}.") from exc
        if magic != GGUF_MAGIC:
            raise ModelError(
                f"{part} is no GGUF file: it begins with {magic!r}.",
                hint="Convert the model with llama.cpp's convert_hf_to_gguf.py, or download a .gguf file.",
            )


def _check_gpu(n_gpu_layers: int) -> None:
    if n_gpu_layers > 0 and not has_gpu():
        raise ModelError(
            f"{n_gpu_layers} layers are to run on a GPU, and this build of llama.cpp has none.",
            hint="Set SWARMKV_N_GPU_LAYERS=0, or install llama-cpp-python built for your GPU.",
        )


def _open_files(path: Path) -> WeightFiles:
    try:
        return WeightFiles(path)
    except OSError as exc:
        raise ModelError(f"The model file {path} cannot be read: {exc.strerror}.") from exc


def _fingerprint(path: Path) -> str:
    try:
        return fingerprint(path)
    except OSError as exc:
        raise ModelError(f"The model file {path} cannot be read: {exc.strerror}.") from exc


def _load(path: Path, n_gpu_layers: int) -> int:
    overrides = _overrides()
    params = llama.llama_model_default_params()
    params.n_gpu_layers = n_gpu_layers
    params.load_mode = llama.LLAMA_LOAD_MODE_MMAP
    params.kv_overrides = overrides
    last_error()  # forget older ones
    ptr: int | None = llama.llama_model_load_from_file(os.fsencode(path), params)
    if not ptr:
        raise ModelError(
            f"llama.cpp cannot load {path}: {last_error()}.",
            hint="If the download was cut short, fetch the file again.",
        )
    return ptr


def _overrides() -> Any:
    """One override and the empty entry that ends the list."""
    overrides: Any = (llama.llama_model_kv_override * 2)()
    overrides[0].tag = llama.LLAMA_KV_OVERRIDE_TYPE_BOOL
    overrides[0].key = b"tokenizer.ggml.add_space_prefix"
    overrides[0].value.val_bool = False
    return overrides


def _read_metadata(ptr: int) -> dict[str, str]:
    """Scalar metadata of the GGUF; longer values than 255 bytes are cut."""
    key, value = (ctypes.create_string_buffer(_TEXT_BYTES) for _ in range(2))
    metadata: dict[str, str] = {}
    for index in range(llama.llama_model_meta_count(ptr)):
        llama.llama_model_meta_key_by_index(ptr, index, key, _TEXT_BYTES)
        llama.llama_model_meta_val_str_by_index(ptr, index, value, _TEXT_BYTES)
        metadata[key.value.decode()] = value.value.decode("utf-8", "replace")
    return metadata


def _check_kind(path: Path, ptr: int, architecture: str, metadata: dict[str, str]) -> None:
    """Refuse what gives no text, and what keeps state that cannot be cut by position."""
    is_encoder = llama.llama_model_has_encoder(ptr) or not llama.llama_model_has_decoder(ptr)
    is_bidirectional = metadata.get(f"{architecture}.attention.causal") == "false"
    is_pooled = metadata.get(f"{architecture}.pooling_type", "0") != "0"
    if is_encoder or is_bidirectional or is_pooled:
        raise ModelError(
            f"{path} is an encoder or embedding model ({architecture}): it writes no text.",
            hint="Use a decoder-only language model.",
        )
    kinds = {
        "recurrent": llama.llama_model_is_recurrent(ptr),
        "hybrid": llama.llama_model_is_hybrid(ptr),
        "diffusion": llama.llama_model_is_diffusion(ptr),
    }
    for kind, is_kind in kinds.items():
        if is_kind:
            raise ModelError(
                f"{path} is a {kind} model ({architecture}): its state cannot be forked by position.",
                hint="Use a model with attention in every layer.",
            )
