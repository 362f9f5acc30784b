"""How much work may be held in Redis at a time, and the refusal of more.

The scripts decide, in the step that accepts: producers at the same time cannot pass a limit together.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from swarmkv.protocol.errors import InvalidInput, Overloaded
from swarmkv.protocol.settings import Settings

# What the scripts call a limit: its setting, what is counted, what makes room.
_LIMITS = {
    "branches": ("SWARMKV_MAX_OPEN_BRANCHES", "open branches", "when runs have ended"),
    "documents": ("SWARMKV_MAX_DOCUMENTS", "documents", "when documents have expired"),
    "document_bytes": ("SWARMKV_MAX_DOCUMENTS_BYTES", "bytes of documents", "when documents have expired"),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Most of each in one Redis, over all runs; 0: no limit."""

    branches: int = 0
    documents: int = 0
    document_bytes: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The limits of an installation."""
        return cls(
            branches=settings.max_open_branches,
            documents=settings.max_documents,
            document_bytes=settings.max_documents_bytes,
        )

    def as_argument(self) -> dict[str, int]:
        """As the scripts take them."""
        return asdict(self)


NO_LIMITS = Limits()


def check_room(answer: list[Any]) -> None:
    """Raise Overloaded when a script refused for want of room, InvalidInput when waiting could never help."""
    if answer[0] != b"overloaded":
        return
    _, what, held, asked, limit, wait_ms = answer
    setting, noun, occasion = _LIMITS[what.decode()]
    if asked > limit:
        raise InvalidInput(
            f"This needs {asked:,} {noun} in Redis; the limit is {limit:,}.",
            hint=f"Ask for less at a time, or raise {setting}.",
        )
    wait_s = max(1, round(wait_ms / 1000))
    when = f"; the next one expires in {wait_s:,} s" if wait_ms else ""
    raise Overloaded(
        f"Redis holds {held:,} {noun}; {asked:,} more would pass the limit of {limit:,}.",
        hint=f"Try again {occasion}{when}; or raise {setting}.",
    )
