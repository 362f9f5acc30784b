"""Connecting to Redis, and saying in plain words why it did not work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from arq.connections import ArqRedis
from redis.asyncio.connection import BlockingConnectionPool
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from swarmkv.protocol.codec import pack, unpack
from swarmkv.protocol.errors import BrokerError, BrokerLost, ConfigError

_REFUSALS = ("db index", "password", "authentication")
_PASSING = ("LOADING", "BUSY", "MISCONF", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS")
_CONNECTING = "connecting to"  # in every error of redis-py about a connection that was not made
POOL_TIMEOUT_S = 60


def connect(url: str, *, timeout_s: float, max_connections: int = 64) -> ArqRedis:
    """A lazy client; nothing is sent yet. Jobs are coded with msgpack. The caller closes it.

    More calls at a time than connections wait for one: hundreds of jobs, or followers, are no error.

    Raises ConfigError when the URL cannot be understood.
    """
    if not url:
        raise ConfigError(
            "No Redis is configured.",
            hint="Set SWARMKV_REDIS_URL, or start one with `swarmkv up`.",
        )
    try:
        _check_database(url)
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=POOL_TIMEOUT_S,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            health_check_interval=0,
        )
        probe: Any = pool
        probe.make_connection()  # refuses options that it does not know; sends nothing
    except (ValueError, TypeError) as exc:
        raise ConfigError(
            f"The Redis URL {shown(url)!r} cannot be understood: {exc}.",
            hint="Use redis://[user:password@]host:port/database, rediss:// for TLS, or unix:///path/to/socket.",
        ) from exc
    return ArqRedis(connection_pool=pool, job_serializer=pack, job_deserializer=unpack)


def shown(url: str) -> str:
    """The URL without its password, for messages and logs; of one that cannot be read, nothing but its scheme."""
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
        netloc = f"{parts.username or ''}:***@{parts.hostname or ''}"
        return parts._replace(netloc=netloc + (f":{parts.port}" if parts.port else "")).geturl()
    except ValueError:
        return f"{url.partition('://')[0]}://…"


def _check_database(url: str) -> None:
    """redis-py takes a database that is no number for database 0."""
    parts = urlsplit(url)
    database = parts.path.strip("/") if parts.scheme in ("redis", "rediss") else ""
    if database and not database.isdecimal():
        raise ValueError(f"the database {database!r} is no number")


@contextmanager
def broker_errors() -> Iterator[None]:
    """Turn what redis-py raises inside into a BrokerError that names the cause and the remedy."""
    try:
        yield
    except (AuthenticationError, AuthorizationError) as exc:
        raise BrokerError(
            f"Redis refused the user name or password ({exc}).",
            hint="Put the right ones into SWARMKV_REDIS_URL: redis://user:password@host:port/0.",
            is_passing=False,
        ) from exc
    except OutOfMemoryError as exc:
        raise BrokerError(
            "Redis is out of memory and refused the write; nothing was accepted.",
            hint="Raise maxmemory, or wait until results expire.",
        ) from exc
    except ReadOnlyError as exc:
        raise BrokerError(
            "This Redis is a read-only replica.",
            hint="Point SWARMKV_REDIS_URL at the primary.",
            is_passing=False,
        ) from exc
    except (RedisConnectionError, RedisTimeoutError, OSError) as exc:
        if any(word in str(exc).lower() for word in _REFUSALS):  # while connecting, hence this class
            raise _refused(exc) from exc
        kind = BrokerError if _CONNECTING in str(exc) else BrokerLost  # nothing was sent, or nobody knows
        raise kind(f"Redis cannot be reached ({_reason(exc)}).") from exc
    except ResponseError as exc:
        raise _refused(exc) from exc
    except RedisError as exc:
        raise BrokerError(f"Redis failed ({_reason(exc)}).") from exc


def _refused(exc: RedisError | OSError) -> BrokerError:
    text = str(exc)
    is_passing = any(word in text for word in _PASSING)
    return BrokerError(f"Redis refused a command ({text}).", hint=_response_hint(text), is_passing=is_passing)


def _reason(exc: BaseException) -> str:
    return str(exc) or type(exc).__name__


def _response_hint(text: str) -> str:
    lowered = text.lower()
    if "db index" in lowered or "select" in lowered:
        return "The database number at the end of SWARMKV_REDIS_URL does not exist on this server."
    if any(word in lowered for word in ("noauth", "password", "authentication")):
        return "Put the password into SWARMKV_REDIS_URL: redis://user:password@host:port/0."
    if "noperm" in lowered:
        return "This Redis user lacks a permission: scripts, streams and pub/sub on swarmkv:* and arq:*."
    return "See the Redis log."
