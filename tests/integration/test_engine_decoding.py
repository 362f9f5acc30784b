"""Many branches in one context: nobody disturbs anybody, and everything that fits is answered."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from swarmkv.protocol.errors import BranchTooLong, InvalidBranch, PrefixTooLong
from swarmkv.workers.engine.jobs import BranchEnded, BranchProgressed, JobFailed, PrefillProgressed
from tests.engine_driver import Driver, driven, ids_of, random_tokens

PROMPT = random_tokens(20, seed=1)


def test_a_prefill_reports_progress_after_every_chunk(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path, n_ubatch=64) as driver:
        driver.prefill(random_tokens(150, seed=1), "p")
        progress = [event.done_tokens for event in driver.events["p"] if isinstance(event, PrefillProgressed)]
    assert progress == [64, 128, 150]


def test_a_branch_reports_its_restore_once_and_recomputes_nothing(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(random_tokens(300, seed=1))
        for name in ("first", "second"):
            driver.answer(name, payload, 300, PROMPT)
        first, second = driver.outcomes["first"], driver.outcomes["second"]
    assert isinstance(first, BranchEnded)
    assert isinstance(second, BranchEnded)
    assert first.restore_ms > 0
    assert second.restore_ms == 0
    assert (first.recomputed, first.generated, first.finish_reason) == (0, 8, "length")
    assert first.restore_ms <= first.prompt_ms <= first.first_token_ms <= first.total_ms


@pytest.mark.parametrize("length", [256 + 1, 3 * 256])
def test_a_prompt_longer_than_the_batch_gives_the_answer_of_a_large_batch(
    tiny_llama_path: Path, length: int
) -> None:
    prompt = random_tokens(length, seed=3)
    texts = []
    for n_batch in (256, 1024):
        with driven(tiny_llama_path, n_batch=n_batch) as driver:
            payload = driver.prefill(random_tokens(100, seed=1))
            texts.append(driver.answer("long", payload, 100, prompt))
    assert texts[0] == texts[1]


def test_64_forks_with_long_prompts_go_through_a_small_batch(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path, n_ctx=16384, n_batch=512, n_ubatch=128, slots=64) as driver:
        payload = driver.prefill(random_tokens(100, seed=1))
        for number in range(64):
            driver.start(f"b{number}", payload, 100, random_tokens(200, seed=number), max_tokens=3)
        for number in range(64):
            driver.text(f"b{number}")


def test_a_window_with_many_forks_and_prompts_longer_than_a_pass_finishes(tiny_gemma3_path: Path) -> None:
    with driven(tiny_gemma3_path, n_ctx=8192, slots=8, n_ubatch=64) as driver:
        payload = driver.prefill(random_tokens(300, seed=1))
        for number in range(8):
            driver.start(f"b{number}", payload, 300, random_tokens(200, seed=number), max_tokens=100)
        for number in range(8):
            driver.text(f"b{number}")


def test_restoring_another_snapshot_does_not_disturb_those_who_answer(tiny_llama_path: Path) -> None:
    document, other = random_tokens(300, seed=1), random_tokens(200, seed=2)

    def answers(*, with_restore: bool) -> list[str]:
        with driven(tiny_llama_path) as driver:
            payload, other_payload = driver.prefill(document, "p1"), driver.prefill(other, "p2")
            for number in range(7):
                prompt = random_tokens(20, seed=10 + number)
                driver.start(f"b{number}", payload, 300, prompt, max_tokens=60)
            driver.pump_until(lambda: any(isinstance(e, BranchProgressed) for e in driver.events.get("b6", [])))
            if with_restore:
                driver.answer("late", other_payload, 200, PROMPT, snapshot="other")
                assert not driver.outcomes.keys() & {f"b{number}" for number in range(7)}
            return [driver.text(f"b{number}") for number in range(7)]

    # Decode rows of full attention do not see each other; only the kernel's row count changes.
    assert answers(with_restore=True) == answers(with_restore=False)


def test_branches_of_a_busy_context_answer_as_they_do_alone(tiny_llama_path: Path) -> None:
    documents = {f"doc{number}": random_tokens(150 + 50 * number, seed=number) for number in range(3)}
    prompts = [random_tokens(5 + 3 * number, seed=100 + number) for number in range(8)]
    with driven(tiny_llama_path) as driver:
        payloads = {name: driver.prefill(tokens, name) for name, tokens in documents.items()}
        for name, tokens in documents.items():
            for index, prompt in enumerate(prompts):
                job = f"{name}-{index}"
                driver.start(job, payloads[name], len(tokens), prompt, snapshot=name, max_tokens=6)
        busy = {job: driver.text(job) for job in [f"{n}-{k}" for n in documents for k in range(8)]}
        for job, text in busy.items():
            name, number = job.split("-")
            length, prompt = len(documents[name]), prompts[int(number)]
            assert (
                driver.answer(f"{job}-alone", payloads[name], length, prompt, snapshot=name, max_tokens=6) == text
            )


def test_a_fragmented_cache_keeps_answering_for_500_rounds(tiny_llama_path: Path) -> None:
    chance = random.Random(16)
    documents = {f"doc{size}": random_tokens(size, seed=size) for size in (60, 130, 210, 340, 455)}
    with driven(tiny_llama_path, n_ctx=1280, residents=4) as driver:
        payloads = {name: driver.prefill(tokens, name) for name, tokens in documents.items()}
        for number in range(500):
            name = chance.choice(list(documents))
            length = chance.choice([1, 7, 30])
            answers = chance.randint(1, 40)
            prompt = random_tokens(length, seed=length)
            driver.start(
                f"b{number}", payloads[name], len(documents[name]), prompt, snapshot=name, max_tokens=answers
            )
            if number >= 8:
                driver.outcome(f"b{number - 8}")
        for number in range(500):
            assert isinstance(driver.outcome(f"b{number}"), BranchEnded)
        late = {
            name: driver.answer(f"{name}-late", payloads[name], len(tokens), PROMPT, snapshot=name)
            for name, tokens in documents.items()
        }
    for name, tokens in documents.items():
        with driven(tiny_llama_path) as fresh:
            payload = fresh.prefill(tokens)
            assert fresh.answer("fresh", payload, len(tokens), PROMPT) == late[name]


def test_oversized_jobs_fail_alone_and_a_good_one_is_answered_after_them(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path, n_ctx=1024) as driver:
        payload = driver.prefill(random_tokens(300, seed=1))
        for number in range(10):
            driver.start(f"large{number}", payload, 300, PROMPT, max_tokens=2000)
        driver.start_prefill(random_tokens(1025, seed=2), "book", [])
        driver.start("empty", payload, 300, np.zeros(0, np.int32))
        good = driver.answer("good", payload, 300, PROMPT)
        assert good
        assert all(isinstance(driver.failure(f"large{number}"), BranchTooLong) for number in range(10))
        assert isinstance(driver.failure("book"), PrefixTooLong)
        assert isinstance(driver.failure("empty"), InvalidBranch)


def test_what_does_not_fit_beside_others_waits_and_is_answered(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path, n_ctx=1024) as driver:
        payload = driver.prefill(random_tokens(100, seed=1))
        for number in range(4):
            driver.start(f"b{number}", payload, 100, PROMPT, max_tokens=int(1024 * 0.4))
        for number in range(4):
            driver.text(f"b{number}")


def test_a_runaway_ends_with_length_and_its_neighbours_are_untouched(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path, n_ctx=1024) as driver:
        payload = driver.prefill(random_tokens(100, seed=1))
        driver.start("runaway", payload, 100, PROMPT, max_tokens=600)
        for number in range(7):
            driver.start(f"b{number}", payload, 100, random_tokens(9, seed=number), max_tokens=5)
        for number in range(7):
            driver.text(f"b{number}")
        runaway = driver.outcome("runaway")
    assert isinstance(runaway, BranchEnded)
    assert (runaway.finish_reason, runaway.generated) == ("length", 600)


def test_a_solo_branch_is_decoded_with_no_other(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(random_tokens(100, seed=1))
        for name in ("a", "alone", "b"):
            driver.start(name, payload, 100, PROMPT, solo=name == "alone", max_tokens=20)
        for name in ("a", "alone", "b"):
            driver.text(name)
    together = [ids_of(emitted) for emitted in driver.emits]
    assert all(names == {"alone"} for names in together if "alone" in names)


def test_a_prefill_goes_on_beside_branches_and_neither_changes(tiny_llama_path: Path) -> None:
    document, prefix = random_tokens(900, seed=8), random_tokens(200, seed=1)
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(prefix, "p1")
        alone = driver.answer("alone", payload, 200, PROMPT, max_tokens=40)
        reference = driver.answer("reference", driver.prefill(document, "p2"), 900, PROMPT, snapshot="long")
        buffers: list[bytearray] = []
        driver.start("beside", payload, 200, PROMPT, max_tokens=40)
        driver.start_prefill(document, "p3", buffers)
        assert driver.text("beside") == alone
        driver.outcome("p3")
        mixed = {ids_of(emitted) for emitted in driver.emits}
        assert frozenset({"beside", "p3"}) in mixed
    with driven(tiny_llama_path) as other:
        assert other.answer("a", bytes(buffers[0]), 900, PROMPT) == reference


def test_every_event_of_a_step_comes_in_one_emit(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(random_tokens(100, seed=1))
        driver.emits.clear()
        _start_all(driver, payload, 8)
        for number in range(8):
            driver.outcome(f"b{number}")
    # 8 branches of 8 tokens that start within a few steps of each other: as many emits as steps.
    assert len(driver.emits) <= 24


def test_a_token_that_is_not_in_the_vocabulary_fails_its_own_branch_alone(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(random_tokens(100, seed=1))
        expected = driver.answer("before", payload, 100, PROMPT)
        driver.start("bad", payload, 100, np.array([5, 1_000_000], np.int32))
        driver.start("good", payload, 100, PROMPT)
        assert driver.text("good") == expected
        assert isinstance(driver.outcome("bad"), JobFailed)


def _start_all(driver: Driver, payload: bytes, count: int) -> None:
    for number in range(count):
        driver.start(f"b{number}", payload, 100, PROMPT, max_tokens=8)
