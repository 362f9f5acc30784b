"""A run as it goes: new text several times a second, what changed of the rest once a second."""

from __future__ import annotations

import time

from swarmkv.monitor.web.blocks import BlockSource
from swarmkv.monitor.web.live import message
from swarmkv.monitor.web.run_page import RunPage
from swarmkv.protocol.events import BranchDone, BranchRestarted, BranchStarted, BranchText, Event
from swarmkv.protocol.ledger import Ledger

TEXT_INTERVAL_S = 0.2
ENDED_INTERVAL_S = 2.0  # a run that has ended may be tried again
BLOCKS_INTERVAL_S = 1.0
TAIL_CHARS = 4_000  # of a branch's text, for those who come later
Piece = tuple[int, int, str]  # index of the branch, how many characters came before, text


class Tail:
    """The end of what the current attempt at a branch has said."""

    def __init__(self) -> None:
        self.attempt = 0
        self.length = 0
        self.text = ""

    def restart(self, attempt: int) -> bool:
        """Drop what older attempts said; False for an attempt that is older itself."""
        if attempt > self.attempt:
            self.attempt, self.length, self.text = attempt, 0, ""
        return attempt == self.attempt

    def take(self, event: BranchText) -> tuple[int, str] | None:
        """Where the piece begins, and what of it is new; None if nothing is."""
        if not self.restart(event.attempt):
            return None
        new = event.text[max(0, self.length - event.offset) :]
        start = max(self.length, event.offset)
        if not new:
            return None
        self.text = (self.text + new)[-TAIL_CHARS:]
        self.length = start + len(new)
        return start, new


class RunSource:
    """A run's page for all who look at it."""

    def __init__(self, ledger: Ledger, page: RunPage) -> None:
        self._ledger = ledger
        self._page = page
        self._blocks = BlockSource(self._render)
        self._tails: dict[str, Tail] = {}
        self._after = ""
        self.interval_s = TEXT_INTERVAL_S
        self._next_blocks_s = 0.0

    async def step(self) -> list[bytes]:
        """Blocks before text: the place that the text belongs to comes first."""
        pieces, is_change = await self._read_events()
        messages: list[bytes] = []
        now_s = time.monotonic()
        if now_s >= self._next_blocks_s or (is_change and now_s >= self._next_blocks_s - BLOCKS_INTERVAL_S / 2):
            self._next_blocks_s = now_s + BLOCKS_INTERVAL_S
            messages += await self._blocks.step()
        if pieces:
            messages.append(message(text=pieces))
        return messages

    def greeting(self) -> list[bytes]:
        """All blocks, and the tails of what is being said."""
        pieces = [
            (index, tail.length - len(tail.text), tail.text)
            for name, index in self._indexes().items()
            if (tail := self._tails.get(name)) is not None and tail.text
        ]
        return [*self._blocks.greeting(), *([message(text=pieces)] if pieces else [])]

    async def _render(self) -> dict[str, str]:
        await self._page.read()
        has_ended = self._page.run is not None and self._page.run.is_finished
        self.interval_s = ENDED_INTERVAL_S if has_ended else TEXT_INTERVAL_S
        return self._page.blocks()

    def _indexes(self) -> dict[str, int]:
        return {view.name: view.index for view in self._page.branches}

    async def _read_events(self) -> tuple[list[Piece], bool]:
        """New pieces of the branches on this page, joined, and whether something else has happened."""
        if not self._after:
            await self._page.read()
            self._after = await self._ledger.inspection.events_from(self._page.run_id)
        self._after, events = await self._ledger.runs.read_events(self._page.run_id, self._after, 1)
        indexes, found, is_change = self._indexes(), dict[int, Piece](), False
        for event in events:
            if isinstance(event, BranchText):
                self._take(event, indexes, found)
            else:
                is_change = True
                self._note(event, indexes, found)
        return list(found.values()), is_change

    def _take(self, event: BranchText, indexes: dict[str, int], found: dict[int, Piece]) -> None:
        index = indexes.get(event.branch)
        if index is None:
            return
        piece = self._tails.setdefault(event.branch, Tail()).take(event)
        if piece is None:
            return
        before = found.get(index)
        if before is not None and before[1] + len(before[2]) == piece[0]:
            found[index] = (index, before[1], before[2] + piece[1])
        else:
            found[index] = (index, *piece)

    def _note(self, event: Event, indexes: dict[str, int], found: dict[int, Piece]) -> None:
        """An attempt that ends or begins anew takes its text along."""
        match event:
            case BranchStarted() | BranchRestarted() if event.branch in indexes:
                self._tails.setdefault(event.branch, Tail()).restart(event.attempt)
                found[indexes[event.branch]] = (indexes[event.branch], 0, "")
            case BranchDone():
                self._tails.pop(event.branch, None)
                found.pop(indexes.get(event.branch, -1), None)
