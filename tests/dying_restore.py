"""A branch worker without the checks that keep bad states from llama.cpp: `dying_restore.py ALIAS MODEL MARKER`.

The first restore of all, known by the absent MARKER, is given half a state, as if no checksum existed, and then the
process aborts: what an exception of C++ does when it crosses the C API.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from pathlib import Path

from swarmkv.protocol.errors import SnapshotCorrupt
from swarmkv.protocol.settings import load_settings
from swarmkv.workers.engine import thread
from swarmkv.workers.engine.context import Context
from swarmkv.workers.main import run_worker


class DyingContext(Context):
    marker: Path

    def restore(self, sequence: int, payload: memoryview, prefix_tokens: int) -> None:
        if self.marker.exists():
            super().restore(sequence, payload, prefix_tokens)
            return
        try:
            super().restore(sequence, payload[: len(payload) // 2], prefix_tokens)
        except SnapshotCorrupt:
            self.marker.touch()
            os.abort()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    DyingContext.marker = Path(sys.argv[3])
    thread.open_engine = partial(thread.open_engine, make_context=DyingContext)
    sys.exit(run_worker("branch", sys.argv[1], sys.argv[2], load_settings()))
