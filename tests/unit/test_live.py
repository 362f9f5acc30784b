"""Live streams: one reader for all who look, newcomers brought up to date, and an end for everybody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from swarmkv.monitor.web import live
from swarmkv.monitor.web.live import Hub, message
from swarmkv.monitor.web.run_feed import TAIL_CHARS, Tail
from swarmkv.protocol.errors import BrokerError, RunNotFound
from swarmkv.protocol.events import BranchText
from tests.waiting import eventually


class Counter:
    """A source that counts its steps."""

    interval_s = 0.01

    def __init__(self, failing: dict[int, Exception] | None = None) -> None:
        self.steps = 0
        self._failing = failing or {}

    async def step(self) -> list[bytes]:
        self.steps += 1
        if self.steps in self._failing:
            raise self._failing[self.steps]
        return [message(step=self.steps)]

    def greeting(self) -> list[bytes]:
        return [message(greeting=self.steps)]


async def events(hub: Hub, source: Counter) -> AsyncIterator[dict[str, Any]]:
    """What a viewer is sent."""
    async for chunk in hub.stream("key", lambda: source).body_iterator:
        text = bytes(chunk).decode() if not isinstance(chunk, str) else chunk
        if text.startswith("data: "):
            yield json.loads(text.removeprefix("data: "))


async def test_two_viewers_cost_one_reader_and_miss_and_double_nothing() -> None:
    hub, source = Hub(), Counter()
    viewers = [events(hub, source), events(hub, Counter())]  # the second source is never asked for
    for viewer in viewers:
        seen = [await anext(viewer) for _ in range(4)]
        first = seen[0]["greeting"]
        assert [item["step"] for item in seen[1:]] == [first + 1, first + 2, first + 3]
    for viewer in viewers:
        await viewer.aclose()  # type: ignore[attr-defined]

    async def is_alone() -> bool:
        return len(asyncio.all_tasks()) == 1

    await eventually(is_alone)  # the last viewer took the reader along


async def test_a_viewer_that_does_not_read_is_let_go_and_the_other_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_BEHIND", 3)
    hub, source = Hub(), Counter()
    slow, quick = events(hub, source), events(hub, source)
    await anext(slow)

    async def is_far() -> bool:
        return bool((await anext(quick)).get("step", 0) > 20)

    await eventually(is_far)
    async with asyncio.timeout(10):
        assert len([item async for item in slow]) <= 4
    await quick.aclose()  # type: ignore[attr-defined]


async def test_an_outage_is_said_and_its_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "OUTAGE_PAUSE_S", 0.01)
    viewer = events(Hub(), Counter({3: BrokerError("Redis is away.")}))
    seen = [await anext(viewer) for _ in range(5)]
    assert [next(iter(item)) for item in seen] == ["greeting", "step", "away", "back", "step"]
    await viewer.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [RunNotFound("It has expired."), ZeroDivisionError()])
async def test_a_reader_that_ends_ends_its_streams(error: Exception) -> None:
    seen = [item async for item in events(Hub(), Counter({3: error}))]
    assert ("over" in seen[-1]) == isinstance(error, RunNotFound)


async def test_stopping_ends_every_stream() -> None:
    hub = Hub()
    viewer = events(hub, Counter())
    await anext(viewer)
    hub.stop()
    assert len([item async for item in viewer]) < 5


def said(offset: int, text: str, attempt: int = 1) -> BranchText:
    return BranchText(branch="b", attempt=attempt, offset=offset, text=text)


def test_a_tail_takes_each_piece_once_and_drops_what_older_attempts_say() -> None:
    tail = Tail()
    assert tail.take(said(0, "one ")) == (0, "one ")
    assert tail.take(said(0, "one ")) is None
    assert tail.take(said(2, "e two")) == (4, "two")
    assert tail.take(said(0, "new", attempt=2)) == (0, "new")
    assert tail.take(said(7, "late", attempt=1)) is None
    assert tail.take(said(100, "x" * 9_000, attempt=2)) == (100, "x" * 9_000)
    assert (tail.length, len(tail.text)) == (9_100, TAIL_CHARS)
