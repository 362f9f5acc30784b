"""What followers of a run see, in the order in which it happened.

A stream entry holds a list of events in its field "e", so that the tokens of many branches cost one write.
The scripts of the ledger write some of them, hence the flat maps.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from swarmkv.protocol.codec import PROTOCOL_VERSION, check_version, fault, pack, unpack
from swarmkv.protocol.errors import ProtocolError
from swarmkv.protocol.messages import BranchResult, BranchState, ErrorInfo, Message, RunState


class PrefillProgress(Message):
    type: Literal["prefill_progress"] = "prefill_progress"
    done_tokens: int
    total_tokens: int


class PrefillDone(Message):
    """`reused`: a stored snapshot was found, nothing was decoded."""

    type: Literal["prefill_done"] = "prefill_done"
    tokens: int
    prefill_ms: float
    reused: bool


class BranchStarted(Message):
    type: Literal["branch_started"] = "branch_started"
    branch: str
    attempt: int
    worker: str


class BranchText(Message):
    """`text` continues what this attempt said before; `offset` is how many characters that was.

    After a lost connection a worker may write a piece twice: a follower drops what lies before its own offset.
    """

    type: Literal["branch_text"] = "branch_text"
    branch: str
    attempt: int
    offset: int
    text: str


class BranchRestarted(Message):
    """The branch will be run again: text of attempts before `attempt` is void."""

    type: Literal["branch_restarted"] = "branch_restarted"
    branch: str
    attempt: int
    reason: str


class BranchDone(Message):
    type: Literal["branch_done"] = "branch_done"
    branch: str
    attempt: int
    state: BranchState
    result: BranchResult


class RunWarning(Message):
    type: Literal["warning"] = "warning"
    message: str
    hint: str = ""


class RunDone(Message):
    type: Literal["run_done"] = "run_done"
    state: RunState
    error: ErrorInfo | None = None


Event = Annotated[
    PrefillProgress
    | PrefillDone
    | BranchStarted
    | BranchText
    | BranchRestarted
    | BranchDone
    | RunWarning
    | RunDone,
    Field(discriminator="type"),
]
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def encode_events(events: list[Event]) -> bytes:
    """The value of a stream entry's field "e"."""
    return pack([{"v": PROTOCOL_VERSION, **event.model_dump()} for event in events])


def decode_events(data: bytes) -> list[Event]:
    """The events of one stream entry; raises ProtocolError."""
    items = unpack(data)
    if not isinstance(items, list):
        raise ProtocolError(f"Expected a list of events, found a {type(items).__name__}.")
    return [_decode_event(item) for item in items]


def _decode_event(item: Any) -> Event:
    if not isinstance(item, dict):
        raise ProtocolError(f"Expected an event, found a {type(item).__name__}.")
    check_version(item.pop("v", None))
    try:
        return _EVENT.validate_python(item)
    except ValidationError as exc:
        raise ProtocolError(f"An event in Redis is malformed: {fault(exc)}.") from exc
