"""Connecting to Redis over TLS: what is checked, and how what goes wrong is said; a password never is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swarmkv.protocol.broker import broker_errors, connect
from swarmkv.protocol.errors import BrokerError, ConfigError
from tests.command import Home
from tests.fixtures_secured import *  # noqa: F403 - fixtures are found by name
from tests.fixtures_secured import needs_tls
from tests.secured import PASSWORDS, Authority, SecuredRedis, authority, connected, openssl, secured_redis

pytestmark = needs_tls


async def why_not(url: str) -> BrokerError:
    """The error of a ping."""
    caught: list[BrokerError] = []

    async def call(client: Any) -> None:
        with pytest.raises(BrokerError) as info, broker_errors():
            await client.ping()
        caught.append(info.value)

    await connected(url, call)
    return caught[0]


async def test_a_certificate_of_an_unknown_authority_is_refused_by_that_name(
    secured: SecuredRedis, tmp_path: Path
) -> None:
    other = authority(tmp_path / "other")
    for options in (f"ssl_ca_certs={other.file}", "db=0"):  # the latter: the system's authorities
        error = await why_not(secured.url("producer", options=options))
        assert "certificate that is not trusted" in error.message
        assert "ssl_ca_certs" in error.hint
        assert not error.is_passing


@pytest.mark.parametrize(
    ("flaw", "words"), [({"days": -1}, "expired"), ({"host": "elsewhere.example"}, "not valid for 'localhost'")]
)
async def test_an_expired_certificate_or_one_of_another_host_is_refused_with_the_reason(
    flaw: dict[str, Any], words: str, signer: Authority, tmp_path: Path
) -> None:
    certificate = signer.certificate("flawed", **flaw)
    with secured_redis(tmp_path / "redis", signer, certificate) as server:
        error = await why_not(server.url("producer"))
        assert words in error.message
        assert not error.is_passing
        if "host" in flaw:  # which can be waived, by who asks for it

            async def call(client: Any) -> None:
                assert await client.ping()

            await connected(server.url("producer", options=_options(signer, ssl_check_hostname="no")), call)


async def test_a_server_that_wants_a_client_certificate_gets_it_or_its_absence_is_said(
    signer: Authority, tmp_path: Path
) -> None:
    with secured_redis(
        tmp_path / "redis", signer, signer.certificate("server"), client_certificates=True
    ) as server:
        error = await why_not(server.url("producer"))
        assert "ssl_certfile" in error.hint

        async def call(client: Any) -> None:
            assert await client.ping()

        own = signer.certificate("client")
        await connected(server.url("producer", options=_options(signer, ssl_certfile=str(own))), call)


def _options(signer: Authority, **more: str) -> str:
    return "&".join(f"{name}={value}" for name, value in {"ssl_ca_certs": str(signer.file), **more}.items())


async def test_a_connection_without_tls_that_the_server_closes_is_told_of_tls(secured: SecuredRedis) -> None:
    error = await why_not(f"redis://producer:word@localhost:{secured.port}/0")
    assert "rediss://" in error.hint


async def test_tls_to_a_server_without_it_says_so(redis_url: str, tmp_path: Path) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR unknown command\r\n")
        writer.close()

    plain = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with plain:
        port = plain.sockets[0].getsockname()[1]
        error = await why_not(f"rediss://127.0.0.1:{port}/0")
    assert "no TLS connection" in error.message
    assert "Does this port speak TLS?" in error.hint


def test_files_of_tls_that_cannot_be_used_are_named_at_once(signer: Authority, tmp_path: Path) -> None:
    locked, other = tmp_path / "locked.pem", signer.certificate("client")
    _encrypt(other.with_suffix(".key"), locked)
    locked.write_text(other.read_text().partition("-----BEGIN PRIVATE")[0] + locked.read_text())
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for options, words in {
        "ssl_ca_certs=/absent.pem": "ssl_ca_certs=/absent.pem cannot be read: No such file",
        f"ssl_ca_certs={text}": f"ssl_ca_certs={text} cannot be used",
        f"ssl_keyfile={other}": "and no certificate",
        f"ssl_certfile={locked}": "ssl_certfile=.* cannot be used",
        f"ssl_certfile={other}&ssl_keyfile={text}": "cannot be used",
    }.items():
        with pytest.raises(ConfigError, match=words):
            connect(f"rediss://user:secret@localhost/0?{options}", timeout_s=1)


def _encrypt(key: Path, path: Path) -> None:
    openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:word", "-out", str(path))


async def test_workers_and_commands_say_why_and_never_the_password(
    secured: SecuredRedis, home: Home, tmp_path: Path
) -> None:
    other = authority(tmp_path / "other")
    (home.directory / "document.txt").write_text("A document.")
    wrong = {
        secured.url("producer", password="no-such-word"): "user name or password",
        secured.url("producer", options=f"ssl_ca_certs={other.file}"): "not trusted",
        secured.url("producer", options="ssl_ca_certs=/absent.pem"): "cannot be read",
    }
    for url, words in wrong.items():
        there = home.with_settings(redis_url=url)
        commands = [("doctor",), ("workers", "--json"), ("worker", "all", "--verbose"), ("up",)]
        for command in [*commands, ("enqueue", "document.txt", "-p", "What?", "--json")]:
            done = there.with_settings(null_engine=1).run(*command)
            said = done.stdout + done.stderr
            assert done.code in (1, 2, 4), said
            assert words in said
            assert "Traceback" not in said
            assert "no-such-word" not in said
            assert PASSWORDS["producer"] not in said
            assert "%40" not in said
