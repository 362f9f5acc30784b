"""Where benchmarks run: directories of their own, and how to start a broker and workers there.

The command line knows how its programs are started; it says so here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmkv.protocol.place import BrokerPlace
from swarmkv.protocol.settings import Settings

Say = Callable[[str], None]
Keep = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Ground:
    """Everything a benchmark needs from outside. The directories belong to the caller, who removes them.

    `broker_argv` starts a broker at a place; `worker_argv` serves a model in a role. `tether` makes of any command
    one whose program dies with this process, as those of the other two do. `keep` takes a document of the results
    so far, each replacing the one before: an hour of measuring is not lost with its last minute.
    """

    directory: Path
    store: Path
    settings: Settings
    sample: str
    broker_argv: Callable[[BrokerPlace], tuple[str, ...]]
    worker_argv: Callable[[str, str], tuple[str, ...]]
    tether: Callable[[Sequence[str]], tuple[str, ...]]
    say: Say
    keep: Keep
