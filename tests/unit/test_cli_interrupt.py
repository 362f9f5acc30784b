"""Signals end work in stages, and for certain."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from swarmkv.cli.interrupt import Interrupted, end, run_abandonable, run_interruptible


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of the test runner, put back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signal_self(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_cancels_and_lets_the_work_tidy_up(number: signal.Signals) -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            signal_self(number)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            steps.append("tidy")

    with pytest.raises(Interrupted) as caught:
        run_interruptible(work(), lambda: steps.append("stopping"))
    assert caught.value.number == number
    assert steps == ["stopping", "tidy"]


def test_the_second_signal_cancels_the_tidying() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            signal_self(signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            try:
                signal_self(signal.SIGINT)
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                steps.append("short way")

    with pytest.raises(Interrupted):
        run_interruptible(work(), lambda: None)
    assert steps == ["short way"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_work_that_is_cut_short_in_a_call_which_fails_is_interrupted_all_the_same(number: signal.Signals) -> None:
    async def work() -> None:
        try:
            signal_self(number)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise RuntimeError("the connection broke off") from None

    with pytest.raises(Interrupted) as caught:
        run_interruptible(work(), lambda: None)
    assert caught.value.number == number


def test_work_that_ends_by_itself_gives_its_result_or_its_error() -> None:
    async def works() -> int:
        return 7

    async def fails() -> int:
        raise ValueError("oops")

    for run in (run_abandonable, lambda work: run_interruptible(work, lambda: None)):
        assert run(works()) == 7
        with pytest.raises(ValueError, match="oops"):
            run(fails())


async def _deaf_once() -> None:
    """Takes one cancellation for something else, as redis-py does at a timeout of zero."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(60)


def test_abandoned_work_ends_although_it_swallows_a_cancellation() -> None:
    async def work() -> None:
        signal_self(signal.SIGINT)
        await _deaf_once()

    with pytest.raises(Interrupted):
        run_abandonable(work())


async def test_end_insists() -> None:
    task = asyncio.create_task(_deaf_once())
    await asyncio.sleep(0)
    await end(task)
    assert task.cancelled()


def test_a_signal_that_was_ignored_from_the_start_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def work() -> int:
        signal_self(signal.SIGHUP)
        await asyncio.sleep(0)
        return 7

    assert run_interruptible(work(), lambda: None) == 7
