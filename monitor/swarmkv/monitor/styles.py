"""How states look in a terminal, in `top` and in the other commands alike: rich's styles."""

from __future__ import annotations

STATE_STYLES = {
    "done": "green",
    "running": "cyan",
    "prefilling": "cyan",
    "failed": "bold red",
    "completed_with_errors": "yellow",
    "cancelled": "yellow",
    "paused": "yellow",
    "draining": "yellow",
}
