"""A redis-server with TLS and the users of deploy/redis/users.acl, and the certificates for it."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

from swarmkv.protocol.broker import connect
from tests.waiting import wait_until

USERS = Path(__file__).parent.parent / "deploy" / "redis" / "users.acl"
PASSWORDS = {name: f"{name}-pass:w/rd@42" for name in ("producer", "operator", "worker", "monitor", "admin")}
_TAKES = 5  # a free port may be taken by somebody else before the server has it


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a directory of its own."""

    directory: Path

    @property
    def file(self) -> Path:
        return self.directory / "ca.pem"

    def certificate(self, name: str, *, days: int = 2, host: str = "localhost") -> Path:
        """A PEM file with key and certificate of `host`; `days` below 0: it has expired."""
        path, extensions = self.directory / f"{name}.pem", self.directory / f"{name}.ext"
        key, request = path.with_suffix(".key"), path.with_suffix(".csr")
        addresses = "IP:127.0.0.1," if host == "localhost" else ""
        extensions.write_text(f"subjectAltName={addresses}DNS:{host}\n")
        openssl("req", "-newkey", "ec:" + str(_curve(self.directory)), "-nodes", "-subj", f"/CN={name}",
                 "-keyout", str(key), "-out", str(request))  # fmt: skip
        signing = ["-CA", str(self.file), "-CAkey", str(self.file), "-CAcreateserial", "-days", str(days)]
        openssl("x509", "-req", "-in", str(request), *signing, "-extfile", str(extensions), "-out", str(path))
        path.write_text(path.read_text() + key.read_text())
        return path


def authority(directory: Path) -> Authority:
    """A new authority; `directory` is made."""
    directory.mkdir()
    found = Authority(directory)
    key = directory / "ca.key"
    openssl("req", "-x509", "-newkey", "ec:" + str(_curve(directory)), "-nodes", "-subj", "/CN=an authority",
             "-days", "2", "-keyout", str(key), "-out", str(found.file))  # fmt: skip
    found.file.write_text(found.file.read_text() + key.read_text())
    return found


@dataclass(frozen=True)
class SecuredRedis:
    """A running server; `admin` may do everything, over a unix socket."""

    port: int
    authority: Authority
    admin: Any

    def url(self, user: str, *, password: str = "", options: str = "", host: str = "localhost") -> str:
        """The URL of one of its users."""
        secret = _quoted(password or PASSWORDS[user])
        parameters = options or f"ssl_ca_certs={self.authority.file}"
        return f"rediss://{user}:{secret}@{host}:{self.port}/0?{parameters}"

    def refused(self) -> list[str]:
        """What the users of the file were refused since the last call, in words."""
        entries = self.admin.acl_log()
        self.admin.acl_log_reset()
        return [
            f"{entry['username']}: {entry['reason']} {entry['object']}"
            for entry in entries
            if entry["username"] != "admin"
        ]


@contextmanager
def secured_redis(
    directory: Path, signer: Authority, certificate: Path, *, client_certificates: bool = False
) -> Iterator[SecuredRedis]:
    """A redis-server that speaks TLS only, apart from a socket for the test; `directory` is made."""
    directory.mkdir()
    acl = directory / "users.acl"
    lines = [_switched_on(line) for line in USERS.read_text().splitlines()]
    acl.write_text("\n".join([*lines, f"user admin on >{PASSWORDS['admin']} ~* &* +@all"]) + "\n")
    path = directory / "redis.sock"
    for _ in range(_TAKES):
        process, port = _started(directory, acl, path, signer, certificate, client_certificates)
        admin = redis.Redis(unix_socket_path=str(path), username="admin", password=PASSWORDS["admin"])
        wait_until(lambda: process.poll() is not None or _answers(admin))  # noqa: B023
        if process.poll() is None:
            break
    assert process.poll() is None, (directory / "log").read_text()
    try:
        yield SecuredRedis(port, signer, admin)
    finally:
        admin.close()
        process.terminate()
        process.wait(timeout=20)


async def connected(url: str, call: Callable[[Any], Awaitable[None]]) -> None:
    """Call with a client of `url` that is closed afterwards."""
    client = connect(url, timeout_s=5)
    try:
        await call(client)
    finally:
        await client.aclose(close_connection_pool=True)


def is_installed() -> bool:
    """Whether Debian's redis-server, which has TLS, and openssl are here."""
    return shutil.which("redis-server") is not None and shutil.which("openssl") is not None


def _started(
    directory: Path, acl: Path, path: Path, signer: Authority, certificate: Path, client_certificates: bool
) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--bind", "127.0.0.1", "--port", "0", "--tls-port", str(port), "--unixsocket", str(path)]
    options += ["--tls-cert-file", str(certificate), "--tls-key-file", str(certificate)]
    options += ["--tls-ca-cert-file", str(signer.file)]
    options += ["--tls-auth-clients", "yes" if client_certificates else "no"]
    options += ["--aclfile", str(acl), "--dir", str(directory), "--save", "", "--maxmemory-policy", "noeviction"]
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(["redis-server", *options], stdout=log, stderr=log), port


def _switched_on(line: str) -> str:
    """A user of the example with a password, as its README says."""
    name = line.split()[1]
    return line if name == "default" else line.replace(" off resetpass ", f" on resetpass >{PASSWORDS[name]} ", 1)


def _answers(client: Any) -> bool:
    with suppress(redis.exceptions.ConnectionError):
        return bool(client.ping())
    return False


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _curve(directory: Path) -> Path:
    path = directory / "curve.pem"
    if not path.exists():
        openssl("ecparam", "-name", "prime256v1", "-out", str(path))
    return path


def openssl(*arguments: str) -> None:
    """Run the program; fails when it does."""
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
