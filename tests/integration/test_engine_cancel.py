"""Cancelling and closing: what was asked to end ends soon, and nothing else does."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import psutil
import pytest

from swarmkv.protocol.errors import EngineError
from swarmkv.workers.engine.batch import Batch
from swarmkv.workers.engine.cancel import CancelBoard
from swarmkv.workers.engine.context import Aborted, AbortFlag, Context
from swarmkv.workers.engine.jobs import BranchProgressed, JobCancelled, PrefillProgressed
from swarmkv.workers.engine.model import Model
from swarmkv.workers.engine.thread import THREAD_NAME
from tests.engine_driver import Driver, driven, engine_config, random_tokens

PREFIX, PROMPT = random_tokens(300, seed=1), random_tokens(20, seed=2)


def test_cancelling_a_running_and_a_queued_branch_ends_only_those_two(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path, slots=2) as driver:
        payload = driver.prefill(PREFIX)
        expected = driver.answer("alone", payload, 300, PROMPT, max_tokens=30)
        driver.start("running", payload, 300, PROMPT, max_tokens=3000)
        driver.start("neighbour", payload, 300, PROMPT, max_tokens=30)
        driver.start("queued", payload, 300, PROMPT)
        driver.start("behind", payload, 300, PROMPT, max_tokens=30)
        _wait_for_text(driver, "running")
        driver.engine.cancel("running")
        driver.engine.cancel("queued")
        driver.engine.cancel("unknown")
        assert isinstance(driver.outcome("running"), JobCancelled)
        assert isinstance(driver.outcome("queued"), JobCancelled)
        assert driver.text("neighbour") == driver.text("behind") == expected


def test_a_cancelled_branch_gives_its_cells_back(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path, n_ctx=1024) as driver:
        payload = driver.prefill(PREFIX)
        for number in range(20):
            name = f"b{number}"
            driver.start(name, payload, 300, PROMPT, max_tokens=700)
            _wait_for_text(driver, name)
            driver.engine.cancel(name)
            assert isinstance(driver.outcome(name), JobCancelled)
        assert driver.answer("good", payload, 300, PROMPT, max_tokens=700)


def test_cancelling_a_finished_job_does_not_touch_a_later_one_of_its_id(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        expected = driver.answer("job", payload, 300, PROMPT)
        driver.engine.cancel("job")
        del driver.outcomes["job"], driver.events["job"]
        assert driver.answer("job", payload, 300, PROMPT) == expected


def test_a_cancelled_prefill_ends_and_the_next_one_is_right(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        expected = driver.answer("a", driver.prefill(PREFIX, "reference"), 300, PROMPT)
        driver.start_prefill(random_tokens(4000, seed=3), "long", [])
        driver.pump_until(lambda: any(isinstance(e, PrefillProgressed) for e in driver.events.get("long", [])))
        driver.engine.cancel("long")
        assert isinstance(driver.outcome("long"), JobCancelled)
        payload = driver.prefill(PREFIX, "next")
        assert driver.answer("b", payload, 300, PROMPT, snapshot="other") == expected


def test_the_abort_flag_stops_a_decode_from_inside(tiny_llama_path: Path) -> None:
    config = engine_config(tiny_llama_path)
    model = Model(config.model_path)
    context = Context(model, config)
    batch = Batch(200)
    batch.add(random_tokens(200, seed=1), 0, 0, wants_logits=False)
    context.abort.set()
    with pytest.raises(Aborted):
        context.decode(batch)
    context.abort.clear()
    context.remove(0)
    context.decode(batch)
    assert context.position_after(0) == 200
    context.close()
    model.close()


def test_a_prefill_is_aborted_within_its_batch_when_nobody_shares_it() -> None:
    abort = AbortFlag()
    board = CancelBoard(abort)
    with board.decoding(frozenset({"prefill"})):
        board.ask("other")
        assert not _is_set(abort)
        board.ask("prefill")
        assert _is_set(abort)
    assert not _is_set(abort)


def test_a_batch_that_others_share_is_not_aborted() -> None:
    abort = AbortFlag()
    board = CancelBoard(abort)
    with board.decoding(frozenset({"prefill", "branch"})):
        board.ask("prefill")
        assert not _is_set(abort)
        board.ask("branch")
        assert _is_set(abort)


def test_a_job_asked_to_end_before_its_decode_begins_is_aborted_at_once() -> None:
    abort = AbortFlag()
    board = CancelBoard(abort)
    board.ask("prefill")
    with board.decoding(frozenset({"prefill"})):
        assert _is_set(abort)
    board.settle("prefill")
    with board.decoding(frozenset({"prefill"})):
        assert not _is_set(abort)


def test_closing_ends_every_job_as_cancelled_and_the_thread_with_it(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path, slots=2) as driver:
        payload = driver.prefill(PREFIX)
        for number in range(5):
            driver.start(f"b{number}", payload, 300, PROMPT, max_tokens=3000)
        driver.start_prefill(random_tokens(600, seed=3), "p", [])
        _wait_for_text(driver, "b0")
        driver.engine.close()
        for name in ("b0", "b1", "b2", "b3", "b4", "p"):
            assert isinstance(driver.outcome(name), JobCancelled)
        driver.start("late", payload, 300, PROMPT)
        assert isinstance(driver.outcome("late"), JobCancelled)
        with pytest.raises(EngineError, match="closed"):
            driver.engine.suffix_tokens("text", None)
    assert THREAD_NAME not in {thread.name for thread in threading.enumerate()}


def test_an_idle_engine_uses_no_processor_time(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        driver.answer("a", payload, 300, PROMPT)
        thread = driver.engine._thread.native_id
        before = _cpu_s(thread)
        threading.Event().wait(0.5)  # nothing can be waited for: the point is that nothing happens
        assert _cpu_s(thread) == before


def _wait_for_text(driver: Driver, name: str) -> None:
    driver.pump_until(lambda: any(isinstance(e, BranchProgressed) for e in driver.events.get(name, [])))


def _is_set(abort: AbortFlag) -> bool:
    """As llama.cpp asks."""
    ask = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
    return bool(ctypes.cast(abort.callback, ask)(abort.address))


def _cpu_s(native_id: int | None) -> float:
    times = {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}
    assert native_id is not None
    return float(times[native_id])
