"""A live page as named blocks of HTML, of which those that changed are sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from swarmkv.monitor.web.live import message

Render = Callable[[], Awaitable[dict[str, str]]]
INTERVAL_S = 1.0


class BlockSource:
    """Renders the blocks of a page again and again; the names are ids of elements, whose content they are."""

    interval_s = INTERVAL_S

    def __init__(self, render: Render) -> None:
        self._render = render
        self._shown: dict[str, str] = {}

    async def step(self) -> list[bytes]:
        """One message with the blocks that changed, or none."""
        changed = self.changes(await self._render())
        return [message(blocks=changed)] if changed else []

    def changes(self, blocks: dict[str, str]) -> dict[str, str]:
        """Those that are not what was sent last."""
        changed = {name: html for name, html in blocks.items() if self._shown.get(name) != html}
        self._shown = blocks
        return changed

    def greeting(self) -> list[bytes]:
        """All blocks."""
        return [message(blocks=self._shown)] if self._shown else []
