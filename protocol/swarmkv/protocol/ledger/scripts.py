"""Loading and running the ledger's Lua scripts: one msgpack map in, plain values out."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix, job_key_prefix, retry_key_prefix

from swarmkv.protocol.broker import broker_errors
from swarmkv.protocol.codec import pack_for_lua
from swarmkv.protocol.errors import BrokerForbidden
from swarmkv.protocol.keys import lua_key_functions
from swarmkv.protocol.statistics import lua_bounds

# What a script shares with some others, beside what it shares with all.
_SHARED = {
    "drop": ("needed", "forgetting"),
    "forget": ("forgetting",),
    "submit": ("accept",),
    "upload": ("accept",),
    "retry": ("accept", "park"),
    "rebuild": ("park",),
    "pinned": ("needed",),
    "inventory": ("needed",),
    "sweep": ("accept", "park"),
}


@cache
def names() -> tuple[str, ...]:
    """Every script that can be run, those parts aside that others share."""
    parts = {"common", *(part for shared in _SHARED.values() for part in shared)}
    folder = files("swarmkv.protocol.ledger") / "lua"
    found = {item.name.removesuffix(".lua") for item in folder.iterdir() if item.name.endswith(".lua")}
    return tuple(sorted(found - parts))


@cache
def source(name: str) -> str:
    """Whole Lua text of the script called `name`: key functions, shared parts, then its own."""
    folder = files("swarmkv.protocol.ledger") / "lua"
    arq = (
        f"local ARQ = {{job = '{job_key_prefix}', in_progress = '{in_progress_key_prefix}', "
        f"retry = '{retry_key_prefix}'}}"
    )
    parts = [
        lua_key_functions(),
        lua_bounds(),
        arq,
        f"local SCRIPT = '{name}'",
        "local a = cmsgpack.unpack(ARGV[1])",
    ]
    parts += [(folder / f"{part}.lua").read_text("utf-8") for part in ("common", *_SHARED.get(name, ()), name)]
    return "\n".join(parts)


class Scripts:
    """Runs scripts on one connection pool; a script is sent once and called by its digest after that."""

    def __init__(self, redis: ArqRedis, *, max_events: int) -> None:
        self._redis = redis
        self._max_events = max_events
        self._registered: dict[str, Any] = {}
        self._are_taken: bool | None = None

    async def are_taken(self) -> bool:
        """Whether Redis takes every script; false for a user who may only read. Both are found out once.

        Raises BrokerError when Redis does not answer, or takes one of them for broken.
        """
        redis: Any = self._redis
        with broker_errors():
            await redis.ping()
        if self._are_taken is None:
            try:
                await self._load_all()
                self._are_taken = True
            except BrokerForbidden:  # not asked again: Redis keeps a list of refusals
                self._are_taken = False
        return self._are_taken

    async def _load_all(self) -> None:
        with broker_errors():
            pipe = self._redis.pipeline(transaction=False)
            for name in names():
                pipe.script_load(source(name))
            await pipe.execute()

    async def run(self, name: str, /, *payload: bytes, **arguments: Any) -> Any:
        """The script's answer; `payload` reaches it as it is, behind the arguments. Raises BrokerError."""
        script = self._registered.get(name)
        if script is None:
            script = self._registered[name] = self._redis.register_script(source(name))
        with broker_errors():
            packed = pack_for_lua({**arguments, "max_events": self._max_events})
            return await script(args=[packed, *payload])
