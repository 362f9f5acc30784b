"""What the snapshot tests share: small snapshots, and the bodies of the processes that they start."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from swarmkv.protocol.errors import SnapshotError, StoreFull
from swarmkv.snapshots import SnapshotMeta, SnapshotStore, snapshot_key
from swarmkv.snapshots.capacity import UNLIMITED, Capacity

MIB = 1024 * 1024
IDENTITY = "identity-of-an-engine"
META = SnapshotMeta(
    identity=IDENTITY,
    layout={"fingerprint": "f" * 32, "kv_type_k": "f16", "flash_attention": False, "n_swa": 512},
    prefix_digest="digest-of-the-pieces",
    architecture="gemma3",
    prefill_ms=4321.5,
)
processes = multiprocessing.get_context("spawn")


def tokens_of(number: int, count: int = 100) -> bytes:
    """`count` token ids of the prefix of that number."""
    return b"".join((number * 1000 + i).to_bytes(4, "little") for i in range(count))


def key_of(number: int) -> str:
    return snapshot_key(IDENTITY, META.prefix_digest, tokens_of(number))


def content_of(number: int, size_bytes: int) -> bytes:
    """A payload that no other number has."""
    unit = bytes((number * 31 + i * 7) % 256 for i in range(251))
    return (unit * (size_bytes // 251 + 1))[:size_bytes]


def publish(store: SnapshotStore, number: int, size_bytes: int = 10_000, **meta: object) -> SnapshotMeta:
    """Write snapshot `number` with the content that belongs to it."""
    tokens = tokens_of(number)
    with store.reserve(size_bytes, len(tokens)) as writer:
        writer.payload[:] = content_of(number, size_bytes)
        return writer.publish(replace(META, **meta), tokens)  # type: ignore[arg-type]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.002)


def names_in(directory: Path) -> list[str]:
    """The files that hold snapshots or parts of them."""
    return sorted(name for name in os.listdir(directory) if name.endswith((".kv", ".tmp")))


def write_without_end(directory: Path, budget_bytes: int, pipe: Connection) -> None:
    """A writer that says when it has reserved, and then writes until it is killed."""
    store = SnapshotStore(directory, budget_bytes)
    writer = store.reserve(4 * MIB, 400, prefault=True)
    pipe.send("reserved")
    while True:
        writer.payload[:] = bytes(len(writer.payload))


def publish_without_end(directory: Path, budget_bytes: int, number: int, size_bytes: int) -> None:
    """A writer that publishes one key again and again until it is killed."""
    store = SnapshotStore(directory, budget_bytes)
    while True:
        publish(store, number, size_bytes)


def read_until(directory: Path, number: int, size_bytes: int, rounds: int, pipe: Connection) -> None:
    """A reader that compares every byte of a key, `rounds` times; sends what was wrong, or ""."""
    store = SnapshotStore(directory, 1024 * MIB)
    right = content_of(number, size_bytes)
    try:
        for _ in range(rounds):
            with store.open(key_of(number)) as snapshot:
                if snapshot.payload != right or snapshot.tokens != tokens_of(number):
                    pipe.send("other bytes than were published")
                    return
        pipe.send("")
    except SnapshotError as exc:
        pipe.send(repr(exc))


def reserve_in_a_row(directory: Path, budget_bytes: int, seed: int, rounds: int, pipe: Connection) -> None:
    """A writer that reserves, and publishes or discards, and sends how often there was room."""
    store = SnapshotStore(directory, budget_bytes)
    had_room = 0
    for turn in range(rounds):
        number = seed * rounds + turn
        tokens = tokens_of(number)
        try:
            with store.reserve(MIB, len(tokens)) as writer:
                had_room += 1
                if turn % 3:
                    writer.publish(META, tokens)
        except StoreFull:
            continue
    pipe.send(had_room)


def open_once(directory: Path, number: int, pipe: Connection) -> None:
    """A reader that opens a snapshot and exits with it open."""
    snapshot = SnapshotStore(directory, 1024 * MIB).open(key_of(number))
    pipe.send(len(snapshot.payload))


def reserve_blindly(directory: Path, size_bytes: int, pipe: Connection) -> None:
    """A writer that believes in endless room: only the reserving itself can save it from SIGBUS."""
    Capacity.of = lambda target: Capacity(UNLIMITED, UNLIMITED)  # type: ignore[method-assign]
    _reserve_and_fill(SnapshotStore(directory, 1024 * MIB), size_bytes, pipe)


def reserve_over_the_file_size_limit(directory: Path, size_bytes: int, pipe: Connection) -> None:
    """A writer that may not make files that large."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
    _reserve_and_fill(SnapshotStore(directory, 1024 * MIB), size_bytes, pipe)


def _reserve_and_fill(store: SnapshotStore, size_bytes: int, pipe: Connection) -> None:
    try:
        with store.reserve(size_bytes, 400) as writer:
            writer.payload[:] = bytes(size_bytes)
            pipe.send("filled")
    except StoreFull as exc:
        pipe.send(exc.message)


def sees(directory: Path, handshake: str, pipe: Connection) -> None:
    pipe.send(SnapshotStore(directory, MIB).sees(handshake))
