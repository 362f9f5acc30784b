"""What makes a model file itself: the digest of all its bytes.

Reading a large file takes a while, so the digest is kept in the user's cache under everything that changes
when the file does: device, inode, size, modification and change time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path

from swarmkv.protocol.identity import DIGEST_BYTES, digest_fields

logger = logging.getLogger(__name__)

CHUNK_BYTES = 8 * 1024 * 1024
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def fingerprint(path: Path) -> str:
    """32 hex digits over the whole GGUF, all its parts if it is split. Raises OSError."""
    parts = model_parts(path)
    digests = {f"part_{number}": _cached_digest(part) for number, part in enumerate(parts)}
    return digests["part_0"] if len(parts) == 1 else digest_fields("split_gguf", **digests)


def model_parts(path: Path) -> list[Path]:
    """The files of a model: itself, or for NAME-00001-of-00003.gguf all three."""
    match = _SPLIT.search(path.name)
    if match is None:
        return [path]
    stem, total = path.name[: match.start()], int(match.group(2))
    names = [f"{stem}-{number:05d}-of-{total:05d}.gguf" for number in range(1, total + 1)]
    return [path.with_name(name) for name in names]


def _cached_digest(path: Path) -> str:
    entry = _cache_dir() / _stat_key(path)
    try:
        cached = entry.read_text()
    except OSError:
        cached = ""
    if len(cached) == 2 * DIGEST_BYTES:
        return cached
    digest = _digest_file(path)
    _remember(entry, digest)
    return digest


def _stat_key(path: Path) -> str:
    stat = path.stat()
    return digest_fields(
        "gguf_stat",
        device=stat.st_dev,
        inode=stat.st_ino,
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        ctime_ns=stat.st_ctime_ns,
    )


def _digest_file(path: Path) -> str:
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def _remember(entry: Path, digest: str) -> None:
    """Write by rename, so that a reader sees a whole digest; a read-only home costs only time."""
    partial = entry.with_name(f"{entry.name}.{os.getpid()}")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(digest)
        partial.replace(entry)
    except OSError as exc:
        logger.info("The fingerprint is not cached: %s", exc, extra={"action": "fingerprint_not_cached"})


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "swarmkv" / "fingerprints"
