"""What `tune` tries, and what it takes for faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmkv.protocol.settings import Settings
from swarmkv.workers.trials import Base, Candidate, Measured, Verdict, best_of_each_factor, candidates, judge

BASE = Base(
    flash_attention=False,
    swa_full=False,
    window=512,
    cores=8,
    logical_cores=16,
    threads=8,
    n_ubatch=512,
    slots=16,
    omp_spin_count=2_000,
)


def labels(base: Base = BASE, fixed: frozenset[str] = frozenset(), **settings: object) -> list[str]:
    chosen = Settings(_env_file=None, **settings)  # type: ignore[arg-type]
    return [one.label for one in candidates(base, chosen, fixed, quick=False)]


def test_every_factor_is_tried_one_at_a_time_and_never_at_its_default() -> None:
    assert labels() == [
        *("swa_full=true", "flash_attention=on", "flash_attention=on, swa_full=true"),
        *("threads=4", "threads=7", "threads=16"),
        *("n_ubatch=128", "n_ubatch=256", "n_ubatch=1024"),
        *("slots=8", "slots=32", "slots=64"),
        *("omp_spin_count=0", "omp_spin_count=200", "omp_spin_count=20000"),
    ]


def test_a_model_without_a_window_has_no_ring_to_try() -> None:
    assert not any("swa_full" in label for label in labels(replace(BASE, window=0)))


def test_flash_attention_is_not_given_up_where_a_quantised_v_cache_needs_it() -> None:
    tried = labels(replace(BASE, flash_attention=True), kv_type_v="q8_0")
    assert not any("flash_attention" in label for label in tried)


def test_what_the_user_has_set_is_not_tried() -> None:
    tried = labels(fixed=frozenset({"flash_attention", "slots"}))
    assert tried[0] == "swa_full=true"
    assert not any(name in label for label in tried for name in ("flash_attention", "slots"))


def test_slots_and_ubatches_that_other_settings_leave_no_room_for_are_not_tried() -> None:
    tried = labels(residents=224, n_batch=256)
    assert [label for label in tried if label.startswith("slots")] == ["slots=8"]
    assert [label for label in tried if label.startswith("n_ubatch")] == ["n_ubatch=128", "n_ubatch=256"]


def test_one_core_leaves_no_threads_to_choose() -> None:
    assert not any("threads" in label for label in labels(replace(BASE, cores=1, logical_cores=1, threads=1)))


@pytest.mark.parametrize(
    ("candidate_s", "is_faster", "is_slower"),
    [
        ([0.9, 0.9, 0.9], True, False),
        ([0.9, 0.9, 1.0], False, False),  # one round of three shows nothing: that may be chance
        ([0.9, 0.9, 0.9, 0.9, 1.5], True, False),  # one of five may be disturbed
        ([0.9, 0.9, 0.9, 1.5, 1.5], False, False),
        ([0.98, 0.98, 0.98], False, False),  # sure, and not worth it
        ([1.2, 1.2, 1.2], False, True),
        ([1.2, 1.2, 1.0], False, False),
    ],
)
def test_a_candidate_must_win_by_more_than_noise(
    candidate_s: list[float], is_faster: bool, is_slower: bool
) -> None:
    verdict = judge([1.0] * len(candidate_s), candidate_s)
    assert (verdict.is_faster, verdict.is_slower) == (is_faster, is_slower)


def test_a_machine_that_gets_slower_for_all_decides_nothing() -> None:
    assert judge([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]) == Verdict(0.0, 0.0, 0.0)


def test_what_the_default_gains_over_itself_must_be_exceeded_too() -> None:
    assert judge([1.0] * 3, [0.9] * 3, noise=0.05).is_faster
    assert not judge([1.0] * 3, [0.9] * 3, noise=0.10).is_faster
    assert not judge([1.0] * 3, [1.1] * 3, noise=0.10).is_slower


def test_of_each_factor_only_the_best_that_wins_is_taken() -> None:
    small, large = Candidate("n_ubatch", {"n_ubatch": 128}), Candidate("n_ubatch", {"n_ubatch": 256})
    flash = Candidate("attention", {"flash_attention": "on"})
    verdicts = {small: Verdict(0.1, 0.08, 0.12), large: Verdict(0.2, 0.18, 0.22), flash: Verdict(0.3, 0.01, 0.5)}
    assert best_of_each_factor(verdicts) == [large]


def test_each_scenario_counts_what_it_is_about() -> None:
    measured = Measured(prefill_tps=3_500, decode_tps={1: 1.0, 16: 512.0}, beside_s=7.0)
    assert measured.cost_s("alone") == 2.0
    assert measured.cost_s("beside") == 7.0
    assert Measured(decode_tps={64: 100.0}).cost_s("crowd") == 0.01
