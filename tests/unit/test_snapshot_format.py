"""The snapshot file's bytes: what is written can be read, and nothing else can."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import swarmkv.snapshots
from swarmkv.protocol.errors import SnapshotCorrupt, SnapshotMismatch
from swarmkv.protocol.identity import digest_bytes
from swarmkv.snapshots import SnapshotMeta, snapshot_key
from swarmkv.snapshots.directory import StoredFile
from swarmkv.snapshots.eviction import plan_eviction
from swarmkv.snapshots.format import (
    ALIGNMENT,
    FIXED_BYTES,
    FORMAT_VERSION,
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_TOKEN_BYTES,
    Extents,
    Header,
    encode_head,
    payload_checksum,
    read_header,
)
from swarmkv.snapshots.meta import MAX_LAYOUT_FIELDS, pack_meta, unpack_meta
from swarmkv.snapshots.verified import MAX_REMEMBERED, VerifiedFiles
from tests.snapshot_support import IDENTITY, META, tokens_of

TOKENS = tokens_of(1)
KEY = snapshot_key(IDENTITY, META.prefix_digest, TOKENS)
PAYLOAD = bytes(range(256)) * 4 + b"!"


def sealed(payload_bytes: int = len(PAYLOAD)) -> SnapshotMeta:
    return replace(
        META,
        key=KEY,
        prefix_tokens=len(TOKENS) // 4,
        token_digest=digest_bytes(TOKENS),
        payload_bytes=payload_bytes,
        payload_checksum=payload_checksum(memoryview(PAYLOAD)),
        created_ms=1_700_000_000_000,
    )


def whole_file(meta: SnapshotMeta | None = None) -> bytes:
    extents = Extents.plan(len(TOKENS), len(PAYLOAD))
    return encode_head(meta or sealed(), extents, TOKENS) + PAYLOAD


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path / "file")
    yield reader
    reader.close()


class Reader:
    """Reads headers from bytes by way of a real file."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def __call__(self, data: bytes, key: str = KEY, size_bytes: int | None = None) -> Header:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)
        return read_header(self._fd, key, len(data) if size_bytes is None else size_bytes)

    def close(self) -> None:
        os.close(self._fd)


def test_a_header_reads_back_as_it_was_written(read: Reader) -> None:
    header = read(whole_file())

    assert header.meta == sealed()
    assert header.extents == Extents(HEADER_BYTES, len(TOKENS), len(PAYLOAD))
    assert header.extents.payload_offset % ALIGNMENT == 0


def test_a_flip_of_any_bit_of_the_first_bytes_and_of_every_byte_of_the_head_is_noticed(
    read: Reader,
) -> None:
    good = whole_file()
    head_bytes = len(good) - len(PAYLOAD)
    flips = [(at, 1 << bit) for at in range(FIXED_BYTES) for bit in range(8)]
    flips += [(at, 0xFF) for at in range(FIXED_BYTES, head_bytes)]
    for at, mask in flips:
        bad = bytearray(good)
        bad[at] ^= mask
        with pytest.raises((SnapshotCorrupt, SnapshotMismatch), match=KEY) as caught:
            read(bytes(bad))
        is_version = 8 <= at < 12
        assert isinstance(caught.value, SnapshotMismatch) == is_version, f"byte {at}"


@pytest.mark.parametrize("share", [0, 25, 50, 75, 99])
def test_a_cut_file_is_damaged_and_the_message_has_both_sizes(read: Reader, share: int) -> None:
    good = whole_file()
    cut = good[: len(good) * share // 100]

    with pytest.raises(SnapshotCorrupt, match=f"has {len(cut)} bytes"):
        read(cut)


def test_a_file_that_is_one_byte_longer_is_damaged(read: Reader) -> None:
    with pytest.raises(SnapshotCorrupt, match=f"states {len(whole_file())}"):
        read(whole_file() + b"\0")


def test_a_file_that_shrinks_while_it_is_read_is_damaged(read: Reader) -> None:
    good = whole_file()

    with pytest.raises(SnapshotCorrupt, match="could be read"):
        read(good[:HEADER_BYTES], size_bytes=len(good))


def test_another_format_version_is_refused_with_both_versions(read: Reader) -> None:
    data = bytearray(whole_file())
    data[8] = 7

    with pytest.raises(SnapshotMismatch, match=f"version 7.*version {FORMAT_VERSION}"):
        read(bytes(data))


def test_another_file_kind_is_refused(read: Reader) -> None:
    with pytest.raises(SnapshotCorrupt, match="begins with b'GGUF"):
        read(b"GGUF" + bytes(8000))


def test_a_renamed_snapshot_is_damaged(read: Reader) -> None:
    with pytest.raises(SnapshotCorrupt, match="under another name"):
        read(whole_file(), key="0" * 32)


def test_token_ids_that_do_not_belong_to_the_key_are_noticed_behind_right_checksums(
    read: Reader,
) -> None:
    extents = Extents.plan(len(TOKENS), len(PAYLOAD))
    other = tokens_of(2)

    with pytest.raises(SnapshotCorrupt, match="token ids are not those"):
        read(encode_head(sealed(), extents, other) + PAYLOAD)
    meta = replace(sealed(), token_digest=digest_bytes(other))
    with pytest.raises(SnapshotCorrupt, match="do not give its key"):
        read(encode_head(meta, extents, other) + PAYLOAD)


@pytest.mark.parametrize(
    ("field", "value"), [("payload_bytes", 5), ("prefix_tokens", 99)], ids=["payload", "tokens"]
)
def test_metadata_that_contradicts_the_header_is_damage(read: Reader, field: str, value: int) -> None:
    with pytest.raises(SnapshotCorrupt, match="metadata and header"):
        read(whole_file(replace(sealed(), **{field: value})))  # type: ignore[arg-type]


@pytest.mark.parametrize("payload_bytes", [2**31 + 1, 2**32 + 1, 2**33 + 4097])
def test_sizes_beyond_32_bits_survive_the_header(read: Reader, payload_bytes: int) -> None:
    extents = Extents.plan(len(TOKENS), payload_bytes)
    head = encode_head(sealed(payload_bytes), extents, TOKENS)

    header = read(head, size_bytes=extents.file_bytes)

    assert header.extents.payload_bytes == header.meta.payload_bytes == payload_bytes
    assert header.extents.file_bytes == len(head) + payload_bytes


@pytest.mark.parametrize(
    ("token_bytes", "payload_bytes"),
    [(0, 10), (5, 10), (MAX_TOKEN_BYTES + 4, 10), (4, 0), (4, -1), (4, MAX_PAYLOAD_BYTES + 1)],
)
def test_sizes_out_of_range_are_refused_before_anything_is_written(token_bytes: int, payload_bytes: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Extents.plan(token_bytes, payload_bytes)


def test_metadata_over_the_header_is_refused_when_written() -> None:
    wordy = replace(sealed(), layout={f"field{i}": "x" * 1000 for i in range(20)})

    with pytest.raises(ValueError, match="is over the"):
        whole_file(wordy)


@pytest.mark.parametrize(
    "wrong",
    [
        {"layout": {f"f{i}": 1 for i in range(MAX_LAYOUT_FIELDS + 1)}},
        {"layout": {"a": 1.5}},
        {"layout": {1: "a"}},
        {"identity": "x" * 2000},
        {"prefill_ms": float("nan")},
        {"prefix_tokens": -1},
        {"prefix_tokens": True},
        {"payload_bytes": 2**63},
        {"key": "../../etc/passwd"},
    ],
)
def test_metadata_out_of_range_is_neither_written_nor_read(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        pack_meta(replace(sealed(), **wrong))  # type: ignore[arg-type]
    plain = {field: getattr(sealed(), field) for field in SnapshotMeta.__slots__} | wrong
    if wrong == {"payload_bytes": 2**63}:
        plain["payload_bytes"] = 2**64 - 1
    with pytest.raises(ValueError, match=f"{name}|not allowed for map key"):
        unpack_meta(msgpack.packb(plain))


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x93\x01", b"\x01\x02", b"\x01", b"\x80", b"\x81\xa1\xff\x01", b"\x91" * 3000],
    ids=["empty", "no type", "cut", "two values", "no map", "no fields", "no UTF-8", "deep"],
)
def test_metadata_that_is_no_map_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack_meta(data)


@given(st.binary(max_size=300))
def test_no_bytes_at_all_make_the_metadata_reader_fail_otherwise(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack_meta(data)


def check(meta: SnapshotMeta, **changed: object) -> None:
    wanted = {"identity": META.identity, "layout": META.layout, "prefix_digest": META.prefix_digest}
    meta.check(**(wanted | changed))  # type: ignore[arg-type]


def test_a_snapshot_suits_an_engine_of_its_own_settings() -> None:
    check(sealed())


def test_a_mismatch_names_every_differing_field_with_both_values() -> None:
    here = dict(META.layout) | {"kv_type_k": "q8_0", "flash_attention": 0, "build": "b9"}

    with pytest.raises(SnapshotMismatch) as caught:
        check(sealed(), identity="other", layout=here)

    message = caught.value.message
    assert "kv_type_k is 'f16' in the snapshot, 'q8_0' here" in message
    assert "flash_attention is False in the snapshot, 0 here" in message
    assert "build is None in the snapshot, 'b9' here" in message
    assert "fingerprint" not in message
    assert KEY in message


def test_an_identity_that_differs_alone_is_a_mismatch() -> None:
    with pytest.raises(SnapshotMismatch, match=r"identity is 'identity-of-an-engine'.*'other' here"):
        check(sealed(), identity="other")


def test_another_prefix_is_a_mismatch() -> None:
    with pytest.raises(SnapshotMismatch, match=r"another prefix.*'digest-of-the-pieces'.*'other' here"):
        check(sealed(), prefix_digest="other")


@given(st.text(), st.text(), st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_moving_bytes_between_the_parts_of_a_key_changes_it(first: str, second: str, ids: list[int]) -> None:
    tokens = b"".join(i.to_bytes(4, "little") for i in ids)
    key = snapshot_key(first, second, tokens)

    assert key == snapshot_key(first, second, tokens)
    assert (key == snapshot_key(second, first, tokens)) == (first == second)
    assert snapshot_key(first + "ab", second, tokens) != snapshot_key(first, "ab" + second, tokens)
    assert snapshot_key(first, second + "ab", tokens) != snapshot_key(first, second, b"ab" + tokens)


def test_a_verified_file_is_not_mistaken_for_a_later_one_that_got_its_inode(read: Reader) -> None:
    header = read(whole_file())
    status = os.stat(__file__)
    verified = VerifiedFiles()
    verified.add(status, header)

    assert verified.knows(status, header)
    assert not verified.knows(status, replace(header, checksum=bytes(16)))


def test_verified_files_are_remembered_up_to_a_bound(read: Reader) -> None:
    header = read(whole_file())
    status = os.stat(__file__)
    verified = VerifiedFiles()
    headers = [replace(header, checksum=number.to_bytes(16)) for number in range(MAX_REMEMBERED + 1)]
    for one in headers:
        verified.add(status, one)

    assert not verified.knows(status, headers[0])
    assert all(verified.knows(status, one) for one in headers[1:])


def stored(number: int, size_bytes: int, last_used: int) -> StoredFile:
    return StoredFile(f"{number:032x}.kv", size_bytes, last_used)


def test_the_least_recently_used_go_first_and_no_more_than_needed() -> None:
    files = [stored(1, 10, 300), stored(2, 10, 100), stored(3, 10, 200)]

    assert plan_eviction(files, 0, ()) == []
    assert plan_eviction(files, 10, ()) == [files[1]]
    assert plan_eviction(files, 11, ()) == [files[1], files[2]]


def test_pinned_snapshots_and_files_being_written_never_go() -> None:
    files = [stored(1, 10, 1), StoredFile(".7-00.tmp", 10, 2), stored(3, 10, 3)]

    assert plan_eviction(files, 10, {f"{1:032x}"}) == [files[2]]
    assert plan_eviction(files, 11, {f"{1:032x}"}) is None


def test_the_public_face_is_what_it_says() -> None:
    assert sorted(swarmkv.snapshots.__all__) == swarmkv.snapshots.__all__
    assert swarmkv.snapshots.__all__ == [
        "FORMAT_VERSION",
        "LayoutValue",
        "Snapshot",
        "SnapshotEntry",
        "SnapshotMeta",
        "SnapshotStore",
        "SnapshotTooLarge",
        "SnapshotWriter",
        "format_bytes",
        "snapshot_key",
    ]
    assert all(hasattr(swarmkv.snapshots, name) for name in swarmkv.snapshots.__all__)
