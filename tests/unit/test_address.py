"""The URL of Redis is refused where redis-py would misread it, and its password is shown nowhere."""

from __future__ import annotations

import pytest

from swarmkv.protocol.address import checked, shown
from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import ConfigError

SECRET = "sw0rdfish"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"redis://user:{SECRET}@host:6379/0", "redis://user:***@host:6379/0"),
        (f"redis://:{SECRET}@host", "redis://:***@host"),
        (f"redis://{SECRET}@host", "redis://***@host"),
        (f"rediss://u:{SECRET}@host/1?ssl_ca_certs=/ca.pem", "rediss://u:***@host/1?ssl_ca_certs=/ca.pem"),
        (f"redis://host/0?password={SECRET}&db=1", "redis://host/0?password=***&db=1"),
        (f"unix://u:{SECRET}@/tmp/a@b.sock", "unix://u:***@/tmp/a@b.sock"),
        (f"redis://u:{SECRET}@[::1]:1/0", "redis://u:***@[::1]:1/0"),
        ("unix:///tmp/x.sock?db=0", "unix:///tmp/x.sock?db=0"),
    ],
)
def test_a_url_is_shown_without_what_is_secret(url: str, words: str) -> None:
    assert shown(url) == words


MISREAD = [
    f"redis://user:{SECRET}/more@host/0",
    f"redis://user:{SECRET}?more@host/0",
    f"redis://user:{SECRET}#more@host/0",
    f"redis://user:1234?{SECRET}=1@host/0",
    f"redis://user:more@{SECRET}@host/0",
    f"redis://:{SECRET}#@host",
    f"redis://user:{SECRET}",
    f"redis://user:{SECRET}@[::1/0",
    f"unix://user:{SECRET}/tmp/x.sock",
    f"http://user:{SECRET}@host",
    f"user:{SECRET}@host",
    f"{SECRET}",
    f"redis:{SECRET}",
]


@pytest.mark.parametrize("url", MISREAD)
def test_a_url_that_would_be_misread_is_refused_and_not_quoted(url: str) -> None:
    assert SECRET not in shown(url)
    for read in (checked, lambda url: connect(url, timeout_s=1)):
        with pytest.raises(ConfigError, match="cannot be understood") as caught:
            read(url)
        assert SECRET not in str(caught.value)
        assert "1234" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_an_escaped_password_is_read_as_it_was_meant() -> None:
    client = connect("redis://user:a%2Fb%3Fc%23d%40e%25f@host/0", timeout_s=1)
    assert client.connection_pool.connection_kwargs["password"] == "a/b?c#d@e%f"


def test_the_name_of_a_tls_server_is_checked_unless_the_url_says_no() -> None:
    def setting(url: str) -> object:
        return connect(url, timeout_s=1).connection_pool.connection_kwargs.get("ssl_check_hostname")

    assert setting("rediss://host/0") is True
    assert setting("rediss://host/0?ssl_check_hostname=no") is False
    assert setting("rediss://host/0?ssl_cert_reqs=none") is False
    assert setting("redis://host/0") is None


@pytest.mark.parametrize("option", ["foo=bar", "db=many", "ssl_ca_certs=/ca.pem", "ssl_cert_reqs=sometimes"])
def test_an_option_that_would_do_nothing_is_refused(option: str) -> None:
    scheme = "rediss" if option.startswith("ssl_cert_reqs") else "redis"
    with pytest.raises(ConfigError, match="cannot be understood"):
        connect(f"{scheme}://host/0?{option}", timeout_s=1)
