"""Connecting to Redis, and saying in plain words why it did not work."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from arq.connections import ArqRedis
from redis.asyncio.connection import BlockingConnectionPool
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from swarmkv.protocol.address import checked, shown
from swarmkv.protocol.codec import pack, unpack
from swarmkv.protocol.errors import BrokerError, BrokerForbidden, BrokerLost, ConfigError

__all__ = ["broker_errors", "connect", "drop_members", "shown"]

_REFUSALS = ("db index", "password", "authentication")
_CLOSED = ("reset by peer", "closed by server", "broken pipe")
_CLOSED_HINT = "If it stays so: does this port want TLS (rediss://), or a client's certificate (ssl_certfile=FILE)?"
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
    tls = checked(url)
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=POOL_TIMEOUT_S,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            health_check_interval=0,
            **tls,
        )
        probe: Any = pool
        probe.make_connection()  # refuses options that it does not know; sends nothing
    except (ValueError, TypeError, RedisError) as exc:
        raise ConfigError(
            f"The Redis URL {shown(url)!r} cannot be understood: {exc}.",
            hint="README names the options of TLS; db=NUMBER picks a database.",
        ) from exc
    return ArqRedis(connection_pool=pool, job_serializer=pack, job_deserializer=unpack)


async def drop_members(redis: ArqRedis, key: str, members: Sequence[bytes]) -> None:
    """Take out of an index what it names in vain; a user who may only read leaves it there. Raises BrokerError."""
    if members:
        with suppress(BrokerForbidden), broker_errors():
            await redis.zrem(key, *members)


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
    except NoPermissionError as exc:
        raise BrokerForbidden(f"Redis refused a command ({exc}).") from exc
    except (RedisConnectionError, RedisTimeoutError, OSError) as exc:
        if (tls := _tls_error(exc)) is not None:
            raise _insecure(tls) from exc
        if any(word in str(exc).lower() for word in _REFUSALS):  # while connecting, hence this class
            raise _refused(exc) from exc
        kind = BrokerError if _CONNECTING in str(exc) else BrokerLost  # nothing was sent, or nobody knows
        hint = _CLOSED_HINT if any(word in str(exc).lower() for word in _CLOSED) else ""
        raise kind(f"Redis cannot be reached ({_reason(exc)}).", hint=hint) from exc
    except ResponseError as exc:
        raise _refused(exc) from exc
    except RedisError as exc:
        raise BrokerError(f"Redis failed ({_reason(exc)}).") from exc


def _refused(exc: RedisError | OSError) -> BrokerError:
    text = str(exc)
    if "user executing the script" in text.lower():  # how a script says it, up to Redis 7.0
        return BrokerForbidden(f"Redis refused a command ({text}).")
    is_passing = any(word in text for word in _PASSING)
    return BrokerError(f"Redis refused a command ({text}).", hint=_response_hint(text), is_passing=is_passing)


def _tls_error(exc: BaseException | None) -> ssl.SSLError | None:
    """What TLS had to say, which redis-py wraps in an error of its own."""
    while exc is not None and not isinstance(exc, ssl.SSLError):
        exc = exc.__cause__ or exc.__context__
    return exc


def _insecure(exc: ssl.SSLError) -> BrokerError:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return BrokerError(
            f"Redis shows a certificate that is not trusted: {exc.verify_message}.",
            hint="Name the authority that signed it: rediss://…?ssl_ca_certs=FILE; renew one that has expired.",
            is_passing=False,
        )
    reason = (exc.reason or "it broke off").replace("_", " ").lower()
    hint = "Does this port speak TLS? Does Redis want a client's certificate (ssl_certfile, ssl_keyfile)?"
    return BrokerError(f"There is no TLS connection to Redis: {reason}.", hint=hint, is_passing=False)


def _reason(exc: BaseException) -> str:
    return str(exc) or type(exc).__name__


def _response_hint(text: str) -> str:
    lowered = text.lower()
    if "db index" in lowered or "select" in lowered:
        return "The database number at the end of SWARMKV_REDIS_URL does not exist on this server."
    if any(word in lowered for word in ("noauth", "password", "authentication")):
        return "Put the password into SWARMKV_REDIS_URL: redis://user:password@host:port/0."
    return "See the Redis log."
