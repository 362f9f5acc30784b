"""Workers in detail; pausing, resuming and draining them."""

from __future__ import annotations

from typing import Any, get_args

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.web import pages
from swarmkv.monitor.web.blocks import BlockSource
from swarmkv.monitor.web.routes.actions import act, asker
from swarmkv.monitor.web.site import Site, site_of
from swarmkv.protocol.commands import SNAPSHOT_COMMANDS, Command, CommandKind

KINDS = frozenset(get_args(CommandKind)) - SNAPSHOT_COMMANDS


async def workers(request: Request) -> Response:
    """GET /workers"""
    can_act, token = request.state.principal.can_act, request.state.form_token
    context = await _context(site_of(request))
    blocks = {"workers": pages.render("parts/workers.html", **context, can_act=can_act, form_token=token)}
    return pages.page(request, "blocks.html", title="Workers", live="/live/workers", blocks=blocks)


async def workers_events(request: Request) -> Response:
    """GET /live/workers"""
    site, can_act = site_of(request), request.state.principal.can_act

    async def render() -> dict[str, str]:
        context = await _context(site)
        return {"workers": pages.render("parts/workers.html", **context, can_act=can_act, form_token="")}

    return site.hub.stream(("workers", can_act), lambda: BlockSource(render))


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
