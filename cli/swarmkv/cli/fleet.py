"""The broker and the workers that belong to one command, `up` or `demo`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from swarmkv.cli.models import ModelChoice
from swarmkv.cli.supervise import Program, Supervisor
from swarmkv.producer import Producer
from swarmkv.protocol.errors import EngineError
from swarmkv.protocol.settings import Settings

_READY_TIMEOUT_S = 300.0  # a large model on a slow disk
_POLL_S = 0.05
_GRACE_MARGIN_S = 3.0  # a worker's own grace time, then its exit


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """How many workers of each role run for every model."""

    models: tuple[ModelChoice, ...]
    num_prefill: int = 1
    num_branch: int = 1
    num_all: int = 0
    options: tuple[str, ...] = ()

    def programs(self, settings: Settings, env: Mapping[str, str]) -> list[Program]:
        """The workers as programs to supervise, with `env` beside this process's environment."""
        roles = {"prefill": self.num_prefill, "branch": self.num_branch, "all": self.num_all}
        return [
            self._program(f"{role}-{number}", role, choice, settings, env)
            for choice in self.models
            for role, num_workers in roles.items()
            for number in range(1, num_workers + 1)
        ]

    def _program(
        self, name: str, role: str, choice: ModelChoice, settings: Settings, env: Mapping[str, str]
    ) -> Program:
        # -P: the directory that the user stands in is no place to import modules from.
        argv = (sys.executable, "-P", "-m", "swarmkv.cli", "worker", role, "--model", str(choice))
        return Program(
            name=f"{choice.alias}-{name}" if len(self.models) > 1 else name,
            argv=(*argv, *self.options),
            env=env,
            grace_s=settings.grace_s + _GRACE_MARGIN_S,
            may_end=True,
        )


async def wait_ready(producer: Producer, supervisor: Supervisor, names: Iterable[str]) -> None:
    """Return when every program of `names` has announced itself as a worker.

    Raises ProgramFailed when one keeps dying, EngineError when one takes for ever.
    """
    wanted = set(names)
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while missing := wanted - _announced(supervisor, {w.info.pid for w in await producer.workers()}):
        for name in missing:
            supervisor.check_starting(name)
        if time.monotonic() > deadline:
            raise EngineError(
                f"Not ready after {_READY_TIMEOUT_S:.0f} s: {', '.join(sorted(missing))}.",
                hint="See the log of the workers.",
            )
        await asyncio.sleep(_POLL_S)


def _announced(supervisor: Supervisor, pids: set[int]) -> set[str]:
    return {name for name, pid in supervisor.pids().items() if pid in pids}
