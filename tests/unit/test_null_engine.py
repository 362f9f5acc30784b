"""The engine without a model keeps the contract of the real one."""

from __future__ import annotations

import queue
import subprocess
import sys

import numpy as np
import pytest

from swarmkv.protocol.errors import StoreFull
from swarmkv.protocol.messages import Sampling
from swarmkv.workers.engine.jobs import (
    BranchEnded,
    BranchJob,
    BranchProgressed,
    Engine,
    EngineConfig,
    EngineEvent,
    JobCancelled,
    JobFailed,
    PrefillExported,
    PrefillJob,
)
from swarmkv.workers.engine.null import NullEngine

CONFIG = EngineConfig(
    model_path="",
    n_ctx=4096,
    n_batch=512,
    n_ubatch=128,
    slots=4,
    residents=1,
    can_prefill=True,
    threads=1,
    n_gpu_layers=0,
    kv_type_k="f16",
    kv_type_v="f16",
    flash_attention=False,
    swa_full=False,
)


@pytest.fixture
def events() -> queue.Queue[list[EngineEvent]]:
    return queue.Queue()


@pytest.fixture
def engine(events: queue.Queue[list[EngineEvent]]) -> Engine:
    return NullEngine(CONFIG, events.put)


def branch_job(payload: bytes, prompt: str) -> BranchJob:
    tokens = np.frombuffer(prompt.encode(), np.uint8).astype(np.int32)
    return BranchJob("b", "s", memoryview(payload), 10, tokens, Sampling(max_tokens=5))


def state_of(engine: Engine, events: queue.Queue[list[EngineEvent]], document: str) -> bytes:
    buffer = bytearray(64)
    engine.prefill(PrefillJob("p", engine.prefix_tokens(None, document, None), lambda _: memoryview(buffer)))
    exported = events.get(timeout=10)[-1]
    assert isinstance(exported, PrefillExported)
    return bytes(buffer[: exported.size_bytes])


def answer(engine: Engine, events: queue.Queue[list[EngineEvent]], payload: bytes, prompt: str) -> str:
    engine.branch(branch_job(payload, prompt))
    *progress, ended = events.get(timeout=10)
    assert isinstance(ended, BranchEnded)
    assert ended.generated == 5
    assert "".join(event.text for event in progress if isinstance(event, BranchProgressed)) == ended.text
    return ended.text


def test_an_answer_depends_on_the_state_and_the_prompt_alone(
    engine: Engine, events: queue.Queue[list[EngineEvent]]
) -> None:
    one, other = state_of(engine, events, "one"), state_of(engine, events, "other")
    texts = [answer(engine, events, payload, prompt) for payload in (one, other) for prompt in "ab"]
    assert len(set(texts)) == 4
    assert answer(engine, events, one, "a") == texts[0]
    engine.close()


def test_what_reserve_raises_is_the_jobs_failure(engine: Engine, events: queue.Queue[list[EngineEvent]]) -> None:
    def full(_size_bytes: int) -> memoryview:
        raise StoreFull("No room.")

    engine.prefill(PrefillJob("p", engine.prefix_tokens(None, "text", None), full))
    (failed,) = events.get(timeout=10)
    assert isinstance(failed, JobFailed)
    assert isinstance(failed.error, StoreFull)
    engine.close()


def test_jobs_after_close_end_as_cancelled(engine: Engine, events: queue.Queue[list[EngineEvent]]) -> None:
    engine.close()
    engine.branch(branch_job(bytes(32), "a"))
    assert events.get(timeout=10) == [JobCancelled("b")]


def test_it_never_loads_llama_cpp() -> None:
    code = "import sys, swarmkv.workers.engine.null; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
