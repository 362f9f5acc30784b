"""What a snapshot says of itself, and whether that suits who wants to restore it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from swarmkv.protocol.codec import pack, unpack
from swarmkv.protocol.errors import ProtocolError, SnapshotMismatch

LayoutValue = str | int | bool
KEY_PATTERN = re.compile(r"[0-9a-f]{32}")
MAX_TEXT_CHARS = 1024
MAX_LAYOUT_FIELDS = 64
MAX_INT = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMeta:
    """The metadata of one snapshot.

    A writer states the first group. The second is filled in by `SnapshotWriter.publish` from what
    was really written; what a writer states there must agree, and may be left out.
    """

    identity: str  # digest of all that decides whether the state can be restored
    layout: Mapping[str, LayoutValue]  # the same in words: fingerprint, build, KV types, flash attention ...
    prefix_digest: str  # of the rendered prefix pieces
    architecture: str
    prefill_ms: float
    created_ms: int = 0  # 0: the time of publishing

    key: str = ""
    prefix_tokens: int = 0
    token_digest: str = ""
    payload_bytes: int = 0  # 0: all that was reserved
    payload_checksum: str = ""  # xxh3_128, 32 hex digits

    def check(
        self,
        *,
        identity: str,
        layout: Mapping[str, LayoutValue],
        prefix_digest: str,
    ) -> None:
        """Raise SnapshotMismatch, naming the fields and both values, unless the snapshot suits the caller."""
        differing = _layout_differences(self.layout, layout)
        if not differing and self.identity != identity:
            differing = [_difference("identity", self.identity, identity)]
        if differing:
            raise SnapshotMismatch(
                f"Snapshot {self.key} was made with other settings: {'; '.join(differing)}.",
                hint="Give prefill and branch workers the same model and settings; it is prefilled again.",
            )
        if self.prefix_digest != prefix_digest:
            what = _difference("prefix_digest", self.prefix_digest, prefix_digest)
            raise SnapshotMismatch(
                f"Snapshot {self.key} holds another prefix: {what}.",
                hint="It is prefilled again for this document.",
            )


def pack_meta(meta: SnapshotMeta) -> bytes:
    """The metadata as a msgpack map. Raises ValueError when a value could not be read back."""
    plain = {name: getattr(meta, name) for name in _CHECKS} | {"layout": dict(meta.layout)}
    _check_values(plain)
    return pack(plain)


def unpack_meta(data: bytes) -> SnapshotMeta:
    """The metadata of a header. Raises ValueError naming the field that is not as it should be."""
    try:
        plain = unpack(data)
    except ProtocolError as exc:
        raise ValueError(exc.message) from exc
    if not isinstance(plain, dict):
        raise ValueError("it is no map")
    _check_values(plain)
    return SnapshotMeta(**plain)


def _check_values(plain: dict[str, object]) -> None:
    if plain.keys() != _CHECKS.keys():
        odd = sorted(str(name) for name in plain.keys() ^ _CHECKS.keys())
        raise ValueError(f"fields missing or unknown: {', '.join(odd)}")
    for name, is_right in _CHECKS.items():
        if not is_right(plain[name]):
            raise ValueError(f"{name} is out of range")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_CHARS


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _is_layout(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_LAYOUT_FIELDS
        and all(_is_text(name) for name in value)
        and all(_is_text(v) or (isinstance(v, int) and abs(v) <= MAX_INT) for v in value.values())
    )


def _is_hex(value: object) -> bool:
    return isinstance(value, str) and KEY_PATTERN.fullmatch(value) is not None


_BY_TYPE = {"str": _is_text, "int": _is_count, "float": _is_duration}
_CHECKS = {field.name: _BY_TYPE.get(str(field.type), _is_layout) for field in fields(SnapshotMeta)}
_CHECKS |= dict.fromkeys(("key", "token_digest", "payload_checksum"), _is_hex)


def _layout_differences(stored: Mapping[str, LayoutValue], wanted: Mapping[str, LayoutValue]) -> list[str]:
    """One entry for each field that differs; True and 1 differ."""
    return [
        _difference(name, stored.get(name), wanted.get(name))
        for name in sorted({*stored, *wanted})
        if repr(stored.get(name)) != repr(wanted.get(name))
    ]


def _difference(name: str, stored: LayoutValue | None, wanted: LayoutValue | None) -> str:
    return f"{name} is {stored!r} in the snapshot, {wanted!r} here"
