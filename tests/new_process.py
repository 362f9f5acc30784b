"""Running a function in a process of its own: nothing that an earlier one left in memory can help it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_a_new_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a module's function returns or raises, in a fresh interpreter that ends afterwards."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=fresh) as pool:
        return pool.submit(function, *args, **kwargs).result()
