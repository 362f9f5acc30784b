"""Which snapshots go when room is needed.

The least recently used, never one that somebody waits for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swarmkv.snapshots.directory import StoredFile


def plan_eviction(
    files: Iterable[StoredFile], excess_bytes: int, pinned: Collection[str]
) -> list[StoredFile] | None:
    """The files to remove so that `excess_bytes` become free; None when even all that may go are
    not enough.

    Temporary files belong to their writers and never go.
    """
    victims: list[StoredFile] = []
    evictable = (file for file in files if file.key is not None and file.key not in pinned)
    for file in sorted(evictable, key=lambda file: file.last_used_ns):
        if excess_bytes <= 0:
            break
        victims.append(file)
        excess_bytes -= file.size_bytes
    return victims if excess_bytes <= 0 else None
