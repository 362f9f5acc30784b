"""The header of a GGUF file, read by ggml's own reader: no weights are touched, no model is loaded.

llama-cpp-python declares none of ggml's functions for it; libllama is linked against them, so its handle finds
them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmkv.protocol.errors import ModelError
from swarmkv.workers.engine.backend import last_error, llama

Value = str | bool | int | float
_STRING, _ARRAY = 8, 9  # enum gguf_type; the others by the function that reads them
_READERS: dict[int, tuple[str, Any]] = {
    0: ("u8", ctypes.c_uint8),
    1: ("i8", ctypes.c_int8),
    2: ("u16", ctypes.c_uint16),
    3: ("i16", ctypes.c_int16),
    4: ("u32", ctypes.c_uint32),
    5: ("i32", ctypes.c_int32),
    6: ("f32", ctypes.c_float),
    7: ("bool", ctypes.c_bool),
    10: ("u64", ctypes.c_uint64),
    11: ("i64", ctypes.c_int64),
    12: ("f64", ctypes.c_double),
}


class _InitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as it is stored; `type` is ggml's name of it, such as q4_K."""

    name: str
    type: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        product = 1
        for extent in self.shape:
            product *= extent
        return product


@dataclass(frozen=True, slots=True)
class Header:
    """What one file says of itself: scalar values, the lengths of arrays, and its tensors."""

    values: dict[str, Value]
    lengths: dict[str, int]
    tensors: tuple[Tensor, ...]


def read_header(path: Path) -> Header:
    """Raises ModelError, with ggml's reason, for what is no whole GGUF header."""
    init, free = _function("gguf_init_from_file", ctypes.c_void_p), _function("gguf_free", None)
    last_error()  # forget older ones
    pointer = init(os.fsencode(path), _InitParams(no_alloc=True, ctx=None))
    if not pointer:
        raise ModelError(
            f"The header of {path} cannot be read: {last_error()}.",
            hint="If the download was cut short, fetch the file again.",
        )
    handle = ctypes.c_void_p(pointer)
    try:
        values, lengths = _read_values(handle)
        return Header(values, lengths, _read_tensors(handle))
    finally:
        free(handle)


def _read_values(handle: ctypes.c_void_p) -> tuple[dict[str, Value], dict[str, int]]:
    key_of, kind_of = _function("gguf_get_key", ctypes.c_char_p), _function("gguf_get_kv_type", ctypes.c_int)
    length_of, text_of = (
        _function("gguf_get_arr_n", ctypes.c_size_t),
        _function("gguf_get_val_str", ctypes.c_char_p),
    )
    values: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    for index in range(_function("gguf_get_n_kv", ctypes.c_int64)(handle)):
        entry = ctypes.c_int64(index)
        key, kind = key_of(handle, entry).decode("utf-8", "replace"), kind_of(handle, entry)
        if kind == _ARRAY:
            lengths[key] = length_of(handle, entry)
        elif kind == _STRING:
            values[key] = text_of(handle, entry).decode("utf-8", "replace")
        else:
            name, result = _READERS[kind]
            values[key] = _function(f"gguf_get_val_{name}", result)(handle, entry)
    return values, lengths


def _read_tensors(handle: ctypes.c_void_p) -> tuple[Tensor, ...]:
    name_of, kind_of = (
        _function("gguf_get_tensor_name", ctypes.c_char_p),
        _function("gguf_get_tensor_type", ctypes.c_int),
    )
    size_of, shape_of = (
        _function("gguf_get_tensor_size", ctypes.c_size_t),
        _function("gguf_get_tensor_ne", _Extents),
    )
    type_name = _function("ggml_type_name", ctypes.c_char_p)

    def tensor(index: int) -> Tensor:
        entry = ctypes.c_int64(index)
        return Tensor(
            name=name_of(handle, entry).decode("utf-8", "replace"),
            type=type_name(kind_of(handle, entry)).decode(),
            shape=tuple(shape_of(handle, entry)[:4]),
            size_bytes=size_of(handle, entry),
        )

    count = _function("gguf_get_n_tensors", ctypes.c_int64)(handle)
    return tuple(tensor(index) for index in range(count))


_Extents = ctypes.POINTER(ctypes.c_int64)


def _function(name: str, result: Any) -> Callable[..., Any]:
    """A function of ggml with its result type; a new object each time, so that no other declaration is changed."""
    function = llama.llama_cpp._lib[name]
    function.restype = result
    return function  # type: ignore[no-any-return]
