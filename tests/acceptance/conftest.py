"""The real model behind real workers, with the settings that users get but for a smaller context."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from swarmkv.producer import Producer
from swarmkv.protocol.settings import Settings
from tests.processes import Fleet, fleet_of
from tests.real_texts import RealText, real_text


@pytest.fixture(scope="session")
def text(real_model_path: Path) -> Iterator[RealText]:
    with real_text(real_model_path) as text:
        yield text


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    return Settings(_env_file=None, redis_url=redis_url, store_dir=tmp_path / "store", n_ctx=8192)


@pytest.fixture
async def workers(
    settings: Settings, producer: Producer, tmp_path: Path, real_model_path: Path
) -> AsyncIterator[Fleet]:
    """A prefill and a branch worker, ready."""
    with fleet_of(settings, tmp_path / "logs") as fleet:
        for role in ("prefill", "branch"):
            fleet.start(role, real_model_path)
        await fleet.ready(producer, 2)
        yield fleet
