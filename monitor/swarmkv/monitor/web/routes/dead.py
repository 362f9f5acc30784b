"""The dead-letter list: why branches were given up; trying them again, dropping the entry."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.web.routes.actions import act
from swarmkv.monitor.web.routes.block import block_page, block_stream
from swarmkv.monitor.web.site import Site, site_of

SHOWN = 200  # entries on the page


async def dead_list(request: Request) -> Response:
    """GET /dead"""
    return await block_page(request, "dead", "Dead letter", _context)


async def dead_events(request: Request) -> Response:
    """GET /live/dead"""
    return block_stream(request, "dead", _context)


async def retry(request: Request) -> Response:
    """POST /dead/{entry}/retry"""
    site, entry_id = site_of(request), request.path_params["entry"]

    async def work() -> str:
        entry = await site.producer.dead_branch(entry_id)
        again = await site.producer.run(entry.run_id).retry(only_failed=True, branches=[entry.name])
        return f"{entry.path} is queued again." if again else f"{entry.path} is not failed any more."

    return await act(request, "retry dead", entry_id, work())


async def drop(request: Request) -> Response:
    """POST /dead/{entry}/drop"""
    site, entry_id = site_of(request), request.path_params["entry"]

    async def work() -> str:
        entry = await site.producer.dead_branch(entry_id)
        await site.producer.drop_dead([entry])
        return f"{entry.path} is off the list; its branch stays failed."

    return await act(request, "drop dead", entry_id, work())


async def _context(site: Site) -> dict[str, Any]:
    entries = await site.producer.dead()
    now_ms = await site.ledger.inspection.now_ms()
    return {"entries": entries[:SHOWN], "total": len(entries), "now_ms": now_ms}
