"""Every error that swarmkv raises, in one tree.

    SwarmkvError
    ├── InvalidInput            the caller can mend it: nothing was accepted
    │   ├── InvalidDocument
    │   ├── InvalidBranch
    │   ├── UnknownModel
    │   └── DocumentGone        a run cannot be tried again: its document has expired
    ├── ConfigError             a setting is unknown, missing or out of range
    ├── BrokerError             Redis cannot be reached, or refuses
    │   ├── BrokerLost          no answer came: a write may have been done, or not
    │   └── BrokerForbidden     its user lacks the right to a command or key
    ├── Overloaded              a limit on held work is reached; retry when work has ended: nothing was accepted
    ├── ProtocolError           bytes in Redis that this version cannot read
    ├── RunNotFound
    ├── RunNotFinished
    ├── EntryNotFound           no dead-letter entry of that id
    ├── CommandError            a worker was told something in vain
    │   ├── WorkerNotFound      no live worker of that id, role or store
    │   ├── CommandUnanswered   no answer came in time
    │   └── CommandRefused      the worker said no, and why
    ├── SnapshotError           the snapshot cannot be used: rebuild it
    │   ├── SnapshotMissing
    │   ├── SnapshotCorrupt
    │   ├── SnapshotMismatch    made by another model, build, layout or document
    │   └── StoreFull           no room; RETRYABLE once other snapshots may go
    └── EngineError
        ├── ModelError          the file is no model we can run
        ├── PrefixTooLong       the document does not fit the context
        ├── BranchTooLong       one branch does not fit beside its document
        ├── OutOfCells          no KV cells free now; retry when branches end
        └── DecodeFailed        llama.cpp refused a batch

A message says what happened, with the values; `hint` says what to do. `code` is stable: it travels in
results, so that scripts can tell errors apart without reading prose.
"""

from __future__ import annotations

from typing import ClassVar


class SwarmkvError(Exception):
    """Base of all errors of this package."""

    code: ClassVar[str] = "error"
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class InvalidInput(SwarmkvError):
    code = "invalid_input"


class InvalidDocument(InvalidInput):
    code = "invalid_document"


class InvalidBranch(InvalidInput):
    code = "invalid_branch"


class UnknownModel(InvalidInput):
    code = "unknown_model"


class DocumentGone(InvalidInput):
    code = "document_gone"
    default_hint = "Submit the document again, as a new run."


class ConfigError(SwarmkvError):
    code = "config"


class BrokerError(SwarmkvError):
    code = "broker"
    default_hint = "Check SWARMKV_REDIS_URL, or start a broker with `swarmkv up`."

    def __init__(self, message: str, *, hint: str = "", is_passing: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.is_passing = is_passing  # False: waiting will not help, a setting must change


class BrokerLost(BrokerError):
    """Of the same code: to a user it is one thing."""


class Overloaded(SwarmkvError):
    code = "overloaded"


class BrokerForbidden(BrokerError):
    code = "broker_forbidden"
    default_hint = "deploy/redis/users.acl lists the rights that each role needs."

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, is_passing=False)


class ProtocolError(SwarmkvError):
    code = "protocol"
    default_hint = "Use the same swarmkv version on producers and workers."


class RunNotFound(SwarmkvError):
    code = "run_not_found"
    default_hint = "`swarmkv runs` lists the runs that are kept; results expire after their TTL."


class RunNotFinished(SwarmkvError):
    code = "run_not_finished"


class EntryNotFound(SwarmkvError):
    code = "entry_not_found"
    default_hint = "`swarmkv dead ls` lists the entries; they expire as results do."


class CommandError(SwarmkvError):
    code = "command"


class WorkerNotFound(CommandError):
    code = "worker_not_found"
    default_hint = "`swarmkv workers` lists those that are alive."


class CommandUnanswered(CommandError):
    code = "command_unanswered"


class CommandRefused(CommandError):
    code = "command_refused"


class SnapshotError(SwarmkvError):
    code = "snapshot"


class SnapshotMissing(SnapshotError):
    code = "snapshot_missing"


class SnapshotCorrupt(SnapshotError):
    code = "snapshot_corrupt"


class SnapshotMismatch(SnapshotError):
    code = "snapshot_mismatch"


class StoreFull(SnapshotError):
    code = "store_full"
    default_hint = "Raise SWARMKV_STORE_BUDGET_BYTES, or point SWARMKV_STORE_DIR at a larger file system."


class EngineError(SwarmkvError):
    code = "engine"


class ModelError(EngineError):
    code = "model"


class PrefixTooLong(EngineError):
    code = "prefix_too_long"


class BranchTooLong(EngineError):
    code = "branch_too_long"


class OutOfCells(EngineError):
    code = "out_of_cells"


class DecodeFailed(EngineError):
    code = "decode_failed"
