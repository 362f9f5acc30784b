"""What keys ask for, beside a change of what is looked at."""

from __future__ import annotations

from dataclasses import dataclass

from swarmkv.protocol.commands import CommandKind


@dataclass(frozen=True, slots=True)
class Quit:
    """End the program."""


@dataclass(frozen=True, slots=True)
class Redraw:
    """Draw everything anew, whatever is believed to stand on the screen."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Read the branches of the run that is looked at now, without waiting for the next reading."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End what is open of a run."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Queue again what failed of a run."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Order:
    """Tell a worker, or who keeps a snapshot, to do something; `target` is its id or key."""

    kind: CommandKind
    target: str


Action = Quit | Redraw | Watch | Cancel | Retry | Order
