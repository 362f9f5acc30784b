"""What most fault tests start from: workers that may have faults and a producer, on the test's broker and store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmkv.protocol.settings import Settings
from tests.fault_support import FaultyFleet, faulty_fleet


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[FaultyFleet]:
    with faulty_fleet(settings, tmp_path / "logs") as fleet:
        yield fleet
