"""Exit codes, which scripts rely on."""

from __future__ import annotations

from swarmkv.cli.supervise import ProgramFailed
from swarmkv.protocol.errors import (
    BrokerError,
    CommandUnanswered,
    ConfigError,
    EntryNotFound,
    InvalidInput,
    ModelError,
    Overloaded,
    RunNotFinished,
    RunNotFound,
    SnapshotMissing,
    SwarmkvError,
    WorkerNotFound,
)
from swarmkv.protocol.messages import RunReport

DONE = 0
FAILED = 1  # some branch failed or was cancelled, or a command could not do its work
USAGE = 2  # arguments, settings, a document, a model or the name of something that must be changed
UNFINISHED = 3
BROKER = 4
NO_WORKER = 5
OVERLOADED = 6  # Redis holds as much as it may: try again later


class UsageFault(SwarmkvError):
    """The command line itself is wrong."""

    code = "usage"


class NoWorker(SwarmkvError):
    """Nobody is there who could do the work."""

    code = "no_worker"
    default_hint = "Start workers with `swarmkv up` or `swarmkv worker all`."


def for_report(report: RunReport) -> int:
    """DONE, FAILED, or UNFINISHED while the run goes on."""
    if not report.is_finished:
        return UNFINISHED
    return DONE if report.state == "done" else FAILED


def for_error(error: SwarmkvError) -> int:
    """The code of the first of these classes that the error belongs to; FAILED for all others."""
    for kinds, code in _BY_ERROR:
        if isinstance(error, kinds):
            return code
    return FAILED


_BY_ERROR: tuple[tuple[tuple[type[SwarmkvError], ...], int], ...] = (
    ((InvalidInput, ConfigError, ModelError, SnapshotMissing, ProgramFailed, UsageFault), USAGE),
    ((RunNotFound, EntryNotFound), USAGE),
    ((RunNotFinished,), UNFINISHED),
    ((BrokerError,), BROKER),
    ((NoWorker, WorkerNotFound, CommandUnanswered), NO_WORKER),
    ((Overloaded,), OVERLOADED),
)
