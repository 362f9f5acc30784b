"""One thread loads and computes."""

from __future__ import annotations

import threading
from pathlib import Path

from swarmkv.workers.engine.context import Context
from swarmkv.workers.engine.jobs import EngineConfig
from swarmkv.workers.engine.model import Model
from swarmkv.workers.engine.thread import THREAD_NAME
from tests.engine_driver import driven


def test_the_thread_that_computes_also_loads(tiny_llama_path: Path) -> None:
    """libgomp counts the threads of every thread that used it, and lets none spin when they are more than cores."""
    seen: list[threading.Thread] = []

    class Watched(Context):
        def __init__(self, model: Model, config: EngineConfig) -> None:
            seen.append(threading.current_thread())
            super().__init__(model, config)

    with driven(tiny_llama_path, make_context=Watched):
        assert [thread.name for thread in seen] == [THREAD_NAME]
        assert seen[0].is_alive()
