"""The list of runs: searched, paged, live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.web import pages
from swarmkv.monitor.web.blocks import BlockSource
from swarmkv.monitor.web.site import Site, site_of
from swarmkv.protocol.ledger import RunQuery
from swarmkv.protocol.ledger.catalog import STATE_FILTERS

PER_PAGE = 50
MAX_TEXT_CHARS = 200
SPANS_S = {"hour": 3_600, "day": 86_400, "week": 7 * 86_400}


@dataclass(frozen=True, slots=True)
class Search:
    """What the address asks for; unknown values count as none."""

    text: str
    state: str
    model: str
    span: str
    number: int

    @classmethod
    def of(cls, request: Request) -> Search:
        given = request.query_params
        number = given.get("page", "1")
        return cls(
            text=given.get("q", "").strip()[:MAX_TEXT_CHARS],
            state=given.get("state", "") if given.get("state") in STATE_FILTERS else "",
            model=given.get("model", "")[:MAX_TEXT_CHARS],
            span=given.get("span", "") if given.get("span") in SPANS_S else "",
            number=max(1, int(number)) if number.isascii() and number.isdigit() and len(number) < 7 else 1,
        )

    def query(self, now_ms: int) -> RunQuery:
        since_ms = now_ms - SPANS_S[self.span] * 1000 if self.span else 0
        return RunQuery(self.text, self.state, self.model, since_ms)

    def address(self, number: int) -> str:
        """The query of another page of the same search."""
        page = number if number > 1 else ""
        return pages.query(q=self.text, state=self.state, model=self.model, span=self.span, page=page)


async def run_list(request: Request) -> Response:
    """GET /runs"""
    site, search = site_of(request), Search.of(request)
    context = await _context(site, search)
    blocks = {"runs": pages.render("parts/runs.html", **context)}
    models = await site.ledger.fleet.known_models()
    return pages.page(request, "runs.html", **context, blocks=blocks, models=models, states=list(STATE_FILTERS))


async def run_list_events(request: Request) -> Response:
    """GET /live/runs"""
    site, search = site_of(request), Search.of(request)

    async def render() -> dict[str, str]:
        return {"runs": pages.render("parts/runs.html", **await _context(site, search))}

    return site.hub.stream(("runs", search), lambda: BlockSource(render))


async def _context(site: Site, search: Search) -> dict[str, Any]:
    now_ms = await site.ledger.inspection.now_ms()
    start = (search.number - 1) * PER_PAGE
    total, rows = await site.ledger.catalog.search(search.query(now_ms), offset=start, limit=PER_PAGE)
    return {
        "rows": rows,
        "total": total,
        "search": search,
        "now_ms": now_ms,
        "num_pages": max(1, -(-total // PER_PAGE)),
        "start": start,
    }
