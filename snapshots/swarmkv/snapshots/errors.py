"""The one error that only the store knows."""

from __future__ import annotations

from swarmkv.protocol.errors import StoreFull


class SnapshotTooLarge(StoreFull):
    """Final, where StoreFull may pass: the snapshot does not fit even into an empty store."""

    code = "snapshot_too_large"
