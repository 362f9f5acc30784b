"""Writing one snapshot: a mapping to export into, then one step from invisible to whole."""

from __future__ import annotations

import logging
import mmap
import os
import time
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from swarmkv.protocol.identity import digest_bytes
from swarmkv.snapshots.directory import TempFile
from swarmkv.snapshots.format import (
    TOKEN_ID_BYTES,
    Extents,
    encode_head,
    payload_checksum,
    snapshot_key,
)
from swarmkv.snapshots.meta import SnapshotMeta
from swarmkv.snapshots.prefault import Prefault

logger = logging.getLogger(__name__)


class SnapshotWriter:
    """A reserved file, mapped. Leave it (`with`) without `publish` and nothing remains.

    `payload` is writable and has exactly the reserved size; all its pages are reserved, so writing
    cannot fault. It belongs to the writer: drop every view of it (slices, numpy arrays, ctypes
    buffers) before `publish` or `discard`. Whoever keeps one keeps the memory, and must not write
    through it any more.
    """

    def __init__(self, temp: TempFile, extents: Extents, *, prefault: bool = False) -> None:
        self._temp = temp
        self._extents = extents
        self._map = mmap.mmap(temp.fileno(), extents.file_bytes)
        self._payload = _part(self._map, extents.payload_offset, extents.payload_bytes)
        self._prefault = Prefault(self._map) if prefault else None
        self._is_open = True

    @property
    def payload(self) -> memoryview:
        """The bytes to export into. Raises ValueError once the writer has ended."""
        self._check_open()
        return self._payload

    def publish(self, meta: SnapshotMeta, tokens: bytes) -> SnapshotMeta:
        """Seal the file and give it its key, in the place of any older snapshot of that key; gives
        its full metadata.

        `tokens` are the prefix's int32 little-endian ids, as many bytes as were reserved.
        `meta.payload_bytes` says how much of `payload` was written, 0 for all of it; the rest is
        given back. The writer has ended afterwards, also when this raises.

        Raises ValueError when `meta` contradicts what was written, SnapshotError when the file
        cannot be published.
        """
        self._check_open()
        try:
            sealed, extents = self._seal(meta, tokens)
            self._unmap()
            if extents.file_bytes < self._extents.file_bytes:
                os.ftruncate(self._temp.fileno(), extents.file_bytes)
            now_ns = time.time_ns()  # the clock that `open` dates uses with: the kernel's is coarser
            os.utime(self._temp.fileno(), ns=(now_ns, now_ns))
        except BaseException:
            self.discard()
            raise
        self._is_open = False
        self._temp.publish(sealed.key)
        logger.info(
            "published snapshot %s",
            sealed.key,
            extra={
                "action": "snapshot_published",
                "snapshot": sealed.key,
                "size_bytes": extents.file_bytes,
                "prefix_tokens": sealed.prefix_tokens,
            },
        )
        return sealed

    def discard(self) -> None:
        """Give everything back. Any number of times, and after `publish` nothing happens."""
        if self._is_open:
            self._is_open = False
            self._unmap()
            self._temp.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError("this snapshot was published or discarded")

    def _seal(self, meta: SnapshotMeta, tokens: bytes) -> tuple[SnapshotMeta, Extents]:
        """Write header and token ids.

        The metadata with everything filled in, and the final extents.
        """
        reserved = self._extents
        if len(tokens) != reserved.token_bytes:
            raise ValueError(f"{len(tokens)} bytes of token ids, {reserved.token_bytes} were reserved")
        written_bytes = meta.payload_bytes or reserved.payload_bytes
        if written_bytes > reserved.payload_bytes:
            raise ValueError(f"a payload of {written_bytes} bytes, {reserved.payload_bytes} were reserved")
        with self._payload[:written_bytes] as written:
            checksum = payload_checksum(written)
        sealed = replace(
            meta,
            key=snapshot_key(meta.identity, meta.prefix_digest, tokens),
            prefix_tokens=len(tokens) // TOKEN_ID_BYTES,
            token_digest=digest_bytes(tokens),
            payload_bytes=written_bytes,
            payload_checksum=checksum,
            created_ms=meta.created_ms or time.time_ns() // 1_000_000,
        )
        _check_agrees(meta, sealed)
        extents = replace(reserved, payload_bytes=written_bytes)
        self._map[: extents.payload_offset] = encode_head(sealed, extents, tokens)
        return sealed, extents

    def _unmap(self) -> None:
        if self._prefault is not None:
            self._prefault.stop()
        # BufferError: somebody still holds a view. The map then goes with its last view.
        with suppress(BufferError):
            self._payload.release()
            self._map.close()


def _check_agrees(stated: SnapshotMeta, sealed: SnapshotMeta) -> None:
    for name in ("key", "prefix_tokens", "token_digest", "payload_checksum"):
        value = getattr(stated, name)
        if value and value != getattr(sealed, name):
            raise ValueError(f"{name} is stated as {value}, but is {getattr(sealed, name)}")


def _part(mapping: mmap.mmap, start: int, size_bytes: int) -> memoryview:
    with memoryview(mapping) as whole:
        return whole[start : start + size_bytes]
