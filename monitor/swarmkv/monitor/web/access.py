"""Who may do what: the secrets of an installation, and the two roles."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from dataclasses import dataclass
from typing import Literal

from swarmkv.protocol.errors import ConfigError
from swarmkv.protocol.settings import Settings

Role = Literal["admin", "reader"]
MIN_SECRET_CHARS = 12
_MAKE_ONE = "python3 -c 'import secrets; print(secrets.token_urlsafe(24))' makes one."


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. `name` is for the audit log, and never a secret."""

    name: str
    role: Role

    @property
    def can_act(self) -> bool:
        return self.role == "admin"


LOCAL = Principal("local", "admin")  # everybody, where no secret is set


@dataclass(frozen=True, slots=True)
class Access:
    """The secrets that are set, the names that the page answers to (empty: any), and the key that signs cookies."""

    token: str
    read_token: str
    user: str
    password: str
    hosts: frozenset[str]
    key: bytes

    @property
    def is_open(self) -> bool:
        """No secret is set: who reaches the page is trusted."""
        return not (self.token or self.read_token or self.password)

    def by_token(self, token: str) -> Principal | None:
        """Whose token it is."""
        is_admin, is_reader = _same(token, self.token), _same(token, self.read_token)
        if is_admin:
            return Principal("admin token", "admin")
        return Principal("read token", "reader") if is_reader else None

    def by_password(self, user: str, password: str) -> Principal | None:
        """Whose password it is; a token passes for one, whatever the user's name."""
        is_user, is_password = _same(user, self.user), _same(password, self.password)
        if is_user and is_password:
            return Principal(f"user {self.user}", "admin")
        return self.by_token(password)

    def accepts_host(self, host: str) -> bool:
        """Is the page meant by this Host header? A foreign name that resolves to this machine is not."""
        name = _without_port(host).lower()
        return not self.hosts or name in self.hosts or is_loopback(name)


def access_of(settings: Settings, host: str) -> Access:
    """What the settings say, for a page that listens on `host`. Raises ConfigError when anybody could come in."""
    _check_secrets(settings)
    is_private = is_loopback(host)
    names = frozenset(name.strip().lower() for name in settings.monitor_allowed_hosts.split(",") if name.strip())
    all_secrets = (settings.monitor_token, settings.monitor_read_token, settings.monitor_password)
    if not is_private and not any(all_secrets):
        raise ConfigError(
            f"The monitor would listen on {host} and let in everybody: no token is set.",
            hint=f"Set SWARMKV_MONITOR_TOKEN ({_MAKE_ONE}), or listen on 127.0.0.1.",
        )
    material = "\0".join((*all_secrets, settings.monitor_user)).encode()
    key = hashlib.blake2b(material, person=b"swarmkv-monitor").digest()
    return Access(
        token=settings.monitor_token,
        read_token=settings.monitor_read_token,
        user=settings.monitor_user,
        password=settings.monitor_password,
        hosts=names or (frozenset({"localhost"}) if is_private else frozenset()),
        key=key if any(all_secrets) else secrets.token_bytes(32),
    )


def is_loopback(host: str) -> bool:
    """Does the name or address mean this machine alone?"""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _check_secrets(settings: Settings) -> None:
    given = {
        "SWARMKV_MONITOR_TOKEN": settings.monitor_token,
        "SWARMKV_MONITOR_READ_TOKEN": settings.monitor_read_token,
        "SWARMKV_MONITOR_PASSWORD": settings.monitor_password,
    }
    for name, value in given.items():
        if value and len(value) < MIN_SECRET_CHARS:
            raise ConfigError(
                f"{name} has {len(value)} characters; it needs {MIN_SECRET_CHARS} at least.", hint=_MAKE_ONE
            )
    if bool(settings.monitor_user) != bool(settings.monitor_password):
        raise ConfigError("SWARMKV_MONITOR_USER and SWARMKV_MONITOR_PASSWORD need each other.", hint="Set both.")
    if settings.monitor_token and settings.monitor_token == settings.monitor_read_token:
        raise ConfigError(
            "SWARMKV_MONITOR_TOKEN and SWARMKV_MONITOR_READ_TOKEN are the same.",
            hint="Readers need one of their own.",
        )


def _same(given: str, secret: str) -> bool:
    """In a time that does not tell how much of it is right."""
    left, right = (hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (given, secret))
    return hmac.compare_digest(left, right) and bool(secret)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].strip("[]")
    return host.rpartition(":")[0] if host.count(":") == 1 else host
