"""The address of Redis: a URL that is read with care, since it holds a password, and never shown with it.

    redis://[user:password@]host[:port][/database]     rediss:// for TLS
    unix://[user:password@]/path/to/socket[?db=number]

TLS is set by parameters behind `?`, under the names that redis-py gives them: ssl_ca_certs=FILE (else the system's
authorities), ssl_certfile=FILE and ssl_keyfile=FILE for a client's own certificate, ssl_check_hostname=no.
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from swarmkv.protocol.errors import ConfigError

_SCHEMES = ("redis", "rediss", "unix")
_FORMS = "Use redis://[user:password@]host:port/database, rediss:// for TLS, or unix:///path/to/socket."
_ESCAPES = "In a user name or password write %2F for /, %3F for ?, %23 for #, %40 for @ and %25 for %."
_HARMLESS = {"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname", "ssl_cert_reqs"}


def shown(url: str) -> str:
    """The URL without what is secret in it, for messages and logs; of one that cannot be read, only its scheme."""
    try:
        parts = _split(url)
    except ConfigError:
        scheme, mark, _ = url.partition("://")
        return f"{scheme}://…" if mark and scheme in _SCHEMES else "…"
    query = "&".join(_shown_option(option) for option in parts.query.split("&") if option)
    return f"{parts.scheme}://{_without_secrets(parts.netloc)}{parts.path}" + (f"?{query}" if query else "")


def checked(url: str) -> dict[str, Any]:
    """What redis-py is told beside the URL, which wins over it: that names of TLS servers are checked.

    Raises ConfigError, which quotes nothing that may be a password, when redis-py would misread the URL, or a
    file of TLS cannot be used.
    """
    parts = _split(url)
    options = {name: unquote(values[0]) for name, values in parse_qs(parts.query).items()}
    if parts.scheme != "rediss":
        return {}
    certificate, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
    if key and not certificate:
        raise ConfigError(
            f"The Redis URL names the key ssl_keyfile={key}, and no certificate.", hint="Add ssl_certfile=FILE."
        )
    own: dict[str, Any] = {"ssl_keyfile": certificate} if certificate and not key else {}  # both in one file
    _check_files(options.get("ssl_ca_certs"), certificate, key or certificate)
    return {"ssl_check_hostname": options.get("ssl_cert_reqs") != "none", **own}


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _misread("its host cannot be read") from None
    if parts.scheme not in _SCHEMES or not url.startswith(f"{parts.scheme}://"):
        raise _misread(f"it begins with none of {', '.join(f'{scheme}://' for scheme in _SCHEMES)}")
    if parts.scheme == "unix":
        if parts.netloc and not parts.netloc.endswith("@"):
            raise _misread("the path of its socket is not absolute")
        return parts
    if parts.fragment or "@" in parts.path + parts.query or parts.netloc.count("@") > 1:
        raise _misread("a special character in it is not escaped", _ESCAPES)
    try:
        parts.port  # noqa: B018 - reading it checks it
    except ValueError:
        raise _misread("its port is no number up to 65535", f"{_FORMS} {_ESCAPES}") from None
    database = parts.path.strip("/")
    if database and not (database.isascii() and database.isdecimal()):  # redis-py would take it for 0
        raise _misread(f"the database {database!r} is no number")
    return parts


def _misread(why: str, hint: str = _FORMS) -> ConfigError:
    return ConfigError(f"The Redis URL cannot be understood: {why}.", hint=hint)


def _without_secrets(netloc: str) -> str:
    credentials, mark, host = netloc.rpartition("@")
    if not mark:
        return netloc
    user, colon, _ = credentials.partition(":")
    # Without a colon a password may have been put in the user's place.
    return f"{user}:***@{host}" if colon else f"***@{host}"


def _shown_option(option: str) -> str:
    name, _, _ = option.partition("=")
    return option if name in _HARMLESS else f"{name}=***"


def _check_files(authorities: str | None, certificate: str | None, key: str | None) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    what = f"ssl_ca_certs={authorities}"
    try:
        if authorities:
            context.load_verify_locations(cafile=authorities)
        if certificate:
            what = f"ssl_certfile={certificate}, ssl_keyfile={key}"
            context.load_cert_chain(certificate, key, password="")  # nobody is there to be asked for one
    except ssl.SSLError as exc:
        raise ConfigError(
            f"The Redis URL's {what} cannot be used: {exc.reason or 'no PEM file'}.",
            hint="Name PEM files; a key must belong to its certificate and have no passphrase.",
        ) from exc
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or "no usable file name"
        raise ConfigError(
            f"The Redis URL's {what} cannot be read: {reason}.", hint="Name files that this user can read."
        ) from exc
