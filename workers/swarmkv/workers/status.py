"""A worker process's own `/metrics`, `/healthz` and `/readyz`, where a setting asks for them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from swarmkv.protocol.extras import needing
from swarmkv.protocol.probes import Reply, answering, listen, url_of
from swarmkv.protocol.settings import Settings
from swarmkv.workers.engine.jobs import Engine
from swarmkv.workers.leased import AnyWorker

logger = logging.getLogger(__name__)


class Status:
    """What is known of the process; `show` adds the workers once their model is loaded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._workers: Sequence[AnyWorker] = ()
        self._engine: Engine | None = None

    def show(self, workers: Sequence[AnyWorker], engine: Engine) -> None:
        """From here on, tell of these; the engine stays the caller's."""
        self._workers, self._engine = workers, engine

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Answer inside the block, if SWARMKV_METRICS_ADDRESS says where. Raises ConfigError."""
        if not self._settings.metrics_address:
            yield
            return
        render, content_type = _import_metrics()

        async def metrics() -> Reply:
            return Reply(200, render(self._workers, self._engine), content_type)

        pages = {"/metrics": metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        listener = listen(self._settings.metrics_address)
        url = url_of(listener)
        async with answering(listener, pages):
            logger.info("metrics at %s/metrics", url, extra={"action": "worker_metrics", "url": url})
            yield

    async def _healthz(self) -> Reply:
        """The event loop turns; a dead engine ends the process."""
        return Reply.said(200, "ok")

    async def _readyz(self) -> Reply:
        """Each worker's last heartbeat has reached Redis within a lease: its jobs are its own."""
        if not self._workers:
            return Reply.said(503, "The model is not loaded yet, or Redis is not there.")
        for worker in self._workers:
            age_s = worker.beat_age_s
            if age_s is None or age_s > self._settings.lease_s:
                return Reply.said(503, f"Redis has not taken a heartbeat of {worker.info.id} for a lease.")
        return Reply.said(200, "ok")


def _import_metrics() -> tuple[Callable[[Sequence[AnyWorker], Engine | None], bytes], str]:
    """Imported late: a worker needs prometheus-client for this alone."""
    with needing("SWARMKV_METRICS_ADDRESS", "monitor"):
        from swarmkv.workers.metrics import CONTENT_TYPE, own_metrics
    return own_metrics, CONTENT_TYPE
