"""Fixtures of a Redis with TLS and users, for the modules that name it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Home
from tests.secured import Authority, SecuredRedis, authority, is_installed, secured_redis

__all__ = ["home", "needs_tls", "secured", "signer"]

needs_tls = pytest.mark.skipif(not is_installed(), reason="needs redis-server with TLS, and openssl")


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def secured(signer: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredRedis]:
    with secured_redis(tmp_path_factory.mktemp("tls") / "redis", signer, signer.certificate("server")) as server:
        yield server


@pytest.fixture
def home(secured: SecuredRedis, tmp_path: Path) -> Home:
    directory = tmp_path / "home"
    directory.mkdir()
    return Home(directory).with_settings(redis_url=secured.url("producer"))
