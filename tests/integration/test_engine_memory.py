"""Memory stays flat over thousands of steps, jobs and snapshots."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarmkv.workers.engine.backend import llama
from tests.engine_driver import Driver, driven, random_tokens

PREFIX, PROMPT = random_tokens(300, seed=1), random_tokens(20, seed=2)
MIB = 1024 * 1024


def _run_branches(driver: Driver, payload: bytes, names: list[str], **sampling: Any) -> None:
    """64 tokens for each of up to eight branches, together."""
    for name in names:
        driver.start(name, payload, 300, PROMPT, max_tokens=64, **sampling)
    for name in names:
        driver.text(name)
        del driver.events[name], driver.outcomes[name]
    driver.emits.clear()


def _growth_bytes(driver: Driver, payload: bytes, rounds: int) -> int:
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    for number in range(rounds):
        names = [f"{rounds}-{number}-{branch}" for branch in range(8)]
        _run_branches(driver, payload, names, temperature=0.8 if number % 2 else 0.0, seed=number)
    gc.collect()
    return int(process.memory_info().rss - before)


def test_memory_does_not_grow_over_5000_steps(tiny_llama_path: Path) -> None:
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        _growth_bytes(driver, payload, rounds=20)  # allocators fill their pools first
        grown = _growth_bytes(driver, payload, rounds=80)
    assert grown < 5 * MIB  # under 1 MB per 1,000 steps


def test_memory_does_not_grow_over_prefills_and_restores(tiny_llama_path: Path) -> None:
    process = psutil.Process()
    with driven(tiny_llama_path, residents=2) as driver:
        payload = driver.prefill(PREFIX)
        sizes = []
        for number in range(200):
            name = f"p{number}"
            driver.prefill(random_tokens(200, seed=number), name)
            driver.answer(f"b{number}", payload, 300, PROMPT, snapshot=f"s{number}", max_tokens=2)
            for table in (driver.events, driver.outcomes):
                table.clear()
            sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[50] < 5 * MIB


def test_engines_opened_and_closed_again_leave_nothing(tiny_llama_path: Path) -> None:
    process = psutil.Process()
    sizes = []
    for _ in range(30):
        with driven(tiny_llama_path) as driver:
            driver.prefill(random_tokens(100, seed=1))
        sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[10] < 10 * MIB


def test_every_sampler_is_freed_however_its_branch_ends(
    tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {"llama_sampler_chain_init": 0, "llama_sampler_free": 0}

    def counting(name: str) -> Callable[..., Any]:
        original = getattr(llama, name)

        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return original(*arguments)

        return call

    for name in calls:
        monkeypatch.setattr(llama, name, counting(name))
    with driven(tiny_llama_path) as driver:
        payload = driver.prefill(PREFIX)
        driver.start("done", payload, 300, PROMPT, temperature=1.0)
        driver.text("done")
        driver.start("failed", payload[:50], 300, PROMPT, temperature=1.0, snapshot="cut")
        driver.failure("failed")
        driver.start("cancelled", payload, 300, PROMPT, temperature=1.0, max_tokens=3000)
        driver.pump_until(lambda: "cancelled" in driver.events)
        driver.engine.cancel("cancelled")
        driver.outcome("cancelled")
        driver.start("closed", payload, 300, PROMPT, temperature=1.0, max_tokens=3000)
        driver.pump_until(lambda: "closed" in driver.events)
    assert calls == {"llama_sampler_chain_init": 4, "llama_sampler_free": 4}
