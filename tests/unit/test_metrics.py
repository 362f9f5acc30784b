"""What an overview becomes in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from prometheus_client import Metric

from swarmkv.monitor.metrics import render_metrics
from swarmkv.protocol.statistics import BOUNDS_MS
from tests.prometheus import families, full_overview, promtool

ODD = 'Mo"del\\ <b>é\n2'


@pytest.fixture(scope="module")
def told() -> dict[str, Metric]:
    return families(render_metrics(full_overview()))


def value(told: dict[str, Metric], name: str, **labels: str) -> float:
    """The one sample of a metric that has these labels."""
    [found] = [s.value for s in told[name].samples if s.name == name and labels.items() <= s.labels.items()]
    return found


@pytest.mark.parametrize("model", ["default", ODD])
def test_promtool_has_nothing_to_say_about_names_units_and_help(model: str) -> None:
    assert promtool("check", "metrics", stdin=render_metrics(full_overview(model))) == ""


def test_odd_aliases_come_back_as_they_were() -> None:
    told = families(render_metrics(full_overview(ODD)))
    assert value(told, "swarmkv_queue_waiting", role="branch", model=ODD) == 2


def test_who_waits_is_told_apart_from_who_runs_and_who_is_deferred(told: dict[str, Metric]) -> None:
    for name, number in (("waiting", 2), ("running", 1), ("deferred", 1), ("oldest_age_seconds", 4.5)):
        assert value(told, f"swarmkv_queue_{name}", role="branch", model="default") == number
    assert value(told, "swarmkv_queue_oldest_age_seconds", role="prefill") == 0


def test_a_histogram_is_cumulative_in_seconds_and_ends_with_all_cases(told: dict[str, Metric]) -> None:
    samples = told["swarmkv_branch_time_to_first_token_seconds"].samples
    buckets = [(float(s.labels["le"]), s.value) for s in samples if s.name.endswith("_bucket")]
    assert [bound for bound, _ in buckets] == [*(bound / 1000 for bound in BOUNDS_MS), float("inf")]
    assert [count for _, count in buckets] == [*range(1, len(BOUNDS_MS) + 1), len(BOUNDS_MS) + 2]
    assert all(low <= high for (_, low), (_, high) in pairwise(buckets))
    [count] = [s.value for s in samples if s.name.endswith("_count")]
    [total_s] = [s.value for s in samples if s.name.endswith("_sum")]
    assert (count, total_s) == (len(BOUNDS_MS) + 2, 2.5)


def test_counters_are_those_of_the_statistics(told: dict[str, Metric]) -> None:
    counters = full_overview().models[0].totals.counters
    for kind in ("reused", "recomputed", "prompt", "generated", "prefilled"):
        assert value(told, "swarmkv_tokens_total", kind=kind) == counters[f"tokens_{kind}"]  # type: ignore[index]
    for state in ("done", "completed_with_errors", "failed", "cancelled"):
        assert value(told, "swarmkv_runs_ended_total", state=state) == counters[f"runs_{state}"]  # type: ignore[index]
    assert value(told, "swarmkv_prefill_saved_seconds_total") == counters["prefill_saved_ms"] / 1000
    assert value(told, "swarmkv_snapshot_evictions_total") == counters["evictions"]


def test_live_workers_are_up_under_their_role_and_model_and_each_in_one_state(told: dict[str, Metric]) -> None:
    assert value(told, "swarmkv_worker_up", worker="branch-host-1-ab", role="branch", model="default") == 1
    states = {
        s.labels["state"]: s.value for s in told["swarmkv_worker_state"].samples if s.labels["role"] == "branch"
    }
    assert states == {"running": 0, "paused": 1, "draining": 0}
    assert value(told, "swarmkv_worker_cells_used", role="branch") == 1024
    assert value(told, "swarmkv_worker_start_time_seconds", role="branch") == 1_700_000_000


def test_a_model_whose_workers_are_gone_has_none_instead_of_no_series() -> None:
    told = families(render_metrics(replace(full_overview(), workers=())))
    assert value(told, "swarmkv_workers", role="prefill", model="default") == 0
    assert told["swarmkv_worker_up"].samples == []


def test_a_store_tells_what_must_stay_of_it(told: dict[str, Metric]) -> None:
    names = ("bytes", "limit_bytes", "needed_bytes", "snapshots")
    assert [value(told, f"swarmkv_store_{name}", path="/dev/shm/x") for name in names] == [70, 100, 40, 2]


def test_a_redis_that_tells_nothing_of_its_memory_leaves_out_those_alone() -> None:
    told = families(render_metrics(replace(full_overview(), broker=None)))
    assert told["swarmkv_redis_memory_bytes"].samples == []
    assert value(told, "swarmkv_redis_up") == 1


def test_labels_are_of_a_bounded_set(told: dict[str, Metric]) -> None:
    def labels() -> Iterator[str]:
        for family in told.values():
            for sample in family.samples:
                yield from sample.labels

    bounded = {"model", "role", "state", "kind", "le", "version"}
    assert set(labels()) - bounded == {"worker", "host", "device", "store", "path"}  # of live ones only
