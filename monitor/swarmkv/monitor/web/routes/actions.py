"""What administrators do: each action is carried out, written to the audit log, and answered on the next page.

The guard has seen to it that an administrator asks, from one of our own pages.
"""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from swarmkv.monitor.web import pages
from swarmkv.monitor.web.site import site_of
from swarmkv.protocol.errors import SwarmkvError


async def act(request: Request, action: str, target: str, work: Awaitable[str]) -> Response:
    """Carry out `work`, which says what was done; then back to where the form was."""
    try:
        outcome, error = await work, None
    except SwarmkvError as exc:
        outcome, error = str(exc), exc
    await site_of(request).record(request, action, target, f"refused: {outcome}" if error else outcome)
    if "text/html" not in request.headers.get("accept", ""):
        if error is not None:
            return pages.show_our_error(request, error)
        return JSONResponse({"action": action, "target": target, "outcome": outcome})
    return pages.go(request, str(request.state.form.get("back", "/")), notice=outcome, is_error=error is not None)


def asker(request: Request) -> str:
    """Who asks, as commands to workers say it."""
    return f"web: {request.state.principal.name}"
