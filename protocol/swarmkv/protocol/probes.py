"""A few plain answers over HTTP for what watches a process: its metrics, is it alive, is it ready.

No framework: a worker has none, and an answer from its own event loop says that the loop still turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from swarmkv.protocol.errors import ConfigError

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_REQUEST_TIMEOUT_S = 5.0
_MAX_HEAD_BYTES = 8_192
_MAX_CONNECTIONS = 32
_END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered: an HTTP status and a body."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    @classmethod
    def said(cls, status: int, text: str) -> Reply:
        """One line of text."""
        return cls(status, f"{text}\n".encode())


Pages = Mapping[str, Callable[[], Awaitable[Reply]]]


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[IPV6]:PORT`, or of a port alone, on 127.0.0.1. Raises ConfigError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16) or text.startswith(":"):
        raise ConfigError(
            f"SWARMKV_METRICS_ADDRESS={text!r} is no address.",
            hint="Give HOST:PORT, or a port of 127.0.0.1 alone; 0.0.0.0:PORT is every interface.",
        )
    return host, int(port)


def listen(address: str) -> socket.socket:
    """A socket on an address as SWARMKV_METRICS_ADDRESS has it; port 0 is any free one. The caller closes it.

    Raises ConfigError when it cannot listen there.
    """
    host, port = parse_address(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        raise _cannot_listen(address, exc) from exc


def url_of(listener: socket.socket) -> str:
    """The URL of what listens, without a path."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@asynccontextmanager
async def answering(listener: socket.socket, pages: Pages) -> AsyncIterator[None]:
    """Answer GET and HEAD for the paths of `pages` inside the block, which closes `listener` at its end."""
    door = _Door(pages)
    server = await asyncio.start_server(door.serve, sock=listener, limit=_MAX_HEAD_BYTES)
    try:
        yield
    finally:
        server.close()
        door.close()


class _Door:
    """Serves one request a connection; more connections than there may be are closed unheard."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MAX_CONNECTIONS:
            writer.close()
            return
        self._open.add(writer)
        try:
            # A peer that goes, or says nothing, costs its connection alone.
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                    await self._converse(reader, writer)
        finally:
            self._open.discard(writer)
            writer.close()

    def close(self) -> None:
        """End what is open: nobody is answered any more."""
        for writer in list(self._open):
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(_END_OF_HEAD)
        except asyncio.LimitOverrunError:
            method, reply = "GET", Reply.said(431, "The request is too long.")
        else:
            method, path = _request(head)
            reply = await self._reply(method, path)
        writer.write(_head(reply) + (b"" if method == "HEAD" else reply.body))
        await writer.drain()

    async def _reply(self, method: str, path: str) -> Reply:
        page = self._pages.get(path)
        if method not in ("GET", "HEAD"):
            return Reply.said(405, "Only GET is answered here.")
        if page is None:
            return Reply.said(404, f"There are {', '.join(self._pages)}.")
        try:
            return await page()
        except Exception:  # a bug of ours: the process has other things to do than to end for it
            logger.exception("%s", path, extra={"action": "probe_bug", "path": path})
            return Reply.said(500, "This should not have happened; see the log.")


def _request(head: bytes) -> tuple[str, str]:
    """Method and path, without a query; both empty for what is no request."""
    match head.split(b"\r\n", 1)[0].decode("latin-1").split(" "):
        case [method, target, version] if version.startswith("HTTP/1."):
            return method, target.partition("?")[0]
    return "", ""


def _head(reply: Reply) -> bytes:
    lines = (
        f"HTTP/1.1 {reply.status} {http.HTTPStatus(reply.status).phrase}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode()


def _cannot_listen(address: str, exc: OSError) -> ConfigError:
    hint = "Choose another SWARMKV_METRICS_ADDRESS (or --metrics-port)."
    if exc.errno == errno.EADDRINUSE:
        hint = "Give each process a port of its own; port 0 takes any that is free, and the log names it."
    return ConfigError(f"Metrics cannot be served on {address}: {exc.strerror or exc}.", hint=hint)
