"""The bell: workers learn at once, over pub/sub, that something was queued or cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from arq.connections import ArqRedis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from swarmkv.protocol import keys
from swarmkv.protocol.backoff import Backoff

logger = logging.getLogger(__name__)

SILENCE_S = 15.0  # then the connection is tested: one that died without a word would never ring again


class Doorbell:
    """Listens on the worker's queue channel and on the control channel until cancelled.

    A missed ring costs no more than one poll: the queue itself is the truth, the bell only saves waiting.
    """

    def __init__(self, redis: ArqRedis, channel: str, on_control: Callable[[str], None]) -> None:
        self._redis: Any = redis
        self._channel = channel
        self._on_control = on_control
        self._rung = asyncio.Event()
        self._backoff = Backoff()

    def ring(self) -> None:
        """Wake the worker from inside: a slot became free."""
        self._rung.set()

    async def wait(self, timeout_s: float) -> None:
        """Return when the bell rings, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        except TimeoutError:
            pass
        self._rung.clear()

    async def listen(self) -> None:
        """Keep a subscription alive, through any loss of the connection."""
        while True:
            try:
                await self._subscribe()
            except (RedisError, OSError) as exc:
                logger.debug("doorbell lost: %s", exc, extra={"action": "doorbell_lost"})
            await self._backoff.pause()

    async def _subscribe(self) -> None:
        async with self._redis.pubsub() as pubsub:
            await pubsub.subscribe(self._channel, keys.CONTROL)
            self.ring()  # something may have been queued while nobody listened
            is_asked = False
            while True:
                # Asked to ignore confirmations, redis-py returns None for each, as if nobody had answered.
                message = await pubsub.get_message(ignore_subscribe_messages=False, timeout=SILENCE_S)
                if message is not None:
                    is_asked = False
                    self._backoff.reset()
                    self._hear(message)
                elif is_asked:
                    raise RedisConnectionError("no answer to a ping: the connection is dead")
                else:
                    await pubsub.ping()
                    is_asked = True

    def _hear(self, message: dict[str, Any]) -> None:
        if message["type"] != "message":
            return  # a confirmation, or the answer to a ping
        if message["channel"] == keys.CONTROL.encode():
            self._on_control(message["data"].decode(errors="replace"))  # anybody can publish
        else:
            self.ring()
