"""The one import of llama_cpp."""

from __future__ import annotations

import os

# Two llama.cpp processes on the same cores spin against each other: with OpenMP's default busy-waiting, a
# decode beside a prefill runs at a tenth of its speed. Read once, when libgomp is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

import llama_cpp as llama

__all__ = ["llama"]
