"""For machines on a network of their own: `/metrics`, `/healthz` and `/readyz`, without a token or any page."""

from __future__ import annotations

from swarmkv.monitor.health import Probe, healthz, readyz
from swarmkv.monitor.metrics import CONTENT_TYPE, answer_metrics
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.probes import Pages, Reply


def machine_pages(ledger: Ledger) -> Pages:
    """What the monitor answers on SWARMKV_METRICS_ADDRESS, for `probes.answering`."""

    async def metrics() -> Reply:
        return Reply(200, await answer_metrics(ledger), CONTENT_TYPE)

    async def alive() -> Reply:
        return _reply(healthz())

    async def ready() -> Reply:
        return _reply(await readyz(ledger))

    return {"/metrics": metrics, "/healthz": alive, "/readyz": ready}


def _reply(probe: Probe) -> Reply:
    return Reply(probe.status, probe.text.encode())
