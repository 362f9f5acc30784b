"""Histograms, their percentiles, and the differences of two readings."""

from __future__ import annotations

import random

import pytest

from swarmkv.protocol.statistics import BOUNDS_MS, NOTHING, STAGES, Histogram, Totals, bucket_field, lua_bounds


def histogram(*times_ms: float) -> Histogram:
    """As the scripts count."""
    counts = [0] * (len(BOUNDS_MS) + 1)
    for time_ms in times_ms:
        counts[next((i for i, bound in enumerate(BOUNDS_MS) if time_ms <= bound), len(BOUNDS_MS))] += 1
    return Histogram(tuple(counts), sum(times_ms))


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 1.0])
def test_a_percentile_lies_in_the_bucket_of_the_true_one(share: float) -> None:
    dice = random.Random(5)
    times_ms = sorted(dice.lognormvariate(4, 2) for _ in range(2_000))
    true_ms = times_ms[max(0, round(share * len(times_ms)) - 1)]
    found_ms = histogram(*times_ms).percentile_ms(share)
    assert found_ms is not None
    upper = next(i for i, bound in enumerate(BOUNDS_MS) if true_ms <= bound)
    lower_ms = BOUNDS_MS[upper - 1] if upper else 0
    assert lower_ms <= found_ms <= BOUNDS_MS[upper]


def test_percentiles_are_linear_inside_a_bucket() -> None:
    """Ten cases from 100 to 250 ms: half of the way is the fifth."""
    times = histogram(*[200.0] * 10)
    assert times.percentile_ms(0.5) == pytest.approx(175)
    assert times.percentile_ms(1.0) == pytest.approx(250)
    assert times.mean_ms == pytest.approx(200)


def test_percentiles_never_fall_as_the_share_rises() -> None:
    times = histogram(0.5, 3, 3, 700, 800_000, 2_000_000)
    found = [times.percentile_ms(percent / 100) or 0.0 for percent in range(101)]
    assert found == sorted(found)


def test_nothing_timed_has_no_percentile_and_what_is_beyond_the_last_bound_counts_as_it() -> None:
    assert Histogram().percentile_ms(0.5) is None
    assert Histogram().mean_ms is None
    beyond = histogram(BOUNDS_MS[-1] * 3)
    assert (beyond.count, beyond.percentile_ms(0.5)) == (1, BOUNDS_MS[-1])


def test_fields_are_read_and_what_is_no_number_is_nothing() -> None:
    row = {b"branches_done": b"7", b"retries": b"many", b"dead": b"-3", b"since_ms": b"5"}
    row |= {b"ttft:count": b"3", b"ttft:sum_us": b"1500", b"ttft:le:2.5": b"2", b"another": b"1"}
    totals = Totals.read(row)
    assert (totals.counters["branches_done"], totals.counters["retries"], totals.counters["dead"]) == (7, 0, 0)
    assert totals.since_ms == 5
    assert totals.stages["ttft"].counts[1] == 2
    assert totals.stages["ttft"].counts[-1] == 1, "what is in the count alone is beyond the last bound"
    assert totals.stages["ttft"].sum_ms == 1.5
    assert totals.stages["decode"] == Histogram()


def test_a_difference_is_what_came_between_and_never_negative() -> None:
    early = Totals.read({b"branches_done": b"3", b"e2e:count": b"1", b"e2e:sum_us": b"2000", b"e2e:le:2.5": b"1"})
    late = Totals.read({b"branches_done": b"5", b"e2e:count": b"3", b"e2e:sum_us": b"9000", b"e2e:le:2.5": b"3"})
    assert (late - early).counters["branches_done"] == 2
    assert (late - early).stages["e2e"] == Histogram((0, 2, *[0] * (len(BOUNDS_MS) - 1)), 7.0)
    emptied = early - late
    assert set(emptied.counters.values()) == {0}
    assert all(emptied.stages[stage] == Histogram() for stage in STAGES)
    assert (early + late).counters["branches_done"] == 8
    assert (NOTHING + late).stages == late.stages


def test_lua_spells_the_bounds_as_the_fields_do() -> None:
    spelled = lua_bounds().partition("{")[2].partition("}")[0].split(", ")
    assert [f"ttft:le:{bound}" for bound in spelled] == [bucket_field("ttft", bound) for bound in BOUNDS_MS]
    assert bucket_field("ttft", BOUNDS_MS[1]) == "ttft:le:2.5"
    assert bucket_field("ttft", BOUNDS_MS[-1]) == "ttft:le:900000"
