"""The dead-letter list: why branches were given up; trying them again, dropping the entry."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.web import pages
from swarmkv.monitor.web.blocks import BlockSource
from swarmkv.monitor.web.routes.actions import act
from swarmkv.monitor.web.site import Site, site_of

SHOWN = 200  # entries on the page


async def dead_list(request: Request) -> Response:
    """GET /dead"""
    context = {**await _context(site_of(request)), "can_act": request.state.principal.can_act}
    token = request.state.form_token
    blocks = {"dead": pages.render("parts/dead.html", **context, form_token=token)}
    return pages.page(request, "blocks.html", title="Dead letter", live="/live/dead", blocks=blocks)


async def dead_events(request: Request) -> Response:
    """GET /live/dead"""
    site, can_act = site_of(request), request.state.principal.can_act

    async def render() -> dict[str, str]:
        context = await _context(site)
        return {"dead": pages.render("parts/dead.html", **context, can_act=can_act, form_token="")}

    return site.hub.stream(("dead", can_act), lambda: BlockSource(render))


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
