"""Snapshots in their stores: what they are of, how often they were used, where they are resident; pin and drop."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.web.routes.actions import act, asker
from swarmkv.monitor.web.routes.block import block_page, block_stream
from swarmkv.monitor.web.site import Site, site_of
from swarmkv.protocol.commands import SNAPSHOT_COMMANDS, Command

SHOWN = 200  # of a store


async def snapshots(request: Request) -> Response:
    """GET /snapshots"""
    return await block_page(request, "snapshots", "Snapshots", _context)


async def snapshots_events(request: Request) -> Response:
    """GET /live/snapshots"""
    return block_stream(request, "snapshots", _context)


async def command(request: Request) -> Response:
    """POST /snapshots/{store}/{snapshot}/{kind}: pin, unpin or drop; with the field `force` also what runs need."""
    site, key, kind = site_of(request), request.path_params["snapshot"], request.path_params["kind"]
    if kind not in SNAPSHOT_COMMANDS:
        raise HTTPException(404, f"Nothing is called to {kind} a snapshot.")
    is_forced = request.state.form.get("force") == "1"

    async def work() -> str:
        asked = Command(kind=kind, snapshot=key, by=asker(request), force=is_forced)
        answer = await site.ledger.commands.send(f"store:{request.path_params['store']}", asked)
        answer.check()
        return answer.message

    return await act(request, f"{kind} snapshot", key, work())


async def _context(site: Site) -> dict[str, Any]:
    now = await site.reader.read()
    residents: dict[str, list[str]] = {}
    for live in now.workers:
        for key in live.info.residents:
            residents.setdefault(key, []).append(live.info.id)
    return {"stores": now.stores, "residents": residents, "now_ms": now.now_ms, "shown": SHOWN}
