"""How long OpenMP's threads wait for their next work with the CPU busy; decided before llama_cpp is imported.

Every worker has a pool with a thread for each physical core. Between two operations its threads spin, which is
quicker than sleeping and waking, and which takes the cores from whoever else computes: with OpenMP's own 300,000
turns, a decode beside the prefill of another worker runs at a tenth of its speed. A few thousand turns cost a
worker that is alone about 5 %.
"""

from __future__ import annotations

import os

from swarmkv.protocol.settings import Settings

VARIABLE = "GOMP_SPINCOUNT"
LEAVE_ALONE = 0

_wanted: int = Settings.model_fields["omp_spin_count"].default


def choose(count: int) -> None:
    """What `apply` is to ask for; LEAVE_ALONE: OpenMP's own default. Too late once llama_cpp is imported."""
    global _wanted
    _wanted = count


def apply() -> None:
    """Tell libgomp, which reads the variable once, when it is loaded. One that the user set stays."""
    if _wanted != LEAVE_ALONE:
        os.environ.setdefault(VARIABLE, str(_wanted))
