"""How long the fault tests go on: a short round by default, a long one with FAULTS=long (`make faults`)."""

from __future__ import annotations

import os
from typing import TypeVar

IS_LONG = os.environ.get("FAULTS") == "long"
Amount = TypeVar("Amount", int, float)


def by_round(short: Amount, long: Amount) -> Amount:
    """The amount of this round."""
    return long if IS_LONG else short
