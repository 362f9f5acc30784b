"""Workers of a model that do not see the same store say so, and those that do say nothing."""

from __future__ import annotations

from pathlib import Path

from swarmkv.producer import Producer
from swarmkv.protocol.settings import Settings
from tests.processes import fleet_of
from tests.waiting import wait_until


async def test_workers_with_a_store_each_name_the_other_and_the_setting(settings: Settings, tmp_path: Path) -> None:
    null = settings.model_copy(update={"null_engine": True})
    with fleet_of(null, tmp_path) as fleet:
        prefill = fleet.start("prefill", "null")
        branch = fleet.start("branch", "null", store_dir=tmp_path / "another")
        wait_until(lambda: "does not see the snapshots" in prefill.log + branch.log, timeout_s=30)
    said = prefill.log + branch.log
    assert "ERROR" in said
    assert "one directory at SWARMKV_STORE_DIR" in said


async def test_workers_that_share_a_store_beat_with_the_same_one(settings: Settings, tmp_path: Path) -> None:
    null = settings.model_copy(update={"null_engine": True})
    with fleet_of(null, tmp_path) as fleet:
        fleet.start("prefill", "null")
        fleet.start("branch", "null")
        async with Producer(settings.redis_url, settings) as producer:
            await fleet.ready(producer, 2)
            stores = {worker.info.store for worker in await producer.workers()}
    assert len(stores) == 1
    assert stores != {""}
