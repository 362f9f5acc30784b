"""Digests that name things.

Every field is tagged with its name and prefixed with its length before it is hashed, so that no two different
field lists can give the same bytes ("ab","c" against "a","bc"; a system text that looks like a template).
"""

from __future__ import annotations

import hashlib

DIGEST_BYTES = 16


def digest_bytes(data: bytes) -> str:
    """Content digest of one byte string, 32 hex digits."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def digest_fields(kind: str, **fields: str | bytes | int | None) -> str:
    """Digest of named fields, 32 hex digits. None and "" are different values."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"swarmkv")
    for name, value in (("kind", kind), *sorted(fields.items())):
        tag, data = _tagged(value)
        encoded = name.encode()
        hasher.update(len(encoded).to_bytes(4, "little") + encoded + tag)
        hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.hexdigest()


def _tagged(value: str | bytes | int | None) -> tuple[bytes, bytes]:
    match value:
        case None:
            return b"n", b""
        case str():
            return b"s", value.encode()
        case int():
            return b"i", str(value).encode()
        case _:
            return b"b", value
