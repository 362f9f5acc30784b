"""What benchmarks compute from what they measured."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from swarmkv.benchmarks.fanout.case import Case, Measured, Outcome
from swarmkv.benchmarks.fanout.compare import Comparison, Family, Plan, case_document
from swarmkv.benchmarks.intervals import length, overlap, union, utilisation
from swarmkv.benchmarks.restore.rates import Seconds, case_of
from swarmkv.benchmarks.stats import Spread, p50_p99, percentile
from swarmkv.benchmarks.texts import Text

PLAN = Plan(document_tokens=100, branches=(2,), max_tokens=4, rounds=3)
FACTS: dict[str, Any] = {
    "prefill_s": 1.0,
    "prefills_run": 1,
    "restore_ms": [2.0],
    "activation_ms": [10.0, 30.0],
    "queue_ms": [1.0, 1.0],
    "tokens_reused": 200,
    "tokens_recomputed": 0,
}


class Fixed:
    """A scheme that takes a fixed time, and counts its runs and its warm-ups."""

    def __init__(self, name: str, cold_s: float, ready_s: float | None = None) -> None:
        self.name = name
        self._outcome = Outcome(
            Measured(cold_s, FACTS if name == "swarmkv" else {"first_token_ms": [500.0]}),
            None if ready_s is None else Measured(ready_s, FACTS),
        )
        self.runs = 0
        self.warmed: list[str] = []
        self.is_closed = False

    def setup(self) -> None:
        pass

    def run(self, case: Case) -> Outcome:
        if case.is_warm_up:
            self.warmed.append(case.document.text)
            return Outcome(Measured(1000.0))
        self.runs += 1
        return self._outcome

    def close(self) -> None:
        self.is_closed = True


class FakeCorpus:
    """Texts without a model."""

    def document(self, name: str, tokens: int) -> Text:
        return Text(name, np.zeros(tokens, np.int32))

    def prompts(self, name: str, count: int) -> list[Text]:
        return [Text(f"{name} {number}", np.zeros(3, np.int32)) for number in range(count)]


def compared(plan: Plan, *families: Family) -> list[dict[str, Any]]:
    corpus: Any = FakeCorpus()
    return list(Comparison(plan, families, corpus, lambda _: None).run())


def alone(scheme: Fixed) -> Family:
    return Family(scheme.name, (scheme,))


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([3, 1, 2], 50) == 2
    assert percentile(list(range(1, 101)), 99) == 99
    assert percentile([7], 1) == percentile([7], 100) == 7
    assert p50_p99([]) is None


def test_a_spread_is_the_median_between_its_ends() -> None:
    assert Spread.of([5.0, 1.0, 3.0]) == Spread(median=3.0, min=1.0, max=5.0, rounds=3)


def test_speed_ups_are_ratios_of_the_medians_of_one_run() -> None:
    [case] = compared(PLAN, alone(Fixed("swarmkv", 2.0, 0.5)), alone(Fixed("reprefill", 8.0)))
    assert case["speedup_vs_reprefill"] == 4
    assert case["ready"]["speedup_vs_reprefill"] == 16, "agents that keep nothing take as long as before"
    assert case["activation_ms"] == {"p50": 10.0, "p99": 30.0}
    assert case["reprefill_activation_ms"] == 500
    assert case["overhead_vs_ideal"] is None


def test_the_best_setting_stands_for_a_peer_in_cold_and_in_ready_runs_apart() -> None:
    peer = Family("peer", (Fixed("peer a", 3.0, 2.0), Fixed("peer b", 4.0, 1.5)))
    [case] = compared(PLAN, alone(Fixed("swarmkv", 2.0, 1.0)), peer)
    assert case["wall_s"]["peer"] == 3
    assert case["ready"]["wall_s"]["peer"] == 1.5
    assert case["best_variant"] == {"peer": "peer a"}
    assert case["ready"]["best_variant"] == {"peer": "peer b"}
    assert case["variants"]["peer"] == {"peer a": 3.0, "peer b": 4.0}


def test_a_peer_on_other_weights_is_compared_with_ours_on_the_same() -> None:
    ours, half = alone(Fixed("swarmkv", 2.0, 1.0)), alone(Fixed("swarmkv_bf16", 1.0, 0.5))
    [case] = compared(PLAN, ours, half, Family("vllm", (Fixed("vllm", 3.0, 2.0),), against="swarmkv_bf16"))
    assert case["speedup_vs"]["vllm"] == case["bf16"]["speedup_vs_vllm"] == 3
    assert case["ready"]["speedup_vs"]["vllm"] == 4


def test_a_setting_far_behind_the_best_is_named_and_not_run_again() -> None:
    slow, quick = Fixed("peer slow", 9.0, 9.0), Fixed("peer quick", 2.0, 2.0)
    plan = Plan(document_tokens=100, branches=(4, 2), max_tokens=4, rounds=3)
    few, many = compared(plan, Family("peer", (slow, quick)))
    assert (slow.runs, quick.runs) == (1, 6)
    assert slow.is_closed, "its memory is the others'"
    assert "4.5x slower" in few["dropped"]["peer slow"]
    assert many["dropped"] == few["dropped"]
    assert few["branches"] == 2


def test_a_setting_that_is_behind_in_cold_runs_alone_is_kept() -> None:
    cold, ready = Fixed("peer cold", 1.0, 9.0), Fixed("peer ready", 9.0, 1.0)
    compared(PLAN, Family("peer", (cold, ready)))
    assert cold.runs == ready.runs == 3


def test_a_scheme_answers_an_unknown_document_untimed_before_each_run() -> None:
    ours = Fixed("swarmkv", 2.0)
    [case] = compared(PLAN, alone(ours))
    assert len(set(ours.warmed)) == ours.runs == 3
    assert case["wall_s"]["swarmkv"] == 2


def test_schemes_are_closed_when_one_of_them_fails() -> None:
    class Broken(Fixed):
        def run(self, case: Case) -> Outcome:
            raise RuntimeError("broken")

    good, broken = Fixed("good", 1.0), Broken("broken", 1.0)
    with pytest.raises(RuntimeError):
        compared(PLAN, alone(good), alone(broken))
    assert good.is_closed
    assert broken.is_closed


def test_overhead_is_a_fraction_of_the_engine_alone() -> None:
    facts = {"restore_s": 0.001, "restore_gbps": 8.0, "memcpy_gbps": 10.0, "payload_bytes": 8_000_000, **FACTS}
    steps = {"export_s": 0.1, "fork_s": 0.1, "prompts_s": 0.1, "decode_s": 0.1}
    ideal = Outcome(Measured(2.0, facts | steps), Measured(1.0, facts | steps))
    ours = Outcome(Measured(2.2, FACTS), Measured(1.5, FACTS))
    families = [alone(Fixed("swarmkv", 0.0)), alone(Fixed("ideal", 0.0))]
    case = case_document(PLAN, 2, families, {"swarmkv": [ours], "ideal": [ideal]}, {})
    assert case["overhead_vs_ideal"] == pytest.approx(0.1)
    assert case["ready"]["overhead_vs_ideal"] == pytest.approx(0.5)
    assert (case["restore_gbps"], case["memcpy_gbps"]) == (8.0, 10.0)


def test_intervals_that_overlap_are_counted_once() -> None:
    assert union([(3, 4), (0, 1), (0.5, 2), (2, 2.5)]) == [(0, 2.5), (3, 4)]
    assert length([(0, 2), (1, 3)]) == 3
    assert overlap([(0, 4)], [(1, 2), (3, 9)]) == [(1, 2), (3, 4)]


def test_slots_count_only_while_something_waits() -> None:
    running = [(0.0, 10.0), (5.0, 10.0)]
    assert utilisation(running, [(0.0, 5.0)], slots=2) == 0.5
    assert utilisation(running, [(5.0, 10.0)], slots=2) == 1.0
    assert utilisation(running, [], slots=2) is None


def test_bandwidth_is_compared_within_each_round() -> None:
    def seconds(slow: float) -> Seconds:
        return Seconds(0.2 * slow, 0.1, 0.1 * slow, 0.1 * slow, 0.08 * slow, 5, 7)

    case = case_of(10, 1_000_000_000, [seconds(1), seconds(3), seconds(2)])
    assert case["restore_vs_memcpy"] == pytest.approx(0.8)
    assert case["export_vs_memcpy"] == pytest.approx(0.5)
    assert case["restore_gbps"] == pytest.approx(5.0)
    assert (case["export_extra_bytes"], case["restore_extra_bytes"]) == (5, 7)


def test_a_peer_decides_itself_how_openmp_is_loaded() -> None:
    code = "import sys, swarmkv.benchmarks.fanout.llama_cpp_python; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
