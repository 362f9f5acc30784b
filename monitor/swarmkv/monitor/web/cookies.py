"""Signed cookies: a session, and one line to show on the next page. Nothing is kept on the server."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from swarmkv.monitor.web.access import Access, Principal, Role

SESSION = "swarmkv_session"
NOTICE = "swarmkv_notice"
LIFE_S = 12 * 3600
NOTICE_LIFE_S = 30
MAX_COOKIE_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class Session:
    """A browser; `principal` is None until it has logged in."""

    id: str
    principal: Principal | None


def new_session(principal: Principal | None = None) -> Session:
    """A session that nobody can guess."""
    return Session(secrets.token_urlsafe(18), principal)


def pack_session(access: Access, session: Session) -> str:
    """The value of its cookie, good for LIFE_S."""
    who = session.principal
    fields = {"id": session.id, "name": who.name if who else "", "role": who.role if who else ""}
    return sign(access.key, SESSION, fields, LIFE_S)


def read_session(access: Access, cookies: Mapping[str, str]) -> Session | None:
    """The session of a request, None if it has none that is ours and still good."""
    fields = read_signed(access.key, SESSION, cookies.get(SESSION, ""))
    if fields is None:
        return None
    known = fields["role"] in get_args(Role)
    return Session(fields["id"], Principal(fields["name"], fields["role"]) if known else None)


def form_token(access: Access, session: Session) -> str:
    """What a form must carry, so that no other site can send it."""
    return hmac.digest(access.key, f"form:{session.id}".encode(), hashlib.sha256).hex()


def sign(key: bytes, purpose: str, fields: Mapping[str, Any], life_s: float) -> str:
    """Fields as a text that only the holder of the key can make."""
    body = base64.urlsafe_b64encode(json.dumps({**fields, "until": time.time() + life_s}).encode()).decode()
    return f"{body}.{_seal(key, purpose, body)}"


def read_signed(key: bytes, purpose: str, text: str) -> dict[str, Any] | None:
    """The fields that `sign` was given; None for anything else, and behind its time."""
    body, _, seal = text.partition(".")
    if len(text) > MAX_COOKIE_CHARS or not hmac.compare_digest(seal.encode(), _seal(key, purpose, body).encode()):
        return None
    try:
        fields: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body))
    except (ValueError, binascii.Error):
        return None
    return fields if fields["until"] > time.time() else None


def _seal(key: bytes, purpose: str, body: str) -> str:
    return hmac.digest(key, f"{purpose}:{body}".encode(), hashlib.sha256).hex()
