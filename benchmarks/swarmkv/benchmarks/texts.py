"""A text with its token ids. Imports no engine: peers choose how that is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from swarmkv.workers.engine.jobs import Tokens


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its token ids, as the workers make them from it."""

    text: str
    ids: Tokens
