"""What the engine has at hand, told to other threads after each step."""

from __future__ import annotations

from swarmkv.workers.engine.jobs import EngineLoad
from swarmkv.workers.engine.plan import Scheduler


class Meter:
    """Counts tokens, and reads the scheduler's books. `load` is replaced whole, so any thread may read it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.prefilled_tokens = 0
        self.generated_tokens = 0
        self.load = EngineLoad()

    def update(self) -> None:
        """Call it on the engine's thread, between steps."""
        scheduler = self._scheduler
        self.load = EngineLoad(
            cells_used=scheduler.limits.n_ctx - scheduler.free_cells,
            residents=tuple(scheduler.residents),
            prefilled_tokens=self.prefilled_tokens,
            generated_tokens=self.generated_tokens,
        )
