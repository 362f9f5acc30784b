"""Live pages: one reader for all who look at the same thing, and one stream of server-sent events for each of them.

A source is asked again and again what is new; the answer is made once and sent to all its viewers. A viewer that
cannot keep up is let go, and its browser connects again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Any, Protocol

from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from swarmkv.protocol.errors import BrokerError, SwarmkvError

MAX_VIEWERS = 500
MAX_BEHIND = 64  # messages that a viewer may not have read yet
MAX_STREAM_S = 3_600.0  # then a browser connects again, and says anew who it is
KEEP_ALIVE_S = 15.0
OUTAGE_PAUSE_S = 2.0
RETRY_MS = 2_000  # when a browser connects again
_log = logging.getLogger(__name__)


class Source(Protocol):
    """What is shown on one live page."""

    interval_s: float

    async def step(self) -> list[bytes]:
        """Messages for those who look on already. Raises SwarmkvError; RunNotFound and the like end the stream."""

    def greeting(self) -> list[bytes]:
        """Messages that bring a newcomer to where the others are."""


def message(**fields: Any) -> bytes:
    """One server-sent event; its data is one line of JSON."""
    return b"data: " + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


class _Feed:
    """A source with its viewers; its task ends with the last of them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.viewers: set[asyncio.Queue[bytes | None]] = set()
        self.is_greeted = asyncio.Event()
        self.task: asyncio.Task[None] = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._read()
        except Exception:
            _log.exception("a live page failed", extra={"action": "live_failed"})
        finally:
            self._publish([None])

    async def _read(self) -> None:
        is_away = False
        while True:
            try:
                messages = await self.source.step()
            except BrokerError as exc:
                self._publish([message(away=exc.message)])
                is_away = True
                await asyncio.sleep(OUTAGE_PAUSE_S)
                continue
            except SwarmkvError as exc:
                self._publish([message(over=exc.message)])
                return
            self._publish([message(back=True), *messages] if is_away else messages)
            is_away = False
            await asyncio.sleep(self.source.interval_s)

    def _publish(self, messages: Sequence[bytes | None]) -> None:
        """To those who look on; who has not been greeted yet is told all of it then."""
        self.is_greeted.set()
        for viewer in list(self.viewers):
            for item in messages:
                if viewer.qsize() >= MAX_BEHIND:
                    self.viewers.discard(viewer)
                    item = None
                viewer.put_nowait(item)


class Hub:
    """All feeds of a monitor."""

    def __init__(self) -> None:
        self._feeds: dict[Hashable, _Feed] = {}
        self._num_viewers = 0

    def stream(self, key: Hashable, make: Callable[[], Source]) -> StreamingResponse:
        """The stream of what `key` names; `make` is called when nobody looks at it yet."""
        if self._num_viewers >= MAX_VIEWERS:
            raise HTTPException(503, f"{MAX_VIEWERS} pages are open: no more are kept live.")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(key, make), media_type="text/event-stream", headers=headers)

    async def _events(self, key: Hashable, make: Callable[[], Source]) -> AsyncIterator[bytes]:
        feed = self._feeds.get(key)
        if feed is None or feed.task.done():
            feed = self._feeds[key] = _Feed(make())
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        end_s = time.monotonic() + MAX_STREAM_S
        self._num_viewers += 1
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            await self._greet(feed, queue)
            while time.monotonic() < end_s and (item := await _next(queue)) is not None:
                yield item
        finally:
            self._num_viewers -= 1
            self._leave(key, feed, queue)

    async def _greet(self, feed: _Feed, queue: asyncio.Queue[bytes | None]) -> None:
        waiting = asyncio.ensure_future(feed.is_greeted.wait())
        await asyncio.wait({waiting, feed.task}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for item in feed.source.greeting():  # no await from here on: nothing is missed, nothing comes twice
            queue.put_nowait(item)
        if feed.task.done():
            queue.put_nowait(None)
        feed.viewers.add(queue)

    def _leave(self, key: Hashable, feed: _Feed, queue: asyncio.Queue[bytes | None]) -> None:
        feed.viewers.discard(queue)
        if not feed.viewers and self._feeds.get(key) is feed:
            del self._feeds[key]
            feed.task.cancel()

    def stop(self) -> None:
        """End every stream, so that the server can end."""
        for feed in self._feeds.values():
            for viewer in feed.viewers:
                viewer.put_nowait(None)
            feed.task.cancel()


async def _next(queue: asyncio.Queue[bytes | None]) -> bytes | None:
    with contextlib.suppress(TimeoutError):
        return await asyncio.wait_for(queue.get(), KEEP_ALIVE_S)
    return b": still here\n\n"
