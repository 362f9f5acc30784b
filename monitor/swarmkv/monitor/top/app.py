"""The program: readings come in, keys come in, frames go out, each by itself: no key waits for Redis."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from swarmkv.monitor.top.actions import Action, Cancel, Order, Quit, Redraw, Retry, Watch
from swarmkv.monitor.top.frame import Surroundings, draw
from swarmkv.monitor.top.keyboard import Keyboard
from swarmkv.monitor.top.keys import press
from swarmkv.monitor.top.reading import Source
from swarmkv.monitor.top.terminal import Terminal
from swarmkv.monitor.top.view import View
from swarmkv.protocol.errors import BrokerError, SwarmkvError

_FRAME_S = 1 / 30  # frames follow each other no faster
_ESCAPE_S = 0.05  # an escape that nothing follows for so long is the key of that name
_READ_BYTES = 4096
_SHOWN_TARGET_CHARS = 24


class App:
    """Runs until `q`, or until its task is cancelled. The terminal is entered and left by the caller."""

    def __init__(self, source: Source, terminal: Terminal, interval_s: float) -> None:
        self._source = source
        self._terminal = terminal
        self._interval_s = interval_s
        self._view = View()
        self._keyboard = Keyboard()
        self._changed = asyncio.Event()
        self._look = asyncio.Event()
        self._ended = asyncio.Event()
        self._outage = ""
        self._outage_since_s = 0.0
        self._actions: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Show and obey. Raises what nothing but a change of settings can mend: BrokerError, ProtocolError."""
        side = [
            asyncio.create_task(self._reading(), name="top-read"),
            asyncio.create_task(self._drawing(), name="top-draw"),
            asyncio.create_task(self._ended.wait(), name="top-end"),
        ]
        with self._listening():
            try:
                done, _ = await asyncio.wait(side, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                self._ended.set()
                await _gone([*side, *self._actions])

    async def _reading(self) -> None:
        while not self._ended.is_set():
            self._look.clear()
            await self._read()
            self._changed.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._look.wait()

    async def _read(self) -> None:
        view = self._view
        try:
            view.take(await self._source.read())
            if view.watched_id:
                view.take_watched(await self._source.watch(view.watched_id))
        except BrokerError as exc:
            if not exc.is_passing:
                raise
            self._outage_since_s = self._outage_since_s if self._outage else time.monotonic()
            self._outage = str(exc)
        except SwarmkvError as exc:  # the run that is looked at has expired, or cannot be read
            view.watched_id = view.watched = None
            view.say(str(exc), is_trouble=True)
        else:
            self._outage = ""

    async def _drawing(self) -> None:
        while not self._ended.is_set():
            await self._changed.wait()
            self._changed.clear()
            columns, lines = self._terminal.size
            outage_s = time.monotonic() - self._outage_since_s
            around = Surroundings(columns, lines, self._source.address, self._outage, outage_s)
            self._terminal.show(draw(self._view, around))
            await asyncio.sleep(_FRAME_S)

    def _on_bytes(self) -> None:
        try:
            data = os.read(self._terminal.keys_fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the terminal has gone
            self._ended.set()
            return
        self._press(self._keyboard.feed(data))
        if self._keyboard.is_waiting:
            asyncio.get_running_loop().call_later(_ESCAPE_S, self._on_silence)

    def _on_silence(self) -> None:
        self._press(self._keyboard.rest())

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            action = press(self._view, key)
            if action is not None:
                self._obey(action)
        self._changed.set()

    def _obey(self, action: Action) -> None:
        match action:
            case Quit():
                self._ended.set()
            case Redraw():
                self._terminal.forget()
            case Watch():
                self._look.set()
            case Cancel(run_id):
                self._begin(self._source.cancel(run_id))
            case Retry(run_id):
                self._begin(self._source.retry(run_id))
            case Order(kind, target):
                self._view.say(f"{kind} {target[:_SHOWN_TARGET_CHARS]} …")
                self._begin(self._source.command(kind, target))

    def _begin(self, work: Coroutine[Any, Any, str]) -> None:
        task = asyncio.create_task(self._said(work), name="top-action")
        self._actions.add(task)
        task.add_done_callback(self._actions.discard)

    async def _said(self, work: Coroutine[Any, Any, str]) -> None:
        """Show what came of an action, and the state behind it."""
        try:
            self._view.say(await work)
        except SwarmkvError as exc:
            self._view.say(str(exc), is_trouble=True)
        self._changed.set()
        self._look.set()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Keys, and the signals that concern the screen. Those that end a program are the caller's."""
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGWINCH: self._redraw,
            signal.SIGTSTP: self._suspend,
            signal.SIGCONT: self._resume,
        }
        loop.add_reader(self._terminal.keys_fd, self._on_bytes)
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            loop.remove_reader(self._terminal.keys_fd)
            for number in handlers:
                loop.remove_signal_handler(number)

    def _redraw(self) -> None:
        self._terminal.forget()
        self._changed.set()

    def _suspend(self) -> None:
        """Ctrl-Z: the shell gets its terminal as it was. This process stops inside, until it is continued."""
        loop = asyncio.get_running_loop()
        self._terminal.leave()
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._resume()

    def _resume(self) -> None:
        self._terminal.enter()
        self._changed.set()


async def _gone(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel until they have ended: a cancellation that meets a timeout of redis-py is taken for that timeout."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.3)
