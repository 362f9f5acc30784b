"""The application: addresses, what each request passes first, and what lives as long as the monitor."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from swarmkv.monitor.machines import machine_pages
from swarmkv.monitor.web import pages
from swarmkv.monitor.web.access import access_of
from swarmkv.monitor.web.assets import static
from swarmkv.monitor.web.guard import Guard
from swarmkv.monitor.web.reader import OverviewReader
from swarmkv.monitor.web.routes import (
    audit,
    dead,
    downloads,
    login,
    overview,
    probes,
    run,
    runs,
    snapshots,
    submit,
    workers,
)
from swarmkv.monitor.web.site import Site
from swarmkv.producer import Producer
from swarmkv.protocol.broker import connect
from swarmkv.protocol.errors import SwarmkvError
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.probes import answering, url_of
from swarmkv.protocol.settings import Settings

logger = logging.getLogger(__name__)

ROUTES = (
    Route("/login", login.login_form, name="login"),
    Route("/login", login.login, methods=["POST"]),
    Route("/logout", login.logout, methods=["POST"]),
    Route("/static/{name}", static),
    Route("/metrics", probes.metrics),
    Route("/healthz", probes.healthz),
    Route("/readyz", probes.readyz),
    Route("/", overview.overview),
    Route("/live/overview", overview.overview_events),
    Route("/runs", runs.run_list),
    Route("/live/runs", runs.run_list_events),
    Route("/runs/{run}", run.run_page),
    Route("/live/runs/{run}", run.run_events),
    Route("/runs/{run}/branches/{index:int}", run.branch_page),
    Route("/runs/{run}/results.{kind}", downloads.download),
    Route("/runs/{run}/cancel", run.cancel, methods=["POST"]),
    Route("/runs/{run}/retry", run.retry, methods=["POST"]),
    Route("/new", submit.submit_form),
    Route("/new", submit.submit, methods=["POST"]),
    Route("/snapshots", snapshots.snapshots),
    Route("/live/snapshots", snapshots.snapshots_events),
    Route("/snapshots/{store}/{snapshot}/{kind}", snapshots.command, methods=["POST"]),
    Route("/workers", workers.workers),
    Route("/live/workers", workers.workers_events),
    Route("/workers/{worker}/{kind}", workers.command, methods=["POST"]),
    Route("/dead", dead.dead_list),
    Route("/live/dead", dead.dead_events),
    Route("/dead/{entry}/retry", dead.retry, methods=["POST"]),
    Route("/dead/{entry}/drop", dead.drop, methods=["POST"]),
    Route("/audit", audit.audit),
)


def create_app(settings: Settings, redis_url: str, host: str, machines: socket.socket | None = None) -> Starlette:
    """The page over one Redis, for a server that listens on `host`; it connects when the first request comes.

    On `machines` it answers metrics and health, without a token; it closes that socket. `app.state.site` is what it
    shares. Raises ConfigError when it would let in everybody from outside.
    """
    redis = connect(redis_url, timeout_s=settings.redis_timeout_s)
    ledger = Ledger(redis, max_events=settings.max_events)
    site = Site(
        settings=settings,
        access=access_of(settings, host),
        redis=redis,
        ledger=ledger,
        producer=Producer(redis_url, settings),
        reader=OverviewReader(ledger),
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if machines is not None:
                await stack.enter_async_context(answering(machines, machine_pages(ledger)))
                url = url_of(machines)
                logger.info("metrics at %s/metrics", url, extra={"action": "monitor_metrics", "url": url})
            yield
        site.hub.stop()
        await site.producer.close()
        await redis.aclose(close_connection_pool=True)

    app = Starlette(
        routes=list(ROUTES),
        lifespan=lifespan,
        middleware=[Middleware(Guard, site=site)],
        exception_handlers={SwarmkvError: pages.show_our_error, HTTPException: _show_http_error},
    )
    app.state.site = site
    return app


async def _show_http_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    text = "There is nothing at this address." if exc.detail == "Not Found" else exc.detail
    return pages.show_error(request, exc.status_code, text, headers=exc.headers)
