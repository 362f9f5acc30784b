"""Pauses between tries: ever longer, spread, capped."""

from __future__ import annotations

import itertools

import pytest

from swarmkv.protocol.backoff import Backoff


def test_each_pause_is_at_least_as_long_as_the_one_before_and_at_most_four_times_up_to_the_cap() -> None:
    backoff = Backoff(first_s=0.1, longest_s=1.6)
    pauses = [backoff.next_s() for _ in range(5)]
    for earlier, later in itertools.pairwise(pauses):
        assert earlier <= later <= 4 * earlier
    assert 0.05 <= pauses[0] <= 0.1
    assert 0.8 <= pauses[-1] <= 1.6


def test_no_pause_is_over_the_cap_after_any_number_of_failures() -> None:
    backoff = Backoff(first_s=0.2, longest_s=3.0)
    assert max(backoff.next_s() for _ in range(5_000)) <= 3.0
    assert backoff.num_failures == 5_000


def test_pauses_of_two_that_failed_together_differ() -> None:
    assert len({Backoff().next_s() for _ in range(20)}) > 10


def test_a_success_starts_over() -> None:
    backoff = Backoff(first_s=0.1, longest_s=3.0)
    for _ in range(20):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 0.1


async def test_pausing_waits_as_long_as_the_next_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(delay_s: float) -> None:
        waited.append(delay_s)

    monkeypatch.setattr("asyncio.sleep", sleep)
    backoff = Backoff(first_s=0.1, longest_s=0.8)
    for _ in range(4):
        await backoff.pause()
    assert waited == sorted(waited)
    assert 0.4 <= waited[-1] <= 0.8
