"""A llama_context whose every answer is checked: what goes wrong is an exception, never a number.

All sequences share one pool of KV cells (kv_unified): a fork marks the cells of its prefix as its own too,
and copies nothing. Not thread-safe, but for `abort`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarmkv.protocol.errors import DecodeFailed, EngineError, ModelError, OutOfCells, SnapshotCorrupt
from swarmkv.protocol.settings import MAX_SEQUENCES
from swarmkv.workers.engine.backend import collect_log, last_error, llama, physical_cores
from swarmkv.workers.engine.batch import Batch
from swarmkv.workers.engine.jobs import EngineConfig
from swarmkv.workers.engine.model import Model

_NO_CELLS, _ABORTED = 1, 2  # answers of llama_decode; negative ones are errors
_NO_CELLS_LOG = "available cells in kv cache"  # how a restore says that it found none
_BF16 = 30  # GGML_TYPE_BF16, which llama-cpp-python leaves out
_NO_FLASH_ATTENTION_LOG = "forcing off"


class Aborted(Exception):
    """The running decode was told to stop; its sequences hold any part of what it was given."""


class AbortFlag:
    """Stops a running decode from any thread, without the GIL.

    llama.cpp asks a C function, between any two operations, whether to go on. That function is strlen over
    this flag's two bytes: an empty string is "no".
    """

    def __init__(self) -> None:
        self._bytes = (ctypes.c_char * 2)(b"\0")
        self.callback = ctypes.cast(ctypes.CDLL(None).strlen, llama.ggml_abort_callback)
        self.address = ctypes.addressof(self._bytes)

    def set(self) -> None:
        self._bytes[0] = b"\1"

    def clear(self) -> None:
        self._bytes[0] = b"\0"

    @property
    def is_set(self) -> bool:
        return self._bytes[0] != b"\0"


class Context:
    """KV cells and compute buffers over a model. Owns C memory until `close`, before the model's own."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        """Raises ModelError when llama.cpp refuses the combination, with its reason."""
        self._model = model
        self.n_sequences = sequences_of(config)
        self.n_batch = max(config.n_batch, config.slots)  # a step feeds every slot one token at least
        self.n_vocab = model.n_vocab
        self.abort = AbortFlag()
        with collect_log() as lines:
            self.ptr = _init_context(model, self._params(config))
        self.flash_attention = config.flash_attention and not any(_NO_FLASH_ATTENTION_LOG in line for line in lines)
        self._memory = llama.llama_get_memory(self.ptr)
        if not self._memory:
            self.close()
            raise ModelError(f"{model.path} has no KV cache ({model.architecture}): no decoder.")
        self.n_ctx = int(llama.llama_n_ctx(self.ptr))

    def decode(self, batch: Batch) -> None:
        """Run the batch; its tokens are in the cells when this returns.

        Raises OutOfCells (nothing was written), Aborted, or DecodeFailed (its sequences hold any part of it);
        ModelError when the weights were overwritten meanwhile: nothing that they gave may be used.
        """
        answer = llama.llama_decode(self.ptr, batch.raw)
        self._model.check_unchanged()
        if answer == 0:
            return
        if answer == _NO_CELLS:
            raise OutOfCells(f"No KV cells for a batch of {batch.count} tokens.")
        if answer == _ABORTED and self.abort.is_set:  # nobody asked: a failure, or it would be tried for ever
            raise Aborted
        raise DecodeFailed(f"llama_decode answered {answer} to {batch.count} tokens: {last_error()}.")

    def logits(self, batch: Batch) -> NDArray[np.float32]:
        """Logits of the rows that asked for them, in order: (len(batch.logits_rows), n_vocab).

        A view of llama.cpp's memory, valid until the next decode. Raises DecodeFailed when there are none.
        """
        pointer = llama.llama_get_logits(self.ptr)
        if not pointer:
            raise DecodeFailed(f"No logits after a batch of {batch.count} tokens.")
        return np.ctypeslib.as_array(pointer, (len(batch.logits_rows), self.n_vocab))

    def restore(self, sequence: int, payload: memoryview, prefix_tokens: int) -> None:
        """Fill an unused sequence from an exported state, which must have been verified: it is trusted by C.

        The payload is read, not kept. Raises OutOfCells or SnapshotCorrupt; the sequence is then empty.
        """
        data = np.frombuffer(payload, np.uint8)
        last_error()  # forget older ones
        read = llama.llama_state_seq_set_data(self.ptr, _bytes_at(data), data.nbytes, sequence)
        end = self.position_after(sequence)
        if read == data.nbytes and end == prefix_tokens:
            return
        self.remove(sequence)
        reason = last_error("")
        if _NO_CELLS_LOG in reason:
            raise OutOfCells(f"No KV cells to restore {prefix_tokens} tokens.")
        held = f"{read} of {data.nbytes} bytes, {end} of {prefix_tokens} tokens"
        raise SnapshotCorrupt(
            f"llama.cpp restored {held}. {reason}".strip(),
            hint="Remove the snapshot; it will be built again.",
        )

    def export_size(self, sequence: int) -> int:
        """Bytes that `export_into` will write."""
        return int(llama.llama_state_seq_get_size(self.ptr, sequence))

    def window_export_size(self, sequence: int) -> int:
        """Those of the sliding-window layers. Of a model without such layers, all of them."""
        return int(llama.llama_state_seq_get_size_ext(self.ptr, sequence, llama.LLAMA_STATE_SEQ_FLAGS_SWA_ONLY))

    def export_into(self, sequence: int, target: memoryview) -> int:
        """Write the state of a sequence into a writable buffer; returns the bytes written.

        The buffer is not kept. Raises EngineError when it is too small.
        """
        data = np.frombuffer(target, np.uint8)
        written = llama.llama_state_seq_get_data(self.ptr, _bytes_at(data), data.nbytes, sequence)
        if written == 0:
            raise EngineError(f"A state does not fit {data.nbytes} bytes: {last_error()}.")
        return int(written)

    def fork(self, source: int, target: int) -> None:
        """Let an unused sequence share all cells of another. Raises EngineError."""
        llama.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        expected, end = self.position_after(source), self.position_after(target)
        if end != expected:
            raise EngineError(f"A fork ends at position {end}; its source at {expected}.")

    def remove(self, sequence: int) -> None:
        """Give up the cells of a sequence, but for those that others share. Raises EngineError."""
        if not llama.llama_memory_seq_rm(self._memory, sequence, -1, -1):
            raise EngineError(f"llama.cpp cannot remove sequence {sequence}.")

    def position_after(self, sequence: int) -> int:
        """The position behind the last token of a sequence; 0 when it is empty."""
        return int(llama.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def synchronize(self) -> None:
        """Wait for what a GPU still computes."""
        llama.llama_synchronize(self.ptr)

    def measure_bytes_per_token(self, size: Callable[[int], int] | None = None) -> int:
        """State bytes that one more token takes, and a first decode that shows the model runs.

        Uses sequence 0, which must be empty, and leaves it empty. `size`: of what part, if not of all.
        """
        size = size or self.export_size
        batch = Batch(2)
        sizes = []
        for position in range(2):
            batch.clear()
            batch.add(np.zeros(1, np.int32), position, 0, wants_logits=True)
            self.decode(batch)
            self.logits(batch)
            sizes.append(size(0))
        self.remove(0)
        return sizes[1] - sizes[0]

    def close(self) -> None:
        """Free cells and buffers. May be called twice."""
        if self.ptr:
            llama.llama_free(self.ptr)
            self.ptr = 0

    def _params(self, config: EngineConfig) -> Any:
        params: Any = llama.llama_context_default_params()
        params.n_ctx = config.n_ctx
        params.n_batch = self.n_batch
        params.n_ubatch = config.n_ubatch
        params.n_seq_max = self.n_sequences
        # One row of logits a sequence; the default reserves n_batch rows of a large vocabulary.
        params.n_outputs_max = self.n_sequences
        params.n_threads = params.n_threads_batch = config.threads or physical_cores()
        params.flash_attn_type = int(config.flash_attention)
        params.type_k = _kv_type(config.kv_type_k)
        params.type_v = _kv_type(config.kv_type_v)
        params.swa_full = config.swa_full
        params.kv_unified = True
        params.abort_callback = self.abort.callback
        params.abort_callback_data = self.abort.address
        return params


def sequences_of(config: EngineConfig) -> int:
    """Sequences that a context needs: residents and slots, and one to prefill in. Raises ModelError."""
    branch_sequences = config.residents + config.slots if config.slots else 0
    total = branch_sequences + int(config.can_prefill)
    if not 1 <= total <= MAX_SEQUENCES:
        raise ModelError(
            f"{config.slots} slots and {config.residents} residents need {total} sequences; "
            f"llama.cpp has {MAX_SEQUENCES}.",
            hint="Lower SWARMKV_SLOTS or SWARMKV_RESIDENTS.",
        )
    return total


def _init_context(model: Model, params: Any) -> int:
    last_error()  # forget older ones
    ptr: int | None = llama.llama_init_from_model(model.ptr, params)
    if not ptr:
        raise ModelError(
            f"llama.cpp makes no context of {params.n_ctx} cells for {model.path}: {last_error()}.",
            hint="Lower SWARMKV_N_CTX if memory is short; see the KV types and flash attention settings.",
        )
    return ptr


def _kv_type(name: str) -> int:
    return _BF16 if name == "bf16" else int(getattr(llama, f"GGML_TYPE_{name.upper()}"))


def _bytes_at(data: NDArray[np.uint8]) -> Any:
    return ctypes.cast(data.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
