"""The plain HTTP answers of a process: what is asked rightly, wrongly, slowly, and too much."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest

from swarmkv.monitor.health import Probe, healthz, readyz
from swarmkv.monitor.machines import machine_pages
from swarmkv.protocol import probes
from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import ConfigError
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.ledger.scripts import names, source
from swarmkv.protocol.probes import Reply, answering, listen, parse_address, url_of
from swarmkv.protocol.settings import Settings
from tests.waiting import eventually


async def ask(url: str, request: bytes) -> bytes:
    """Everything that is answered to these bytes; nothing for a connection that was cut."""
    host, port = parse_address(url.removeprefix("http://"))
    reader, writer = await asyncio.open_connection(host, port)
    answer = b""
    with suppress(ConnectionError):
        writer.write(request)
        await writer.drain()
        answer = await reader.read()
    writer.close()
    return answer


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode()


async def fine() -> Reply:
    return Reply.said(200, "fine")


async def broken() -> Reply:
    raise ZeroDivisionError


@pytest.fixture
async def url() -> AsyncIterator[str]:
    listener = listen("127.0.0.1:0")
    url = url_of(listener)
    async with answering(listener, {"/healthz": fine, "/broken": broken}):
        yield url


async def test_a_page_is_answered_whole_and_the_connection_ends(url: str) -> None:
    head, _, body = (await ask(url, get("/healthz?verbose=1"))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 5\r\n")
    assert body == b"fine\n"
    head, _, body = (await ask(url, get("/healthz", "HEAD"))).partition(b"\r\n\r\n")
    assert b"Content-Length: 5" in head
    assert body == b""


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/else"), b"404"),
        (get("/healthz", "POST"), b"405"),
        (b"hello\r\n\r\n", b"405"),
        (b"\x16\x03\x01\xff\r\n\r\n", b"405"),
        (b"GET /healthz SPDY/9\r\n\r\n", b"405"),
        (get("/" + "x" * 100_000), b"431"),
        (get("/broken"), b"500"),
    ],
)
async def test_what_is_asked_wrongly_is_told_so(url: str, request_bytes: bytes, status: bytes) -> None:
    assert (await ask(url, request_bytes)).split(b" ")[1:2] in ([status], [])
    assert b"fine" in await ask(url, get("/healthz"))


async def test_who_says_nothing_is_cut_off_and_who_comes_in_crowds_waits(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_REQUEST_TIMEOUT_S", 1.0)
    host, port = parse_address(url.removeprefix("http://"))
    silent = [await asyncio.open_connection(host, port) for _ in range(probes._MAX_CONNECTIONS)]

    async def is_refused() -> bool:
        return await ask(url, get("/healthz")) == b""

    await eventually(is_refused)
    for reader, writer in silent:
        assert await reader.read() == b""
        writer.close()
    assert b"fine" in await ask(url, get("/healthz"))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:80", ("::1", 80)),
        ("host:65535", ("host", 65535)),
    ],
)
def test_an_address_is_a_host_and_a_port_or_a_port_of_this_machine(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["host", "host:", ":9464", "host:65536", "host:-1", "host:٣"])
def test_what_is_no_address_is_refused_with_the_name_of_the_setting(text: str) -> None:
    with pytest.raises(ConfigError, match="SWARMKV_METRICS_ADDRESS"):
        parse_address(text)


async def test_a_port_that_is_taken_is_an_error_for_people(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot be served") as caught:
        listen(url.removeprefix("http://"))
    assert "port 0" in caught.value.hint


@asynccontextmanager
async def ledger_of(url: str, timeout_s: float = 5) -> AsyncIterator[Ledger]:
    redis = connect(url, timeout_s=timeout_s)
    yield Ledger(redis, max_events=100)
    await redis.aclose(close_connection_pool=True)


async def test_ready_means_that_redis_answers_and_has_every_script(settings: Settings) -> None:
    async with ledger_of(settings.redis_url) as ledger:
        assert await readyz(ledger) == Probe(200, "ok\n")
        client = connect(settings.redis_url, timeout_s=5)
        digests = [client.register_script(source(name)).sha for name in names()]
        assert {"submit", "take", "sweep"} <= set(names())
        assert await client.script_exists(*digests) == [True] * len(digests)
        await client.aclose(close_connection_pool=True)


async def test_without_redis_the_process_is_alive_and_not_ready() -> None:
    async with ledger_of("redis://127.0.0.1:1/0") as ledger:
        assert healthz() == Probe(200, "ok\n")
        reply = await readyz(ledger)
    assert (reply.status, "cannot be reached" in reply.text) == (503, True)


async def test_a_redis_that_is_silent_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarmkv.monitor.health.READY_TIMEOUT_S", 0.1)
    with silent_server() as port:
        async with ledger_of(f"redis://127.0.0.1:{port}/0") as ledger:
            reply = await readyz(ledger)
    assert reply == Probe(503, "Redis has not answered for 0.1 s.\n")


async def test_the_monitor_answers_machines_with_the_same(settings: Settings) -> None:
    async with ledger_of(settings.redis_url) as ledger:
        pages = machine_pages(ledger)
        assert await pages["/healthz"]() == await pages["/readyz"]() == Reply.said(200, "ok")
        assert b"swarmkv_redis_up 1.0" in (await pages["/metrics"]()).body


@contextmanager
def silent_server() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield int(server.getsockname()[1])
