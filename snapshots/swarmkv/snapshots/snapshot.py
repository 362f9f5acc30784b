"""Reading one snapshot: a verified, read-only mapping."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from swarmkv.protocol.errors import SnapshotMismatch
from swarmkv.snapshots.format import Header
from swarmkv.snapshots.meta import LayoutValue, SnapshotMeta


class Snapshot:
    """An open snapshot. Close it, or use it by `with`.

    `tokens` (int32 little-endian ids) and `payload` are read-only views of the mapping, valid until
    `close`. Drop all that is derived from them (slices, numpy arrays) first: what still holds the
    mapping then keeps it, and its memory, until it goes itself. Eviction, removal and a new
    snapshot under the key do not disturb an open one.
    """

    def __init__(self, header: Header, mapping: mmap.mmap) -> None:
        self.meta: SnapshotMeta = header.meta
        extents = header.extents
        with memoryview(mapping) as whole:
            token_end = extents.header_bytes + extents.token_bytes
            self._tokens = whole[extents.header_bytes : token_end]
            self._payload = whole[extents.payload_offset : extents.file_bytes]
        self._map: mmap.mmap | None = mapping

    @property
    def key(self) -> str:
        return self.meta.key

    @property
    def tokens(self) -> memoryview:
        """Raises ValueError once closed."""
        self._check_open()
        return self._tokens

    @property
    def payload(self) -> memoryview:
        """Raises ValueError once closed."""
        self._check_open()
        return self._payload

    def check(
        self,
        *,
        identity: str,
        layout: Mapping[str, LayoutValue],
        prefix_digest: str,
        tokens: bytes | None = None,
    ) -> None:
        """Raise SnapshotMismatch unless it can be restored by this engine, for this prefix.

        The message names each differing field with both values. `tokens`, if given, are compared
        one by one: digests decide where to look, never alone what is restored.
        """
        self.meta.check(identity=identity, layout=layout, prefix_digest=prefix_digest)
        if tokens is not None and self.tokens != tokens:
            raise SnapshotMismatch(
                f"Snapshot {self.key} holds other token ids ({self.meta.prefix_tokens} of them) than the "
                f"prefix that is asked for ({len(tokens) // 4}).",
                hint="It is prefilled again for this document.",
            )

    def rest(self) -> None:
        """Leave the memory of the mapping to the file alone; reading it again maps the pages again.

        They are the file's either way, but while mapped they count as this process's too, against its limit.
        """
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap it, at the latest when the last view derived from it goes. Any number of times."""
        mapping, self._map = self._map, None
        if mapping is None:
            return
        for view in (self._tokens, self._payload):
            with suppress(BufferError):
                view.release()
        with suppress(BufferError):
            mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._map is None:
            raise ValueError(f"snapshot {self.key} is closed")
