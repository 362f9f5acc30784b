"""Messages that nest too deep, announce too much or hold foreign types are refused before they are decoded."""

from __future__ import annotations

import pickle
import tracemalloc
from datetime import UTC, datetime

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkv.protocol.codec import decode, encode, pack, unpack
from swarmkv.protocol.errors import ProtocolError
from swarmkv.protocol.events import decode_events
from swarmkv.protocol.messages import BranchSpec, PrefixSpec, RunSpec
from swarmkv.protocol.shape import MAX_DEPTH, MAX_ITEMS, check_shape
from swarmkv.snapshots.meta import unpack_meta

MIB = 1024 * 1024
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
keys = st.text() | st.integers(0, 2**32)
plain = st.recursive(
    scalars | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(keys, inner, max_size=20),
    max_leaves=40,
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(value=plain)
def test_plain_data_comes_back_as_it_was(value: object) -> None:
    if depth(value) <= MAX_DEPTH:
        assert unpack(pack(value)) == value


@given(data=st.binary(max_size=64) | plain.map(pack))
def test_what_the_bounds_let_through_is_what_msgpack_reads(data: bytes) -> None:
    try:
        check_shape(data)
    except ValueError:
        with pytest.raises(ProtocolError):
            unpack(data)
        return
    try:
        msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (UnicodeDecodeError, TypeError):  # text that is none, a list as a key
        return


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 255, 256, 65_535, 65_536, 70_000])
def test_every_form_of_a_length_is_walked(size: int) -> None:
    for value in ("x" * size, b"x" * size, [None] * size, dict.fromkeys(range(size))):
        assert unpack(pack(value)) == value
        for broken in (pack(value)[:-1], pack(value) + b"\0"):
            with pytest.raises(ProtocolError):
                unpack(broken)


@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1k", b"\xdc\x00\x01", b"\xdf\x00\x00\x00\x01\x01"])
def test_nesting_is_bounded(opener: bytes) -> None:
    check_shape(opener * MAX_DEPTH + b"\xc0")
    for levels in (MAX_DEPTH + 1, 1_000, 1_000_000):
        with pytest.raises(ProtocolError, match=f"nested deeper than {MAX_DEPTH} levels"):
            unpack(opener * levels + b"\xc0")


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff" + b"x" * 100,
        b"\xdd\x00\x0f\xff\xff" * 10 + bytes(MIB),  # each fits the message by itself, all together do not
        b"\xdd\x00\x03\x00\x00" * 1_000 + bytes(MIB),
    ],
    ids=["list", "map", "bytes", "text", "lists in lists", "a thousand lists"],
)
def test_lengths_beyond_the_message_cost_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            unpack(data)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_the_number_of_values_is_bounded() -> None:
    with pytest.raises(ProtocolError, match="more than 4,000,000 values"):
        unpack(b"\xdd" + (MAX_ITEMS + 1).to_bytes(4, "big") + bytes(MAX_ITEMS + 1))


@pytest.mark.parametrize(
    "data",
    [
        msgpack.packb(msgpack.ExtType(5, b"data")),
        msgpack.packb({"v": 1, "model": msgpack.ExtType(1, b"x" * 300)}),
        msgpack.packb(datetime(2026, 1, 2, tzinfo=UTC), datetime=True),
        b"\xc9\xff\xff\xff\xff\x01",
    ],
)
def test_extension_types_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="extension type"):
        unpack(data)


def test_pickles_of_every_protocol_are_refused_by_every_decoder() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps({"v": 1, "name": "a", "prompt": "b"}, protocol)
        for kind in (BranchSpec, PrefixSpec, RunSpec):
            with pytest.raises(ProtocolError):
                decode(kind, data)
        with pytest.raises(ProtocolError):
            decode_events(data)
        with pytest.raises(ValueError, match=r"msgpack|map"):
            unpack_meta(data)


def test_errors_stay_short_and_quote_nothing_of_a_message() -> None:
    secret = "the-secret-word"
    fields = msgpack.unpackb(encode(BranchSpec(name="a", prompt=secret)))
    broken = [
        {**fields, "v": secret * 1000},
        {**fields, "v": [secret]},
        {**fields, "prompt": [secret]},
        {**fields, "sampling": {"seed": secret}},
    ]
    for wrong in broken:
        with pytest.raises(ProtocolError) as caught:
            decode(BranchSpec, pack(wrong))
        assert secret not in str(caught.value)
        assert secret not in str(caught.value.__cause__)
    with pytest.raises(ProtocolError) as caught:
        decode_events(pack([{"v": 1, "type": secret * 1000}]))
    assert secret not in str(caught.value)
    with pytest.raises(ProtocolError) as caught:
        unpack(pack({"a": secret}).replace(b"secret", b"\xff\xffcret"))
    assert "its text is not UTF-8" in caught.value.message
