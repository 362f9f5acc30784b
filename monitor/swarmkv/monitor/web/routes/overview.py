"""The first page: what waits and runs, who works, how fast, and what to look at."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.alerts import Alert, alerts
from swarmkv.monitor.overview import Minute, Overview
from swarmkv.monitor.web import pages
from swarmkv.monitor.web.blocks import BlockSource
from swarmkv.monitor.web.charts import hour_chart
from swarmkv.monitor.web.site import site_of
from swarmkv.protocol.statistics import Counter


async def overview(request: Request) -> Response:
    """GET /"""
    blocks = _blocks(await site_of(request).reader.read())
    return pages.page(request, "overview.html", blocks=blocks)


async def overview_events(request: Request) -> Response:
    """GET /live/overview"""
    site = site_of(request)

    async def render() -> dict[str, str]:
        return _blocks(await site.reader.read())

    return site.hub.stream("overview", lambda: BlockSource(render))


def _blocks(now: Overview) -> dict[str, str]:
    everything = now.all_models
    context = {
        "now": now,
        "all": everything,
        "alerts": _by_kind(alerts(now)),
        "branches": hour_chart(everything.minutes, now.now_ms, lambda m: _a_minute(m, "branches_done"), "branches"),
        "tokens": hour_chart(everything.minutes, now.now_ms, lambda m: _a_minute(m, "tokens_generated"), "tokens"),
    }
    names = ("alerts", "facts", "queues", "latency", "throughput", "stores", "workers")
    return {f"overview-{name}": pages.render(f"parts/overview_{name}.html", **context) for name in names}


def _by_kind(found: list[Alert]) -> list[list[Alert]]:
    """Those that say the same of several stand together, where the worst of them is."""
    groups: dict[str, list[Alert]] = {}
    for alert in found:
        groups.setdefault(alert.code, []).append(alert)
    return list(groups.values())


def _a_minute(stretch: Minute, name: Counter) -> float:
    """As a rate; the minute that has just begun counts as a whole one."""
    return stretch.totals.counters[name] * 60 / max(60.0, stretch.length_s)
