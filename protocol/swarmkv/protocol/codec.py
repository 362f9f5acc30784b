"""msgpack for everything that crosses Redis; never pickle.

A message is a msgpack map that carries its protocol version under "v". An unknown version is refused with a
clear error instead of being half understood.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack
from pydantic import BaseModel, ValidationError

from swarmkv.protocol.errors import ProtocolError

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
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except Exception as exc:  # msgpack raises several unrelated classes, ValueError among them
        raise ProtocolError(f"{len(data):,} bytes in Redis are not msgpack ({type(exc).__name__}).") from exc


def encode(message: BaseModel) -> bytes:
    """A versioned message as bytes."""
    return pack({"v": PROTOCOL_VERSION, **message.model_dump()})


def versioned(data: bytes) -> dict[str, Any]:
    """The fields of a versioned message, its version checked and removed."""
    fields = unpack(data)
    if not isinstance(fields, dict):
        raise ProtocolError(f"Expected a message, found a {type(fields).__name__}.")
    version = fields.pop("v", None)
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"A message of protocol version {version!r} cannot be read: "
            f"this swarmkv speaks version {PROTOCOL_VERSION}."
        )
    return fields


def decode(kind: type[M], data: bytes) -> M:
    """The message of class `kind` that `encode` wrote; raises ProtocolError."""
    try:
        return kind.model_validate(versioned(data))
    except ValidationError as exc:
        raise ProtocolError(f"A {kind.__name__} in Redis is malformed: {exc.errors()[0]['msg']}.") from exc
