"""Pages of one block that lives: the same block when the page is asked for and while it is looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.web import pages
from swarmkv.monitor.web.blocks import BlockSource
from swarmkv.monitor.web.site import Site, site_of

Context = Callable[[Site], Awaitable[dict[str, Any]]]


async def block_page(request: Request, name: str, title: str, context: Context) -> Response:
    """The page with the block called `name`, which is also its template's and its stream's name."""
    can_act, token = request.state.principal.can_act, request.state.form_token
    blocks = {name: await _block(name, context, site_of(request), can_act=can_act, form_token=token)}
    return pages.page(request, "blocks.html", title=title, live=f"/live/{name}", blocks=blocks)


def block_stream(request: Request, name: str, context: Context) -> Response:
    """Its changes. Viewers who may do the same share one reader, so no form token of one is in it."""
    site, can_act = site_of(request), request.state.principal.can_act

    async def render() -> dict[str, str]:
        return {name: await _block(name, context, site, can_act=can_act, form_token="")}

    return site.hub.stream((name, can_act), lambda: BlockSource(render))


async def _block(name: str, context: Context, site: Site, **viewer: Any) -> str:
    return pages.render(f"parts/{name}.html", **await context(site), **viewer)
