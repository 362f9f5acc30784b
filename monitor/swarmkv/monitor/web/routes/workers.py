"""Workers in detail; pausing, resuming and draining them."""

from __future__ import annotations

from typing import Any, get_args

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.web.routes.actions import act, asker
from swarmkv.monitor.web.routes.block import block_page, block_stream
from swarmkv.monitor.web.site import Site, site_of
from swarmkv.protocol.commands import SNAPSHOT_COMMANDS, Command, CommandKind

KINDS = frozenset(get_args(CommandKind)) - SNAPSHOT_COMMANDS


async def workers(request: Request) -> Response:
    """GET /workers"""
    return await block_page(request, "workers", "Workers", _context)


async def workers_events(request: Request) -> Response:
    """GET /live/workers"""
    return block_stream(request, "workers", _context)


async def command(request: Request) -> Response:
    """POST /workers/{worker}/{kind}: pause, resume or drain."""
    site, worker, kind = site_of(request), request.path_params["worker"], request.path_params["kind"]
    if kind not in KINDS:
        raise HTTPException(404, f"A worker cannot be told to {kind}.")

    async def work() -> str:
        answer = await site.ledger.commands.send(worker, Command(kind=kind, by=asker(request)))
        answer.check()
        return answer.message

    return await act(request, kind, worker, work())


async def _context(site: Site) -> dict[str, Any]:
    now = await site.reader.read()
    return {"workers": now.workers, "now_ms": now.now_ms}
