"""Who reads bytes that others wrote: valid inputs, the reader, and the errors by which it may refuse."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from swarmkv.protocol.codec import decode, encode, pack, unpack
from swarmkv.protocol.errors import ProtocolError, SnapshotError
from swarmkv.protocol.events import BranchDone, BranchText, PrefillDone, RunDone, decode_events, encode_events
from swarmkv.protocol.ledger import fleet, jobs, runs
from swarmkv.protocol.messages import (
    BranchResult,
    BranchSpec,
    ErrorInfo,
    Message,
    PrefixSpec,
    RunSpec,
    Sampling,
    WorkerInfo,
)
from swarmkv.protocol.shape import check_shape
from swarmkv.snapshots import SnapshotMeta, SnapshotStore
from swarmkv.snapshots.format import _CHECKSUM_AT, _FIXED, FIXED_BYTES, read_header
from swarmkv.snapshots.meta import pack_meta, unpack_meta
from tests.snapshot_support import key_of, publish

PREFIX = PrefixSpec(model="default", document="d" * 32, system="Be brief.")
SPEC = BranchSpec(name="a", prompt="é🙂", sampling=Sampling(seed=1, logit_bias={5: -2.5}, stop=("x",)))
RESULT = BranchResult(finish_reason="error", error=ErrorInfo(code="a", message="b", hint="c"))
_MESSAGES: tuple[Message, ...] = (
    *(PREFIX, SPEC, RESULT, BranchResult(text="t", finish_reason="stop")),
    RunSpec(run_id="ab", name="n", prefix=PREFIX, document_bytes=3),
)
_EVENTS = encode_events(
    [
        BranchText(branch="a", attempt=1, offset=0, text="é"),
        PrefillDone(tokens=3, prefill_ms=1.5, reused=False),
        BranchDone(branch="a", attempt=1, state="failed", result=RESULT),
        RunDone(state="failed", error=RESULT.error),
    ]
)
_PICKLES = [pickle.dumps({"v": 1, "name": "a"}, protocol) for protocol in (0, 2, 5)]


@dataclass(frozen=True)
class Target:
    """`read` gives or refuses by one of `refusals`; anything else is a crash."""

    name: str
    seeds: list[bytes]
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = (ProtocolError,)


def targets(directory: Path) -> list[Target]:
    """All of them; files are made in `directory`."""
    messages = [encode(message) for message in _MESSAGES]
    found = [
        Target(f"message-{type(message).__name__}", [encode(message), *_PICKLES], _reader(type(message)))
        for message in _MESSAGES[:3] + _MESSAGES[4:]
    ]
    return [
        *found,
        Target("msgpack", [*messages, _EVENTS, *_PICKLES], unpack),
        Target("shape", [*messages, _EVENTS], check_shape, (ValueError,)),
        Target("events", [_EVENTS, pack([]), *_PICKLES], decode_events),
        *_records(),
        *_snapshots(directory),
    ]


def _reader(kind: type[Message]) -> Callable[[bytes], object]:
    return lambda data: decode(kind, data)


# -- records: one field of a hash holds the input


def _records() -> list[Target]:
    run = {
        **dict.fromkeys(("branches", "open", "created_ms", "finished_ms", "tokens", "prefills_run"), b"1"),
        "state": b"done",
        "name": b"n",
        "model": b"m",
        "prefill_ms": b"1.5",
        "snapshot_prefill_ms": b"2",
        "snapshot": b"0" * 32,
        "error": pack({"code": "a", "message": "b"}),
    }
    branch = {"name": b"a", "state": b"done", "attempt": b"1", "worker": b"w", "result": encode(RESULT)}
    info = WorkerInfo(id="w", role="branch", model="m", pid=1, host="h", slots=1)
    worker = {name: str(value).encode() for name, value in info.model_dump().items()} | {"beat_ms": b"1"}

    def read_run(data: bytes) -> object:
        return runs.read_report("ab", _with_field(run, data), [branch], 5)

    def read_branch(data: bytes) -> object:
        return runs.read_report("ab", run, [_with_field(branch, data)], 5)

    def read_summary(data: bytes) -> object:
        fields = _with_field(run, data)
        row: list[bytes | None] = [
            fields[name] for name in ("name", "state", "model", "branches", "open", "created_ms")
        ]
        return runs._summary(b"ab", row)

    def read_worker(data: bytes) -> object:
        return fleet._live({name.encode(): value for name, value in _with_field(worker, data).items()}, 5)

    def read_taken(data: bytes) -> object:
        row = [b"b:ab:0:1", encode(SPEC), 0, 1, b"p", b""]
        prefix = [b"p", encode(PREFIX), b"0" * 32, 1]
        where, value = (data[0] % 4, data[1:]) if data else (0, data)
        field, index = ((row, 1), (prefix, 1), (prefix, 2), (row, 5))[where]
        field[index] = value
        return jobs._taken_branch(row, prefix)

    def seeds(fields: dict[str, bytes]) -> list[bytes]:
        return [bytes([index]) + value for index, value in enumerate(fields.values())]

    taken = [
        b"\0" + encode(SPEC),
        b"\1" + encode(PREFIX),
        b"\2" + b"0" * 32,
        b"\2" + _PICKLES[1],
        b"\3" + TRACEPARENT,
    ]
    return [
        Target("record-run", seeds(run), read_run),
        Target("record-branch", seeds(branch), read_branch),
        Target("record-listing", seeds(run), read_summary),
        Target("record-worker", seeds(worker), read_worker),
        Target("record-taken", taken, read_taken),
    ]


TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # the example of W3C's recommendation


def _with_field(fields: dict[str, bytes], data: bytes) -> dict[str, bytes]:
    """The record with one field, chosen by the first byte, that holds the others."""
    if not data:
        return fields
    return {**fields, list(fields)[data[0] % len(fields)]: data[1:]}


# -- snapshots


def _snapshots(directory: Path) -> list[Target]:
    store = SnapshotStore(directory / "store", 1 << 30)
    key = publish(store, 1, 1_000).key
    path = store.path / f"{key}.kv"
    whole = path.read_bytes()
    scratch = os.open(directory / "scratch", os.O_RDWR | os.O_CREAT)

    def read_head(data: bytes) -> object:
        os.ftruncate(scratch, 0)
        os.pwrite(scratch, data, 0)
        return read_header(scratch, key_of(1), len(data))

    def read_file(data: bytes) -> object:
        path.write_bytes(data)
        with store.open(key) as snapshot:
            return bytes(snapshot.payload[:1])

    return [
        Target("metadata", [pack_meta(store_meta(whole)), *_PICKLES], unpack_meta, (ValueError,)),
        Target("snapshot-header", [whole], read_head, (SnapshotError,)),
        Target("snapshot-resealed", [whole], lambda data: read_head(resealed(data)), (SnapshotError,)),
        Target("snapshot-file", [whole], read_file, (SnapshotError,)),
        Target("snapshot-file-resealed", [whole], lambda data: read_file(resealed(data)), (SnapshotError,)),
    ]


def store_meta(whole: bytes) -> SnapshotMeta:
    """The metadata inside a snapshot file."""
    metadata_bytes = _FIXED.unpack_from(whole)[3]
    return unpack_meta(whole[FIXED_BYTES : FIXED_BYTES + metadata_bytes])


def resealed(data: bytes) -> bytes:
    """The file with checksums of header and token ids that are right, so that what lies behind them is reached."""
    if len(data) < FIXED_BYTES:
        return data
    fields = list(_FIXED.unpack_from(data))
    header_bytes, payload_offset = fields[2], fields[6]
    fields[8] = xxhash.xxh3_128_digest(data[header_bytes:payload_offset])
    header = (_FIXED.pack(*fields) + data[FIXED_BYTES:])[:header_bytes]
    checksum = xxhash.xxh3_128_digest(header[:_CHECKSUM_AT] + header[FIXED_BYTES:])
    return header[:_CHECKSUM_AT] + checksum + header[FIXED_BYTES:] + data[header_bytes:]
