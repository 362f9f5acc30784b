"""The snapshot file: what its bytes mean, and how they are checked before anything is trusted.

    0               80         header_bytes      +token_bytes   payload_offset       file_bytes
    ├─ fixed fields ─┼─ metadata ┼─ 0 ─┼─ token ids ─┼─ 0 ─┼─ payload ─────────────────┤
    └──────────── header ─────────────┴──── token area ────┴─ what llama.cpp wrote ─────┘

    offset size  fixed field (little endian)
       0     8   magic
       8     4   format version
      12     4   header_bytes: the token ids start here
      16     4   metadata_bytes: msgpack map of SnapshotMeta
      20     4   zero
      24     8   token_bytes: int32 token ids
      32     8   payload_offset
      40     8   payload_bytes
      48    16   xxh3_128 of the token area, padding included
      64    16   xxh3_128 of the header without this field, padding included

Header, token area and payload each start at a multiple of ALIGNMENT. The metadata carries the
payload's checksum, so the chain header → metadata → payload covers every byte of the file. The file
ends with the payload: a cut file never has the size that its header states.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import xxhash

from swarmkv.protocol.errors import SnapshotCorrupt, SnapshotMismatch
from swarmkv.protocol.identity import digest_bytes, digest_fields
from swarmkv.snapshots.meta import SnapshotMeta, pack_meta, unpack_meta

MAGIC = b"SWARMKV\x1a"
FORMAT_VERSION = 1
ALIGNMENT = 4096
HEADER_BYTES = 2 * ALIGNMENT
MAX_HEADER_BYTES = 16 * ALIGNMENT
TOKEN_ID_BYTES = 4
MAX_TOKEN_BYTES = TOKEN_ID_BYTES * 16_777_216  # the largest n_ctx that the settings allow
MAX_PAYLOAD_BYTES = 1 << 46
CHECKSUM_CHUNK_BYTES = 8 * 1024 * 1024  # other threads get a turn between chunks

_FIXED = struct.Struct("<8sIIIIQQQ16s16s")
_CHECKSUM_AT = _FIXED.size - 16
FIXED_BYTES = _FIXED.size


@dataclass(frozen=True, slots=True)
class Extents:
    """Where the parts of one file lie, in bytes."""

    header_bytes: int
    token_bytes: int
    payload_bytes: int

    @classmethod
    def plan(cls, token_bytes: int, payload_bytes: int) -> Extents:
        """The extents of a file to be written. Raises ValueError when a size is out of range."""
        extents = cls(HEADER_BYTES, token_bytes, payload_bytes)
        if wrong := extents.wrong():
            raise ValueError(wrong)
        return extents

    @property
    def payload_offset(self) -> int:
        return self.header_bytes + _align(self.token_bytes)

    @property
    def file_bytes(self) -> int:
        return self.payload_offset + self.payload_bytes

    def wrong(self) -> str:
        """What is out of range, or ""."""
        if not FIXED_BYTES <= self.header_bytes <= MAX_HEADER_BYTES or self.header_bytes % ALIGNMENT:
            return f"a header of {self.header_bytes} bytes is out of range"
        if not 0 < self.token_bytes <= MAX_TOKEN_BYTES or self.token_bytes % TOKEN_ID_BYTES:
            return f"{self.token_bytes} bytes of token ids are out of range"
        if not 0 < self.payload_bytes <= MAX_PAYLOAD_BYTES:
            return f"a payload of {self.payload_bytes} bytes is out of range"
        return ""


@dataclass(frozen=True, slots=True)
class Header:
    """A header that was read and found whole; `checksum` names its content."""

    meta: SnapshotMeta
    extents: Extents
    checksum: bytes


def snapshot_key(identity: str, prefix_digest: str, tokens: bytes) -> str:
    """Key of the snapshot of `tokens` (int32 little-endian ids) under an engine's identity, 32 hex digits.

    Prefixes of equal tokens and different pieces (a system text that is the document's beginning elsewhere) have
    different keys: each refuses the other's header, so under one key they would replace each other for ever.
    """
    return digest_fields("snapshot", identity=identity, prefix=prefix_digest, tokens=tokens)


def payload_checksum(payload: memoryview) -> str:
    """xxh3_128 of the payload, 32 hex digits."""
    hasher = xxhash.xxh3_128()
    for start in range(0, len(payload), CHECKSUM_CHUNK_BYTES):
        hasher.update(payload[start : start + CHECKSUM_CHUNK_BYTES])
    return hasher.hexdigest()


def encode_head(meta: SnapshotMeta, extents: Extents, tokens: bytes) -> bytes:
    """Everything in front of the payload: header and token area, `extents.payload_offset` bytes.

    Raises ValueError when the metadata does not fit the header.
    """
    metadata = pack_meta(meta)
    if FIXED_BYTES + len(metadata) > extents.header_bytes:
        room = extents.header_bytes - FIXED_BYTES
        raise ValueError(f"metadata of {len(metadata)} bytes is over the {room} of a header")
    token_area = tokens.ljust(extents.payload_offset - extents.header_bytes, b"\0")
    fields = (
        MAGIC,
        FORMAT_VERSION,
        extents.header_bytes,
        len(metadata),
        0,
        extents.token_bytes,
        extents.payload_offset,
        extents.payload_bytes,
        _checksum(token_area),
    )
    header = (_FIXED.pack(*fields, bytes(16)) + metadata).ljust(extents.header_bytes, b"\0")
    checksum = _header_checksum(header)
    return header[:_CHECKSUM_AT] + checksum + header[FIXED_BYTES:] + token_area


def read_header(fd: int, key: str, file_bytes: int) -> Header:
    """Read and check header and token ids of the file open at `fd`; the payload is not read.

    Raises SnapshotCorrupt naming what is wrong, SnapshotMismatch for another format version.
    """
    fixed = os.pread(fd, FIXED_BYTES, 0)
    extents, metadata_bytes = _read_extents(fixed, key, file_bytes)
    head = os.pread(fd, extents.payload_offset, 0)
    if len(head) != extents.payload_offset:
        raise corrupt(key, f"only {len(head)} of {extents.payload_offset} bytes could be read")
    header = head[: extents.header_bytes]
    *_, token_checksum, checksum = _FIXED.unpack_from(header)
    if _header_checksum(header) != checksum:
        raise corrupt(key, "the header does not match its checksum")
    if _checksum(head[extents.header_bytes :]) != token_checksum:
        raise corrupt(key, "the token ids do not match their checksum")
    meta = _read_meta(key, header[FIXED_BYTES : FIXED_BYTES + metadata_bytes])
    tokens = head[extents.header_bytes : extents.header_bytes + extents.token_bytes]
    _check_meta(key, meta, extents, tokens)
    return Header(meta, extents, checksum)


def check_payload(meta: SnapshotMeta, payload: memoryview) -> None:
    """Raise SnapshotCorrupt unless the payload is, byte for byte, what was published."""
    found = payload_checksum(payload)
    if found != meta.payload_checksum:
        raise corrupt(meta.key, f"the payload's checksum is {found}, the header states {meta.payload_checksum}")


def corrupt(key: str, what: str) -> SnapshotCorrupt:
    return SnapshotCorrupt(
        f"Snapshot {key} is damaged: {what}.",
        hint=f"It is not used; a new prefill replaces it, `swarmkv snapshots rm {key}` removes it.",
    )


def _read_extents(fixed: bytes, key: str, file_bytes: int) -> tuple[Extents, int]:
    """The extents that the fixed fields state, held against the size the file really has."""
    if len(fixed) < FIXED_BYTES:
        raise corrupt(key, f"the file has {file_bytes} bytes, a header needs {FIXED_BYTES}")
    magic, version, header_bytes, metadata_bytes, zero, *sizes = _FIXED.unpack(fixed)[:8]
    token_bytes, payload_offset, payload_bytes = sizes
    if magic != MAGIC:
        raise corrupt(key, f"it begins with {magic!r}, not with {MAGIC!r}")
    if version != FORMAT_VERSION:
        raise SnapshotMismatch(
            f"Snapshot {key} has format version {version}; this swarmkv reads version {FORMAT_VERSION}.",
            hint="Use one swarmkv version on all workers; a new prefill replaces the snapshot.",
        )
    extents = Extents(header_bytes, token_bytes, payload_bytes)
    if wrong := extents.wrong():
        raise corrupt(key, wrong)
    if zero or metadata_bytes > header_bytes - FIXED_BYTES or payload_offset != extents.payload_offset:
        raise corrupt(key, "the header's sizes contradict each other")
    if extents.file_bytes != file_bytes:
        raise corrupt(key, f"the file has {file_bytes} bytes, its header states {extents.file_bytes}")
    return extents, metadata_bytes


def _read_meta(key: str, metadata: bytes) -> SnapshotMeta:
    try:
        return unpack_meta(metadata)
    except ValueError as exc:
        raise corrupt(key, f"the metadata cannot be read ({exc})") from exc


def _check_meta(key: str, meta: SnapshotMeta, extents: Extents, tokens: bytes) -> None:
    """Metadata, extents, token ids and file name must tell the same story."""
    if meta.key != key:
        raise corrupt(key, f"it is the snapshot {meta.key} under another name")
    if meta.payload_bytes != extents.payload_bytes:
        raise corrupt(key, "metadata and header state different payload sizes")
    if meta.prefix_tokens * TOKEN_ID_BYTES != extents.token_bytes:
        raise corrupt(key, "metadata and header state different token counts")
    if meta.token_digest != digest_bytes(tokens):
        raise corrupt(key, "the token ids are not those that the metadata names")
    if snapshot_key(meta.identity, meta.prefix_digest, tokens) != key:
        raise corrupt(key, "its identity, prefix and token ids do not give its key")


def _header_checksum(header: bytes) -> bytes:
    return _checksum(header[:_CHECKSUM_AT] + header[FIXED_BYTES:])


def _checksum(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


def _align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
