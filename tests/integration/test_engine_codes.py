"""Every answer llama.cpp can give: who is at fault fails, the others and the next ones are answered rightly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarmkv.protocol.errors import DecodeFailed, EngineError, OutOfCells, SnapshotCorrupt
from swarmkv.workers.engine.backend import llama
from tests.engine_driver import Driver, driven, random_tokens

PREFIX = random_tokens(300, seed=1)
NAMES = [f"b{number}" for number in range(4)]
NO_CELLS, ABORTED, FAILURES = 1, 2, (-1, -2, -3)
EVERY_CODE = [NO_CELLS, ABORTED, *FAILURES]
Real = Callable[..., int]


class Answers:
    """Stands for a function of llama.cpp; at the nth call, or at all of them, it does nothing but answer `code`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.calls = 0
        self.wrong = range(0)
        self.code = 0
        self._real: Real = getattr(llama, name)
        monkeypatch.setattr(llama, name, self)

    def __call__(self, *arguments: Any) -> int:
        self.calls += 1
        return self.code if self.calls in self.wrong else self._real(*arguments)

    def once(self, nth: int, code: int) -> None:
        self.calls, self.code, self.wrong = 0, code, range(nth, nth + 1)

    def always(self, code: int) -> None:
        self.calls, self.code, self.wrong = 0, code, range(1, 1_000_000)

    def never(self) -> None:
        self.wrong = range(0)


@pytest.fixture(scope="module")
def expected(tiny_llama_path: Path) -> dict[str, str]:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        return {name: driver.answer(name, payload, 300, prompt_of(name)) for name in NAMES}


def prompt_of(name: str) -> Any:
    return random_tokens(150 + int(name[1:]), seed=20 + int(name[1:]))


def check_next(driver: Driver, payload: bytes, expected: dict[str, str]) -> None:
    """The engine still lives, and its cells and positions are right."""
    assert driver.answer("next", payload, 300, prompt_of("b0")) == expected["b0"]


@pytest.mark.parametrize("nth", [1, 3, 6])
@pytest.mark.parametrize("code", EVERY_CODE)
def test_a_decode_that_answers_a_code_once_costs_a_batch_of_four_nothing(
    code: int, nth: int, tiny_llama_path: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Answers(monkeypatch, "llama_decode")
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        for name in NAMES:
            driver.start(name, payload, 300, prompt_of(name))
            if name == NAMES[0]:
                decode.once(nth, code)
        outcomes = {name: driver.outcome(name) for name in NAMES}
        failed = [name for name, outcome in outcomes.items() if hasattr(outcome, "error")]
        assert len(failed) <= 1, "a code is the fault of one at most"
        assert {name: driver.text(name) for name in NAMES if name not in failed} == {
            name: text for name, text in expected.items() if name not in failed
        }
        check_next(driver, payload, expected)


@pytest.mark.parametrize("code", EVERY_CODE)
def test_a_decode_that_always_answers_a_code_fails_every_branch_after_few_tries(
    code: int, tiny_llama_path: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Answers(monkeypatch, "llama_decode")
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        decode.always(code)
        for name in NAMES:
            driver.start(name, payload, 300, prompt_of(name))
        for name in NAMES:
            assert isinstance(driver.failure(name), OutOfCells if code == NO_CELLS else DecodeFailed)
        assert decode.calls < 100
        decode.never()
        check_next(driver, payload, expected)


@pytest.mark.parametrize("code", EVERY_CODE)
def test_a_prefill_whose_decode_always_answers_a_code_fails_and_the_next_is_right(
    code: int, tiny_llama_path: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Answers(monkeypatch, "llama_decode")
    with driven(tiny_llama_path) as driver:
        decode.always(code)
        driver.start_prefill(PREFIX, "unlucky", [])
        assert isinstance(driver.failure("unlucky"), OutOfCells if code == NO_CELLS else DecodeFailed)
        decode.never()
        check_next(driver, driver.prefill(PREFIX), expected)


def test_a_restore_that_answers_zero_fails_its_branch_and_leaves_no_cells(
    tiny_llama_path: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_data = Answers(monkeypatch, "llama_state_seq_set_data")
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        set_data.always(0)
        driver.start("unlucky", payload, 300, prompt_of("b1"))
        assert isinstance(driver.failure("unlucky"), SnapshotCorrupt)
        set_data.never()
        check_next(driver, payload, expected)


@pytest.mark.parametrize("written", [0, 1, 4096])
def test_an_export_that_writes_too_little_fails_its_prefill_and_the_next_is_whole(
    written: int, tiny_llama_path: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    get_data = Answers(monkeypatch, "llama_state_seq_get_data")
    with driven(tiny_llama_path) as driver:
        get_data.always(written)
        driver.start_prefill(PREFIX, "short", [])
        assert isinstance(driver.failure("short"), EngineError)
        get_data.never()
        check_next(driver, driver.prefill(PREFIX), expected)
