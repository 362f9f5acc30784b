"""Who did what."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.web import pages
from swarmkv.monitor.web.site import site_of

PER_PAGE = 100
_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


async def audit(request: Request) -> Response:
    """GET /audit"""
    before = request.query_params.get("before", "")
    start = before if _ENTRY_ID.fullmatch(before) else "+"
    ledger = site_of(request).ledger
    entries, older = await ledger.audit.newest(PER_PAGE, before=start)
    now_ms = await ledger.inspection.now_ms()
    return pages.page(request, "audit.html", entries=entries, older=older, now_ms=now_ms, is_first=start == "+")
