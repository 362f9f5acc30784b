"""Messages, events, digests, keys and settings: what crosses processes stays readable or is refused clearly."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkv.protocol import keys
from swarmkv.protocol.broker import shown
from swarmkv.protocol.codec import MAX_MESSAGE_BYTES, decode, encode, unpack
from swarmkv.protocol.errors import ConfigError, ProtocolError
from swarmkv.protocol.events import BranchText, Event, RunDone, decode_events, encode_events
from swarmkv.protocol.identity import digest_fields
from swarmkv.protocol.messages import BranchResult, BranchSpec, PrefixSpec, RunReport, RunSpec, Sampling
from swarmkv.protocol.settings import load_settings

PREFIX = PrefixSpec(model="default", document="d" * 32)
MESSAGES = [
    PREFIX,
    RunSpec(run_id="ab", name="n", prefix=PREFIX, document_bytes=3),
    BranchSpec(name="a", prompt="é🙂", sampling=Sampling(seed=1, logit_bias={5: -2.5}, stop=("x",))),
    BranchResult(text="t", finish_reason="stop"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_come_back_as_they_were(message: RunSpec) -> None:
    assert decode(type(message), encode(message)) == message


def test_another_protocol_version_is_refused_naming_both() -> None:
    fields = msgpack.unpackb(encode(PREFIX)) | {"v": 99}
    with pytest.raises(ProtocolError, match=r"version 99 .* speaks version 1"):
        decode(PrefixSpec, msgpack.packb(fields))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80\x03}q\x00.", b"[]", msgpack.packb([1]), msgpack.packb(None)])
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(PrefixSpec, data)


def test_an_oversized_message_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        unpack(bytes(MAX_MESSAGE_BYTES + 1))


def test_a_missing_or_unknown_field_is_refused() -> None:
    fields = msgpack.unpackb(encode(PREFIX))
    for broken in (fields | {"extra": 1}, {k: v for k, v in fields.items() if k != "model"}):
        with pytest.raises(ProtocolError, match="malformed"):
            decode(PrefixSpec, msgpack.packb(broken))


def test_events_of_one_entry_come_back_in_order() -> None:
    events: list[Event] = [BranchText(branch="a", attempt=1, offset=0, text="é"), RunDone(state="done")]
    assert decode_events(encode_events(events)) == events


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_events(msgpack.packb([{"v": 1, "type": "surprise"}]))
    with pytest.raises(ProtocolError):
        decode_events(msgpack.packb([{"v": 2, "type": "run_done", "state": "done"}]))


text = st.one_of(st.none(), st.text(max_size=8))


@given(first=st.tuples(text, text, text), second=st.tuples(text, text, text))
def test_different_fields_never_share_a_digest(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    def digest(fields: tuple[str, ...]) -> str:
        return digest_fields("t", document=fields[0], system=fields[1], template=fields[2])

    assert (digest(first) == digest(second)) == (first == second)


def test_moving_characters_between_fields_changes_the_prefix() -> None:
    one = PREFIX.model_copy(update={"system": "ab", "template": "c"})
    two = PREFIX.model_copy(update={"system": "a", "template": "bc"})
    none, empty = PREFIX, PREFIX.model_copy(update={"system": ""})
    assert len({spec.prefix_id for spec in (one, two, none, empty)}) == 4


def test_lua_spells_every_key_as_python_does() -> None:
    source = keys.lua_key_functions()
    assert "function K.branch(run, index) return 'swarmkv:run:'..run..':branch:'..index..''" in source
    assert keys.key("branch", run="ab", index=3) == "swarmkv:run:ab:branch:3"


def test_an_unknown_setting_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARMKV_SLOTZ", "3")
    with pytest.raises(ConfigError, match="SWARMKV_SLOTZ"):
        load_settings()


def test_an_unknown_setting_in_dotenv_is_refused_naming_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("SWARMKV_NCTX=9\nOTHER=1\n")
    with pytest.raises(ConfigError, match=r"SWARMKV_NCTX \(\.env\).* Did you mean SWARMKV_N_CTX\?"):
        load_settings()
    (tmp_path / ".env").write_text("SWARMKV_N_CTX=999\n")
    assert load_settings().n_ctx == 999


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SWARMKV_SLOTS", "many", "SWARMKV_SLOTS='many'"),
        ("SWARMKV_SLOTS", "0", "SWARMKV_SLOTS='0'"),
        ("SWARMKV_SLOTS", "255", "259 sequences; llama.cpp has 256|260 sequences; llama.cpp has 256"),
        ("SWARMKV_HEARTBEAT_S", "6", "SWARMKV_HEARTBEAT_S=6.0 is too slow"),
        ("SWARMKV_SWEEP_S", "3", "SWARMKV_SWEEP_S=3.0 is too slow"),
        ("SWARMKV_N_UBATCH", "4096", "SWARMKV_N_UBATCH=4096 is over SWARMKV_N_BATCH=2048"),
        ("SWARMKV_KV_TYPE_K", "q9", "SWARMKV_KV_TYPE_K='q9'"),
    ],
)
def test_a_bad_setting_is_refused_naming_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words):
        load_settings()


def test_settings_come_from_the_environment_and_overrides_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARMKV_SLOTS", "5")
    assert load_settings().slots == 5
    assert load_settings(slots=6, n_ctx=None).slots == 6


def test_passwords_are_never_shown() -> None:
    assert shown("redis://user:secret@host:6379/0") == "redis://user:***@host:6379/0"
    assert shown("unix:///tmp/x.sock?db=0") == "unix:///tmp/x.sock?db=0"


def test_a_report_finds_branches_by_name_in_order() -> None:
    branch: dict[str, object] = {
        "state": "done",
        "text": "",
        "finish_reason": "stop",
        "error": None,
        "attempts": 1,
        "worker": None,
        "tokens": {},
        "timings_ms": {},
    }
    report = RunReport.model_validate(
        {
            "run_id": "ab",
            "state": "done",
            "name": "n",
            "model": "m",
            "document_tokens": 1,
            "prefills_run": 1,
            "prefill_ms": 1.0,
            "prefill_saved_ms": 0.0,
            "wall_ms": 1.0,
            "snapshot": None,
            "error": None,
            "branches": [{"name": "b", **branch}, {"name": "a", **branch}],
        }
    )
    assert list(report.by_name) == ["b", "a"]
    assert report["a"].name == "a"
    assert report.is_finished
