"""Who may do what on the page, without a page."""

from __future__ import annotations

import pytest

from swarmkv.monitor.web import cookies, formats
from swarmkv.monitor.web.access import Principal, access_of
from swarmkv.monitor.web.pages import own_path
from swarmkv.monitor.web.routes.submit import split_prompts
from swarmkv.monitor.web.throttle import FREE_TRIES, MAX_WAIT_S, Throttle
from swarmkv.protocol.errors import ConfigError
from swarmkv.protocol.settings import Settings

TOKEN = "admin-token-long"
READ_TOKEN = "reader-token-long"


def settings_of(**given: str) -> Settings:
    return Settings(_env_file=None).model_copy(update={f"monitor_{name}": value for name, value in given.items()})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "swarm.example"])
def test_an_address_that_others_reach_is_refused_without_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="SWARMKV_MONITOR_TOKEN"):
        access_of(settings_of(), host)
    assert access_of(settings_of(token=TOKEN), host).by_token(TOKEN) is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_this_machine_alone_needs_none(host: str) -> None:
    assert access_of(settings_of(), host).is_open


@pytest.mark.parametrize(
    "given",
    [
        {"token": "short"},
        {"read_token": "short"},
        {"user": "ada"},
        {"password": "long enough, no user"},
        {"token": TOKEN, "read_token": TOKEN},
    ],
)
def test_secrets_that_protect_nothing_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        access_of(settings_of(**given), "127.0.0.1")


def test_each_secret_gives_its_role_and_an_empty_one_gives_none() -> None:
    access = access_of(settings_of(token=TOKEN, user="ada", password="a password of hers"), "127.0.0.1")
    assert access.by_token(TOKEN) == Principal("admin token", "admin")
    assert access.by_password("ada", "a password of hers") == Principal("user ada", "admin")
    assert access.by_password("anybody", TOKEN) == Principal("admin token", "admin")
    for wrong in ("", TOKEN + "x", TOKEN[:-1], "ünknown"):
        assert access.by_token(wrong) is None
    assert access.by_password("eve", "a password of hers") is None
    assert access.by_password("", "") is None


def test_a_reader_is_no_administrator() -> None:
    access = access_of(settings_of(read_token=READ_TOKEN), "0.0.0.0")
    reader = access.by_token(READ_TOKEN)
    assert reader is not None
    assert not reader.can_act


def test_on_loopback_only_names_of_this_machine_and_allowed_ones_are_answered() -> None:
    access = access_of(settings_of(allowed_hosts="Watch.example, other.example"), "127.0.0.1")
    for host in ("127.0.0.1:8765", "localhost", "[::1]:8765", "watch.example", "WATCH.example:443"):
        assert access.accepts_host(host), host
    for host in ("evil.example", "watch.example.evil.example", "", "127.0.0.1.evil.example:8765"):
        assert not access.accepts_host(host), host
    assert access_of(settings_of(token=TOKEN), "0.0.0.0").accepts_host("anything.example")


def test_a_session_is_read_back_and_no_other_text_is() -> None:
    access = access_of(settings_of(token=TOKEN), "127.0.0.1")
    session = cookies.new_session(Principal("admin token", "admin"))
    value = cookies.pack_session(access, session)
    assert cookies.read_session(access, {cookies.SESSION: value}) == session
    body, _, seal = value.partition(".")
    forged = ("", ".", body, f"{body}.", f"{body}x.{seal}", f"{body}.{seal[:-1]}0", "a" * 10_000, f"{body}.ü")
    for text in forged:
        assert cookies.read_session(access, {cookies.SESSION: text}) is None or text == value, text
    notice = cookies.sign(access.key, cookies.NOTICE, {"id": "x", "name": "x", "role": "admin"}, 60)
    assert cookies.read_session(access, {cookies.SESSION: notice}) is None
    old = cookies.sign(access.key, cookies.SESSION, {"id": "x", "name": "x", "role": "admin"}, -1)
    assert cookies.read_session(access, {cookies.SESSION: old}) is None


def test_sessions_outlive_a_restart_and_end_with_the_token() -> None:
    first, same = (access_of(settings_of(token=TOKEN), "127.0.0.1") for _ in range(2))
    changed = access_of(settings_of(token=TOKEN + "2"), "127.0.0.1")
    cookie = {cookies.SESSION: cookies.pack_session(first, cookies.new_session(Principal("x", "admin")))}
    assert cookies.read_session(same, cookie) is not None
    assert cookies.read_session(changed, cookie) is None


def test_who_guesses_waits_longer_each_time_and_others_do_not() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    waits = []
    for _ in range(FREE_TRIES + 12):
        throttle.failed("1.1.1.1")
        waits.append(throttle.wait_s("1.1.1.1"))
    assert waits[: FREE_TRIES - 1] == [0.0] * (FREE_TRIES - 1)
    assert waits[FREE_TRIES - 1 : FREE_TRIES + 3] == [1, 2, 4, 8]
    assert waits[-1] == MAX_WAIT_S
    assert throttle.wait_s("2.2.2.2") == 0
    now[0] += MAX_WAIT_S
    assert throttle.wait_s("1.1.1.1") == 0
    throttle.succeeded("1.1.1.1")
    throttle.failed("1.1.1.1")
    assert throttle.wait_s("1.1.1.1") == 0


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "", "/a\nb"])
def test_after_an_action_nobody_is_led_away(path: str) -> None:
    assert own_path(path) == "/"


def test_prompts_are_lines_or_parts_between_rulers_and_may_have_names() -> None:
    assert split_prompts("What?\r\n\n a=Why?\n") == ["What?", ("a", "Why?")]
    assert split_prompts("first\nline\n---\nb=second\nline\n") == ["first\nline", ("b", "second\nline")]
    assert split_prompts(" \n") == []
    assert split_prompts("1 + 1 = 2?") == ["1 + 1 = 2?"]


def test_words_between_backticks_are_code_and_markup_is_text() -> None:
    assert formats.prose("Try `swarmkv up <x>` & <b>`") == "Try <code>swarmkv up &lt;x&gt;</code> &amp; &lt;b&gt;`"


def test_numbers_are_as_people_read_them() -> None:
    assert [formats.duration(ms) for ms in (0, 2.5, 340, 1_250, 12_340, 65_000, 7_800_000, 360_000_000)] == [
        *("0 ms", "2.5 ms", "340 ms", "1.25 s", "12.3 s", "1 min 05 s", "2 h 10 min", "4 d 4 h")
    ]
    assert [formats.size(size) for size in (0, 1023, 1024, 5 * 1024**3)] == ["0 B", "1,023 B", "1.0 KB", "5.0 GB"]
    assert [formats.age(ms) for ms in (-5, 999, 59_999, 3_600_000, 90_000_000)] == [
        "0 s",
        "0 s",
        "59 s",
        "1 h",
        "1 d",
    ]
    assert (formats.percent(0.421), formats.percent(0.004), formats.percent(0)) == ("42 %", "0.4 %", "0 %")
