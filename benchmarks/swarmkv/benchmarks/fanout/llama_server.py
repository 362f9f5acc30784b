"""llama.cpp's own server over HTTP, in each setting that people use; the best one is the peer.

np=1   one slot: prompts one after another, each continues the cached document
np=B   as many slots as branches over one pool of cells: all prompts at the same time
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

from swarmkv.benchmarks.errors import BenchFailed
from swarmkv.benchmarks.fanout.case import Case, Measured, Outcome, Scheme
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.processes import Child, peer_environment
from swarmkv.benchmarks.sizing import Sizing

HOST = "127.0.0.1"
READY_S = 120.0
ANSWER_S = 3_600.0
POLL_S = 0.05
CELLS_MARGIN = 512


class LlamaServer:
    """The scheme in one setting: a server of its own for every number of branches."""

    def __init__(
        self, ground: Ground, program: Path, model_path: Path, sizing: Sizing, *, parallel: bool, flash: str
    ) -> None:
        self.name = f"llama_server {'np=B kvu' if parallel else 'np=1'} fa={flash}"
        self._ground = ground
        self._program = program.absolute()
        self._model_path = model_path
        self._sizing = sizing
        self._parallel = parallel
        self._flash = flash
        self._slots = 0
        self._port = 0
        self._server: Child | None = None

    def setup(self) -> None:
        """The slots of a server depend on the case: it is started there."""

    def serve(self, slots: int) -> None:
        """A server with that many slots, if it is not there."""
        if self._slots == slots:
            return
        self.close()
        self._port = _free_port()
        log = self._ground.directory / f"{self.name.replace(' ', '-')}.log"
        argv = self._ground.tether(self._argv(slots))
        self._server = Child.start(self.name, argv, log, peer_environment())
        self._slots = slots
        self._wait_ready(self._server)

    def run(self, case: Case) -> Outcome:
        """All prompts at once, as many requests at a time as there are slots; then the others."""
        self.serve(case.branches if self._parallel else 1)
        prefix, prompts, ready = case.ids()
        asked = [[[*prefix.tolist(), *prompt.tolist()] for prompt in side] for side in (prompts, ready)]
        cold, warm = (self._timed(side, case.max_tokens) for side in asked)
        return Outcome(cold, warm)

    def close(self) -> None:
        if self._server is not None:
            self._server.end()
            self._server, self._slots = None, 0

    def _argv(self, slots: int) -> list[str]:
        # With one pool of cells every slot holds a document of its own while all of them prefill.
        own = self._sizing.document_tokens + self._sizing.own_tokens
        options = {
            "-m": self._model_path,
            "--host": HOST,
            "--port": self._port,
            "-t": len(os.sched_getaffinity(0)),
            "-c": slots * own + CELLS_MARGIN,
            "-fa": self._flash,
            "-np": slots,
        }
        words = [str(word) for option in options.items() for word in option]
        return [str(self._program), *words, *(("-kvu",) if slots > 1 else ())]

    def _wait_ready(self, server: Child) -> None:
        deadline_s = time.monotonic() + READY_S
        while not self._is_healthy():
            server.check()
            if time.monotonic() > deadline_s:
                raise BenchFailed(f"{self.name} was not ready after {READY_S:.0f} s.", hint=f"See {server.log}.")
            time.sleep(POLL_S)

    def _is_healthy(self) -> bool:
        try:
            return self._request("GET", "/health", None)[0] == 200
        except OSError:
            return False

    def _timed(self, prompts: Sequence[list[int]], max_tokens: int) -> Measured:
        bodies = [
            {"prompt": ids, "n_predict": max_tokens, "temperature": 0, "cache_prompt": True, "ignore_eos": True}
            for ids in prompts
        ]
        with ThreadPoolExecutor(self._slots) as pool:
            started_s = perf_counter()
            timings = list(pool.map(self._answer, bodies))
            wall_s = perf_counter() - started_s
        return Measured(wall_s, {"prefilled_tokens": [timing["prompt_n"] for timing in timings]})

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        status, answer = self._request("POST", "/completion", body)
        if status != 200 or answer["timings"]["predicted_n"] != body["n_predict"]:
            raise BenchFailed(f"{self.name} answered {status}: {str(answer)[:300]}.")
        timings: dict[str, Any] = answer["timings"]
        return timings

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=ANSWER_S)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


def server_settings(ground: Ground, program: Path, model_path: Path, sizing: Sizing) -> tuple[Scheme, ...]:
    """One slot and as many as branches, flash attention on and off."""
    return tuple(
        LlamaServer(ground, program, model_path, sizing, parallel=parallel, flash=flash)
        for parallel in (False, True)
        for flash in ("off", "on")
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
