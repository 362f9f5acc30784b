"""A TCP line to a broker's socket that can be cut, fall silent, be slow, or break in the middle of an answer."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 65_536


@dataclass(frozen=True)
class Weather:
    """What the line does. Of a piece that breaks it, half is delivered.

    delay_s    a piece comes up to so much later
    breaks     the share of pieces at which the connection ends
    is_cut     connections end at once, and new ones are closed
    is_silent  connections stay, nothing comes through
    """

    delay_s: float = 0.0
    breaks: float = 0.0
    is_cut: bool = False
    is_silent: bool = False


FAIR = Weather()


class FlakyProxy:
    """Forwards 127.0.0.1:`port` to a unix socket, on a thread of its own: what the test does not slow it down."""

    def __init__(self, target: Path, seed: int = 0) -> None:
        self._target = target
        self._weather = FAIR
        self._random = random.Random(seed)
        self._lines: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._closing = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.breaks = 0
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._socket.getsockname()[1]}/0"

    def turn(self, weather: Weather) -> None:
        """Change what the line does from now on."""
        self._loop.call_soon_threadsafe(self._turn, weather)

    def close(self) -> None:
        """End every connection, and the thread. Any number of times."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        self._loop.close()

    def _turn(self, weather: Weather) -> None:
        self._weather = weather
        if weather.is_silent:
            self._flowing.clear()
        else:
            self._flowing.set()
        if weather.is_cut:
            self._break_all()

    def _break_all(self) -> None:
        for writer in self._lines:
            writer.transport.abort()

    async def _serve(self) -> None:
        self._flowing.set()
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.create_task(self._join(reader, writer)))

        async with await asyncio.start_server(accept, sock=self._socket):
            await self._closing.wait()
            self._break_all()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both directions of one connection, until either ends."""
        if self._weather.is_cut:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_unix_connection(str(self._target))
        except OSError:
            writer.transport.abort()
            return
        self._lines |= {writer, back}
        pumps = [asyncio.create_task(self._pump(*ends)) for ends in ((reader, back), (there, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (writer, back):
                self._lines.discard(end)
                end.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE_BYTES):
            if self._weather.delay_s:
                await asyncio.sleep(self._random.random() * self._weather.delay_s)
            await self._flowing.wait()
            if self._random.random() < self._weather.breaks:
                self.breaks += 1
                writer.write(piece[: len(piece) // 2])
                return
            writer.write(piece)
            await writer.drain()


@contextmanager
def flaky_proxy(target: Path) -> Iterator[FlakyProxy]:
    """A line in fair weather; closed at the end of the block."""
    proxy = FlakyProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
