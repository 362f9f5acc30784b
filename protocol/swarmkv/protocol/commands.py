"""What workers can be told, and what they answer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from swarmkv.protocol.errors import CommandRefused
from swarmkv.protocol.messages import Message

CommandKind = Literal["pause", "resume", "drain", "pin", "unpin", "drop"]
CommandState = Literal["waiting", "taken", "done", "refused", "expired"]

SNAPSHOT_COMMANDS: frozenset[CommandKind] = frozenset({"pin", "unpin", "drop"})
MAX_ASKER_CHARS = 200
MAX_GRACE_S = 3_600.0
MAX_SAID_CHARS = 2_000


class Command(Message):
    """One thing that a worker is told. `by`: who asks, in words for the record ("ada on host-1", "web: admin").

    pause: take no more jobs; go on with those it has, and beat on. resume: take jobs again. drain: take no more,
    finish within `grace_s` (None: the worker's own SWARMKV_GRACE_S) or hand back, then end the process with code 0.
    pin: never evict `snapshot`; unpin: the contrary; drop: remove it, with `force` even if unfinished runs need it.
    """

    kind: CommandKind
    by: Annotated[str, Field(max_length=MAX_ASKER_CHARS)] = ""
    snapshot: Annotated[str, Field(max_length=64)] = ""
    force: bool = False
    grace_s: Annotated[float, Field(gt=0, le=MAX_GRACE_S)] | None = None


class Answer(Message):
    """What came of a command: `message` says it in words, done or not; `code` and `hint` say why not.

    `worker` answered, or several did: then `parts` are their answers.
    """

    ok: bool
    message: Annotated[str, Field(max_length=MAX_SAID_CHARS)]
    code: Annotated[str, Field(max_length=64)] = ""
    hint: Annotated[str, Field(max_length=MAX_SAID_CHARS)] = ""
    worker: str = ""
    parts: tuple[Answer, ...] = ()

    def check(self) -> None:
        """Raise CommandRefused, in the words of the answer, unless it was done."""
        if not self.ok:
            raise CommandRefused(self.message, hint=self.hint)


class CommandRecord(Message):
    """A command as it is remembered. Times are milliseconds of Redis' clock; `ended_ms` is 0 until it has ended."""

    id: str
    worker: str
    command: Command
    state: CommandState
    asked_ms: int
    ended_ms: int = 0
    answer: Answer | None = None
