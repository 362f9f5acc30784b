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
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run the server."""

    parallel: bool
    flash: str
    few_turns: bool

    @property
    def name(self) -> str:
        slots, spin = "np=B kvu" if self.parallel else "np=1", " spin=few" if self.few_turns else ""
        return f"llama_server {slots} fa={self.flash}{spin}"


SETTINGS = (
    *(Setting(False, flash, few_turns) for flash in ("off", "on") for few_turns in (False, True)),
    *(Setting(True, flash, False) for flash in ("off", "on")),
)


class LlamaServer:
    """The scheme in one setting: a server of its own for every number of branches."""

    def __init__(self, ground: Ground, program: Path, model_path: Path, sizing: Sizing, setting: Setting) -> None:
        self.name = setting.name
        self._ground = ground
        self._program = program.absolute()
        self._model_path = model_path
        self._sizing = sizing
        self._setting = setting
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
        self._server = Child.start(self.name, argv, log, peer_environment(few_turns=self._setting.few_turns))
        self._slots = slots
        self._wait_ready(self._server)

    def run(self, case: Case) -> Outcome:
        """All prompts at once, as many requests at a time as there are slots; then the others."""
        self.serve(case.branches if self._setting.parallel else 1)
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
            "-fa": self._setting.flash,
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
        try:
            status, answer = self._request("POST", "/completion", body)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise BenchFailed(f"{self.name} gave no answer: {exc!r}.") from exc
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
    """The scheme in every setting."""
    return tuple(LlamaServer(ground, program, model_path, sizing, setting) for setting in SETTINGS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
