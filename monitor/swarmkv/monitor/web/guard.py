"""What every request passes before a page sees it: host, identity, role, form token, size. One place for all.

Refusals are errors with words; the audit log hears of those that wanted to change something.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swarmkv.monitor.web import cookies
from swarmkv.monitor.web.access import LOCAL, Principal
from swarmkv.monitor.web.pages import show_error, show_our_error
from swarmkv.monitor.web.site import Site
from swarmkv.protocol.errors import SwarmkvError

PUBLIC = ("/static/", "/healthz", "/readyz")
LOGIN = "/login"
LOGOUT = "/logout"  # which readers may, too
SAFE_METHODS = ("GET", "HEAD")
MAX_FIELDS = 200
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Refused(HTTPException):
    """A request that is not carried out, and why."""


class Guard:
    """ASGI middleware; behind it `request.state` has `principal`, `session` and, for a POST, `form`."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app = app
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, _bounded(receive, self._site.max_body_bytes))
        send = _with_headers(send)
        try:
            response = await self._checked(request)
        except HTTPException as exc:
            response = show_error(request, exc.status_code, exc.detail, headers=exc.headers)
        except SwarmkvError as exc:
            response = show_our_error(request, exc)
        try:
            await (response or self._app)(scope, request.receive, send)
        finally:
            if (form := getattr(request.state, "form", None)) is not None:
                await form.close()  # files that were sent

    async def _checked(self, request: Request) -> Response | None:
        """None to go on; raises Refused."""
        access, state, path = self._site.access, request.state, request.url.path
        state.site, state.principal = self._site, None
        state.session = cookies.read_session(access, request.cookies)
        state.is_new_session = state.session is None
        state.session = state.session or cookies.new_session()
        state.form_token = cookies.form_token(access, state.session)
        if not access.accepts_host(request.headers.get("host", "")):
            raise Refused(
                421, "This page does not go by that name. Behind a proxy, set SWARMKV_MONITOR_ALLOWED_HOSTS."
            )
        if path.startswith(PUBLIC):
            _check_method(request, SAFE_METHODS)
            return None
        state.principal, by_bearer = self._identify(request)
        if path == LOGIN:
            if request.method not in SAFE_METHODS:
                await self._check_form(request)
            return None
        if state.principal is None:
            return _ask_who(request)
        if request.method not in SAFE_METHODS:
            _check_method(request, ("POST",))
            await self._check_role(request)
            await self._check_form(request, is_trusted=by_bearer)
        return None

    def _identify(self, request: Request) -> tuple[Principal | None, bool]:
        """Who asks, and whether by a header that no browser sends on its own."""
        access = self._site.access
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        if not access.is_open and scheme.lower() in ("bearer", "basic"):
            self._check_patience(request)
            by_bearer = scheme.lower() == "bearer"
            principal = access.by_token(value.strip()) if by_bearer else access.by_password(*_basic(value))
            if principal is None:
                self._site.throttle.failed(address_of(request))
                raise Refused(401, "That token or password is not known here.")
            return principal, by_bearer
        return request.state.session.principal or (LOCAL if access.is_open else None), False

    def _check_patience(self, request: Request) -> None:
        if wait_s := self._site.throttle.wait_s(address_of(request)):
            raise Refused(
                429,
                f"Too many wrong tokens from this address: try again in {wait_s:.0f} s.",
                headers={"retry-after": f"{wait_s:.0f}"},
            )

    async def _check_role(self, request: Request) -> None:
        principal: Principal = request.state.principal
        if not principal.can_act and request.url.path != LOGOUT:
            await self._site.record(request, "refused: read-only", request.url.path, "asked for by a reader")
            raise Refused(403, "You may look, and change nothing: this needs the administrator's token.")

    async def _check_form(self, request: Request, *, is_trusted: bool = False) -> None:
        """Read the form, and see that one of our own pages sent it."""
        if request.url.path == LOGIN:
            self._check_patience(request)
        _check_origin(request)
        request.state.form = form = await _form(request, self._site.max_body_bytes)
        is_ours = not request.state.is_new_session and form.get("form_token") == request.state.form_token
        if not is_trusted and not is_ours:
            raise Refused(403, "This form is out of date, or another site sent it. Reload the page and try again.")


def address_of(request: Request) -> str:
    """Where a request comes from; a proxy on this machine says for whom it asks."""
    return request.client.host if request.client else "unknown"


async def _form(request: Request, max_bytes: int) -> FormData:
    try:
        return await request.form(max_files=4, max_fields=MAX_FIELDS, max_part_size=max_bytes)
    except HTTPException:
        raise
    except Exception as exc:  # what the parser raises has no common base
        raise Refused(400, "This is no form that can be read.") from exc


def _check_origin(request: Request) -> None:
    """Browsers say which site sends a form."""
    origin = request.headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
    if foreign or request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refused(403, "Another site sent this form; nothing was done.")


def _basic(value: str) -> tuple[str, str]:
    try:
        user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password


def _ask_who(request: Request) -> Response:
    if request.method in SAFE_METHODS and "text/html" in request.headers.get("accept", ""):
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(LOGIN if wanted == "/" else f"{LOGIN}?{urlencode({'next': wanted})}", 303)
    raise Refused(401, "Say who you are: Authorization: Bearer TOKEN.", headers={"www-authenticate": "Bearer"})


def _check_method(request: Request, known: tuple[str, ...]) -> None:
    if request.method not in known:
        raise Refused(405, "This page does not know that method.")


def _bounded(receive: Receive, max_bytes: int) -> Receive:
    """Stops reading a body that is larger than anything we accept."""
    read_bytes = 0

    async def counted() -> Message:
        nonlocal read_bytes
        message = await receive()
        read_bytes += len(message.get("body", b""))
        if read_bytes > max_bytes:
            raise Refused(413, f"What was sent is over the limit of {max_bytes:,} bytes.")
        return message

    return counted


def _with_headers(send: Send) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            present: list[Any] = list(message.get("headers", []))
            names = {name.lower() for name, _ in present}
            extra = {**HEADERS, "cache-control": "no-store"}
            present += [(n.encode(), v.encode()) for n, v in extra.items() if n.encode() not in names]
            message = {**message, "headers": present}
        await send(message)

    return sender
