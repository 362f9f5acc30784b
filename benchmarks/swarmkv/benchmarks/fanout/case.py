"""What every scheme is given, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from swarmkv.benchmarks.texts import Text
from swarmkv.workers.engine.jobs import Tokens

ALL_UP_TO = 8  # branches that schemes run which work on one after another; of more, the rest is extrapolated


@dataclass(frozen=True, slots=True)
class Case:
    """A document that no scheme has seen, prompts for it, and as many others for when it is ready.

    What a warm-up takes is not counted, and its document is not asked about again.
    """

    document: Text
    prompts: Sequence[Text]
    ready_prompts: Sequence[Text]
    max_tokens: int
    is_warm_up: bool = False

    @property
    def branches(self) -> int:
        return len(self.prompts)

    def ids(self) -> tuple[Tokens, list[Tokens], list[Tokens]]:
        """Prefix, prompts and prompts for the ready document, as token ids."""
        return (
            self.document.ids,
            [prompt.ids for prompt in self.prompts],
            [prompt.ids for prompt in self.ready_prompts],
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds from the first request to the last answer's last token; `facts` are numbers beside it."""

    wall_s: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`ready` is None for a scheme that keeps nothing; `extrapolated` says that not every agent was run."""

    cold: Measured
    ready: Measured | None = None
    extrapolated: bool = False


class Scheme(Protocol):
    """One way to answer many prompts about one document. Called from one thread."""

    name: str

    def setup(self) -> None:
        """Load what all cases need, once: does nothing when it is there. Not timed."""

    def run(self, case: Case) -> Outcome:
        """Answer all prompts, once with the document unknown and once with it ready."""

    def close(self) -> None:
        """End every process of this scheme. May be called twice, and before `setup`."""
