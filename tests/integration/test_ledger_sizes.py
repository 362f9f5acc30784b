"""Sizes beyond 32 bits go through the scripts as they are: Lua has doubles, and may write them as 5.3e+09."""

from __future__ import annotations

import pytest
import redis

from swarmkv.protocol import keys
from swarmkv.protocol.ledger import Ledger
from tests.integration.test_ledger import DAY_MS, info_of, submit, take_prefill

EVERY_BROKER = True


@pytest.mark.parametrize("size_bytes", [2**31 + 1, 2**32 + 1, 2**40 + 1])
async def test_the_registered_size_of_a_large_snapshot_is_exact(
    ledger: Ledger, redis_url: str, size_bytes: int
) -> None:
    await submit(ledger, "aa", 1)
    (prefill,) = await take_prefill(ledger)
    info = info_of().model_copy(update={"size_bytes": size_bytes})
    assert await ledger.jobs.register("p", prefill, info, decoded=True, ttl_ms=DAY_MS)
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    assert client.hget(keys.key("prefix", prefix=prefill.prefix_id), "size_bytes") == str(size_bytes)
