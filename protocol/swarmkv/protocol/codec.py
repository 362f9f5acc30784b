"""msgpack for everything that crosses Redis; never pickle.

A message is a msgpack map that carries its protocol version under "v". An unknown version is refused with a
clear error instead of being half understood.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack
from pydantic import BaseModel, ValidationError

from swarmkv.protocol.errors import ProtocolError
from swarmkv.protocol.shape import check_shape

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

M = TypeVar("M", bound=BaseModel)


def pack(value: Any) -> bytes:
    """msgpack bytes of plain data (None, bool, int, float, str, bytes, list, dict)."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def pack_for_lua(value: Any) -> bytes:
    """As `pack`, in the older msgpack that Redis' cmsgpack reads: strings and bytes are one type."""
    packed: bytes = msgpack.packb(value, use_bin_type=False)
    return packed


def unpack(data: bytes) -> Any:
    """Plain data from msgpack bytes; raises ProtocolError on anything else."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"A message of {len(data):,} bytes is over the limit of {MAX_MESSAGE_BYTES:,}.")
    try:
        check_shape(data)
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except Exception as exc:  # msgpack raises several unrelated classes, ValueError among them
        raise ProtocolError(f"{len(data):,} bytes are no msgpack of ours: {_why(exc)}.") from exc


def _why(exc: Exception) -> str:
    """Without what the bytes hold: they may be anything, also text of users."""
    return "its text is not UTF-8" if isinstance(exc, UnicodeError) else str(exc)[:200] or type(exc).__name__


def encode(message: BaseModel) -> bytes:
    """A versioned message as bytes."""
    return pack({"v": PROTOCOL_VERSION, **message.model_dump()})


def check_version(version: object) -> None:
    """Raise ProtocolError, naming both, unless it is the version that we speak."""
    if type(version) is not int or version != PROTOCOL_VERSION:
        shown = str(version) if isinstance(version, int) else f"({type(version).__name__})"
        raise ProtocolError(
            f"A message of protocol version {shown} cannot be read: this swarmkv speaks version {PROTOCOL_VERSION}."
        )


def versioned(data: bytes) -> dict[str, Any]:
    """The fields of a versioned message, its version checked and removed."""
    fields = unpack(data)
    if not isinstance(fields, dict):
        raise ProtocolError(f"Expected a message, found a {type(fields).__name__}.")
    check_version(fields.pop("v", None))
    return fields


def decode(kind: type[M], data: bytes) -> M:
    """The message of class `kind` that `encode` wrote; raises ProtocolError."""
    try:
        return kind.model_validate(versioned(data))
    except ValidationError as exc:
        raise ProtocolError(f"A {kind.__name__} in Redis is malformed: {fault(exc)}.") from exc


def fault(exc: ValidationError) -> str:
    """What is wrong first, without the value: a message may hold text of users."""
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    return "its type is unknown" if first["type"].startswith("union_tag") else first["msg"][:200]
