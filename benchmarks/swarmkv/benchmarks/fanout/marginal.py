"""What one more branch costs: a line through the cases of one document length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MIN_CASES = 3


def marginal_costs(cases: Sequence[dict[str, Any]], ours: str, engine: str) -> dict[str, Any] | None:
    """Seconds of one more branch of `ours` and of `engine` on a ready snapshot, by least squares.

    None with fewer than MIN_CASES cases, or when one of both was not run.
    """
    branches = [case["branches"] for case in cases]
    walls = [[case["ready"]["wall_s"].get(name) for case in cases] for name in (ours, engine)]
    if len(cases) < MIN_CASES or any(wall is None for line in walls for wall in line):
        return None
    per_branch_s = [float(np.polyfit(branches, line, 1)[0]) for line in walls]
    return {
        "ours_s": per_branch_s[0],
        "engine_s": per_branch_s[1],
        "ratio": per_branch_s[0] / per_branch_s[1] if per_branch_s[1] > 0 else None,
    }
