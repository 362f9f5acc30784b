"""For machines: metrics and health."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from swarmkv.monitor import health
from swarmkv.monitor.metrics import CONTENT_TYPE, answer_metrics
from swarmkv.monitor.web.site import site_of


async def metrics(request: Request) -> Response:
    """GET /metrics, for whoever may look."""
    return Response(await answer_metrics(site_of(request).ledger), headers={"content-type": CONTENT_TYPE})


async def healthz(_: Request) -> Response:
    """GET /healthz, for everybody."""
    return _answer(health.healthz())


async def readyz(request: Request) -> Response:
    """GET /readyz, for everybody."""
    return _answer(await health.readyz(site_of(request).ledger))


def _answer(probe: health.Probe) -> Response:
    return PlainTextResponse(probe.text, probe.status)
