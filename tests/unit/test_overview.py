"""The last hour from copies of counters, and what sharing saved."""

from __future__ import annotations

import pytest

from swarmkv.monitor.overview import Percentiles, PrefillSaved, model_stats
from swarmkv.protocol.ledger.statistics import MINUTE_MS
from swarmkv.protocol.statistics import Totals
from tests.overviews import model, overview, store, totals

NOW_MINUTE = 30_000_000
NOW_MS = NOW_MINUTE * MINUTE_MS + 15_000


def counted(done: int, since_ms: int = 1) -> Totals:
    return Totals.read({b"branches_done": str(done).encode(), b"since_ms": str(since_ms).encode()})


def done_by_minute(past: dict[int, Totals], now: Totals) -> list[tuple[int, float, int]]:
    """How long before the current minute each stretch begins, its length, and what was done in it."""
    stats = model_stats("m", now, past, NOW_MS)
    assert sum(minute.totals.counters["branches_done"] for minute in stats.minutes) == done_in_hour(past, now)
    return [
        (minute.start_ms // MINUTE_MS - NOW_MINUTE, minute.length_s, minute.totals.counters["branches_done"])
        for minute in stats.minutes
    ]


def done_in_hour(past: dict[int, Totals], now: Totals) -> int:
    return model_stats("m", now, past, NOW_MS).hour.counters["branches_done"]


def test_the_last_hour_is_what_was_counted_since_an_hour_ago() -> None:
    past = {NOW_MINUTE - ago: counted(100 - ago) for ago in range(64, -1, -1)}
    assert done_in_hour(past, counted(103)) == 63
    stretches = done_by_minute(past, counted(103))
    assert len(stretches) == 61
    assert stretches[0] == (-60, 60.0, 1)
    assert stretches[-1] == (0, 15.0, 3)


def test_what_began_within_the_hour_counts_whole() -> None:
    since_ms = NOW_MS - 10 * MINUTE_MS
    past = {NOW_MINUTE - 2: counted(40, since_ms)}
    assert done_in_hour(past, counted(50, since_ms)) == 50
    assert done_in_hour({}, counted(50, since_ms)) == 50
    assert [count for _, _, count in done_by_minute(past, counted(50, since_ms))] == [40, 10]


def test_after_a_time_in_which_nobody_swept_only_what_is_known_counts() -> None:
    """Ten hours of work, of which the copies are gone, did not happen in the last one."""
    past = {NOW_MINUTE - 3: counted(1_000), NOW_MINUTE: counted(1_010)}
    assert done_in_hour(past, counted(1_011)) == 11
    assert [length_s for _, length_s, _ in done_by_minute(past, counted(1_011))] == [180.0, 15.0]
    assert done_in_hour({}, counted(1_011)) == 0


def test_counters_that_began_anew_never_count_backwards() -> None:
    past = {NOW_MINUTE - 61: counted(500), NOW_MINUTE - 1: counted(520)}
    assert model_stats("m", counted(4), past, NOW_MS).hour.counters["branches_done"] == 0


def test_a_model_that_nobody_asked_for_has_an_empty_hour() -> None:
    stats = model_stats("m", Totals.read({}), {}, NOW_MS)
    assert (stats.latencies, stats.hit_share, stats.saved) == ({}, None, PrefillSaved(0, 0.0, 0.0))


def test_saved_is_what_was_reused_less_what_was_prefilled_for_it() -> None:
    counters = {"tokens_reused": 800, "tokens_prefilled": 100, "prefill_saved_ms": 7_500}
    assert PrefillSaved.of(totals(**counters)) == PrefillSaved(700, 7.5, 0.875)
    assert PrefillSaved.of(totals(tokens_prefilled=100)).tokens == 0


def test_rates_and_shares_come_from_the_counters() -> None:
    assert model(snapshot_hits=3, snapshot_misses=1).hit_share == 0.75
    assert store(30, 20, limit_bytes=200).used_share == 0.25
    assert store(30, 20, is_needed=True).needed_bytes == 50


def test_all_models_together_are_their_sum() -> None:
    one = model_stats("a", counted(9), {NOW_MINUTE - 61: counted(1), NOW_MINUTE - 1: counted(4)}, NOW_MS)
    two = model_stats("b", counted(20), {NOW_MINUTE - 61: counted(0), NOW_MINUTE - 1: counted(5)}, NOW_MS)
    both = overview(models=(one, two)).all_models
    assert both.totals.counters["branches_done"] == 29
    assert both.hour.counters["branches_done"] == 28
    assert [minute.totals.counters["branches_done"] for minute in both.minutes] == [8, 20]


def test_percentiles_of_nothing_are_none() -> None:
    assert Percentiles.of(Totals.read({}).stages["ttft"]) is None
    times = Totals.read({b"ttft:count": b"1", b"ttft:sum_us": b"40000", b"ttft:le:50": b"1"}).stages["ttft"]
    found = Percentiles.of(times)
    assert found is not None
    assert (found.count, found.mean_ms) == (1, 40.0)
    assert found.p50_ms == pytest.approx(37.5)
