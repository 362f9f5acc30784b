"""`swarmkv snapshots` and `swarmkv doctor` on a real store and a real broker."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from swarmkv.snapshots import SnapshotMeta, SnapshotStore
from tests.command import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def store(home: Home) -> SnapshotStore:
    return SnapshotStore(home.directory / "store", 1 << 30)


def add(store: SnapshotStore, seed: int) -> str:
    tokens = np.arange(seed, seed + 64, dtype=np.int32).tobytes()
    payload = bytes(range(256)) * 64
    meta = SnapshotMeta(
        identity="ab" * 16,
        layout={"build": "b1\x1b[31m", "flash_attention": False},
        prefix_digest="cd" * 16,
        architecture="llama",
        prefill_ms=12.5,
    )
    with store.reserve(len(payload), len(tokens)) as writer:
        writer.payload[:] = payload
        return writer.publish(meta, tokens).key


def test_ls_and_inspect_show_what_is_stored(home: Home, store: SnapshotStore) -> None:
    key = add(store, 1)
    [entry] = home.run("snapshots", "ls", "--json").json
    assert (entry["key"], entry["prefix_tokens"], entry["problem"]) == (key, 64, None)
    inspected = home.run("snapshots", "inspect", key[:8])
    assert inspected.code == 0
    assert "layout.flash_attention" in inspected.stdout
    assert re.search(r"created_ms +20\d\d-\d\d-\d\d \d\d:", inspected.stdout)
    assert re.search(r"size_bytes +[\d,]+ \([\d.]+ KiB\)", inspected.stdout)
    assert "\x1b" not in inspected.stdout
    assert home.run("snapshots", "inspect", key, "--json").json["layout"]["flash_attention"] is False


def test_verify_finds_a_flipped_byte_and_ends_with_code_one(home: Home, store: SnapshotStore) -> None:
    good, bad = add(store, 1), add(store, 100)
    assert home.run("snapshots", "verify").code == 0
    [path] = (home.directory / "store").glob(f"{bad}*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = home.run("snapshots", "verify", "--json")
    problems = {item["key"]: item["problem"] for item in done.json}
    assert (done.code, problems[good]) == (1, "")
    assert bad in problems[bad]


def test_rm_removes_what_is_named_or_all(home: Home, store: SnapshotStore) -> None:
    first, second = add(store, 1), add(store, 100)
    assert home.run("snapshots", "rm", first, "--json").json == {"removed": [first]}
    assert home.run("snapshots", "rm").code == 2
    assert home.run("snapshots", "rm", "--all").code == 0
    assert second not in home.run("snapshots", "ls").stdout


@pytest.mark.parametrize("key", ["0" * 32, "ab", "../../etc/passwd"])
def test_an_unknown_key_is_refused(home: Home, store: SnapshotStore, key: str) -> None:
    add(store, 1)
    done = home.run("snapshots", "inspect", key, "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "snapshot_missing")
    assert home.run("snapshots", "rm", key).code == 2


def test_the_beginning_of_several_keys_is_refused(home: Home, store: SnapshotStore) -> None:
    key = add(store, 1)
    path = store.path / f"{key}.kv"
    path.with_name(f"{key[:-1]}{'0' if key[-1] != '0' else '1'}.kv").write_bytes(path.read_bytes())
    done = home.run("snapshots", "rm", key[:-1])
    assert (done.code, "2 snapshots begin with" in done.stderr) == (2, True)


def test_doctor_finds_nothing_wrong_with_a_good_host(home: Home, redis_url: str, tiny_llama_path: Path) -> None:
    sound = home.with_settings(redis_url=redis_url, store_budget_bytes=1 << 20)
    done = sound.run("doctor", "--model", str(tiny_llama_path), "--json")
    verdicts = {finding["subject"]: finding["verdict"] for finding in done.json}
    assert done.code == 0, done.stdout
    for subject in ("redis", "redis eviction", "store", "store sharing", "model", "engine"):
        assert verdicts[subject] == "ok"
    assert verdicts["workers"] == "warning"


def test_doctor_without_a_broker_says_so_and_ends_with_code_one(home: Home, tiny_llama_path: Path) -> None:
    done = home.run("doctor", "--model", str(tiny_llama_path))
    assert done.code == 1
    assert "problem  redis" in done.stdout
    assert "swarmkv up" in done.stdout


def test_a_store_that_cannot_be_made_is_named_with_the_reason(home: Home) -> None:
    done = home.with_settings(store_dir="/proc/none").run("snapshots", "ls")
    assert (done.code, done.stdout) == (2, "")
    assert "SWARMKV_STORE_DIR=/proc/none cannot be used: No such file or directory.\n" in done.stderr


def test_pinned_snapshots_are_shown_and_stay_until_unpinned(home: Home, store: SnapshotStore) -> None:
    first, second = add(store, 1), add(store, 100)
    assert home.run("snapshots", "pin", first[:8], second, "--json").json == {"pinned": [first, second]}
    assert home.run("snapshots", "pin", first, "--json").json == {"pinned": []}
    assert home.run("snapshots", "unpin", second, "--json").json == {"unpinned": [second]}
    entries = home.run("snapshots", "ls", "--json").json
    assert {entry["key"]: entry["pinned"] for entry in entries} == {first: True, second: False}
    assert home.run("snapshots", "pin", "0" * 32).code == 2
    assert home.run("snapshots", "rm", first).code == 0
    assert store.pinned() == frozenset()
