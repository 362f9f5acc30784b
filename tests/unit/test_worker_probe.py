"""Whether a worker is ready is told by when Redis took its last heartbeat."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from swarmkv.protocol.errors import ConfigError
from swarmkv.workers.status import Status
from tests.conftest import quick_settings
from tests.status_support import StillWorker, still_worker

LEASE_S = 2.0  # of quick_settings


@pytest.mark.parametrize(
    ("workers", "status"),
    [
        ([], 503),
        ([still_worker(beat_age_s=None)], 503),
        ([still_worker(beat_age_s=LEASE_S + 0.1)], 503),
        ([still_worker(beat_age_s=LEASE_S - 0.1)], 200),
        ([still_worker(), still_worker("prefill", beat_age_s=LEASE_S + 0.1)], 503),
    ],
)
async def test_a_worker_is_ready_while_its_leases_are_its_own(
    workers: list[StillWorker], status: int, tmp_path: Path
) -> None:
    known = Status(quick_settings("", tmp_path))
    shown: Any = workers
    known.show(shown, engine=None)  # type: ignore[arg-type]
    reply = await known._readyz()
    assert reply.status == status
    assert (await known._healthz()).status == 200
    named = [worker.info.id for worker in workers if worker.beat_age_s is None or worker.beat_age_s > LEASE_S]
    assert all(name.encode() in reply.body for name in named)


async def test_metrics_without_their_package_name_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "swarmkv.workers.metrics", raising=False)
    settings = quick_settings("", tmp_path).model_copy(update={"metrics_address": "0"})
    with pytest.raises(ConfigError, match="prometheus_client") as caught:
        async with Status(settings).answering():
            pass
    assert caught.value.hint == "pip install 'swarmkv[monitor]'"
