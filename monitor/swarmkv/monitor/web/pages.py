"""Rendering: templates with everything escaped, the frame around each page, errors for people."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from swarmkv.monitor.web import cookies, formats
from swarmkv.monitor.web.assets import asset_url
from swarmkv.monitor.web.site import site_of
from swarmkv.protocol.errors import (
    BrokerError,
    ConfigError,
    EntryNotFound,
    InvalidInput,
    Overloaded,
    RunNotFound,
    SwarmkvError,
)

NAVIGATION = (
    ("/", "Overview"),
    ("/runs", "Runs"),
    ("/snapshots", "Snapshots"),
    ("/workers", "Workers"),
    ("/dead", "Dead letter"),
    ("/audit", "Audit"),
)
_STATUS: tuple[tuple[type[SwarmkvError], int], ...] = (
    (RunNotFound, 404),
    (EntryNotFound, 404),
    (Overloaded, 429),
    (InvalidInput, 422),
    (ConfigError, 501),
    (BrokerError, 503),
)


@functools.cache
def environment() -> jinja2.Environment:
    """The templates; every value is escaped, and a misspelt name is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("swarmkv.monitor.web", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(formats.FILTERS)
    environment.globals.update(
        asset_url=asset_url, navigation=NAVIGATION, version=importlib.metadata.version("swarmkv"), query=query
    )
    return environment


def query(**fields: object) -> str:
    """`?a=1&b=2` of what is set."""
    given = {name: value for name, value in fields.items() if value not in ("", None)}
    return "?" + urlencode(given) if given else ""


def render(name: str, **context: Any) -> str:
    """A template that needs nothing of the request."""
    return environment().get_template(name).render(**context)


def page(request: Request, name: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A whole page for who asks, with what the last action had to say."""
    site, state = site_of(request), request.state
    notice = cookies.read_signed(site.access.key, cookies.NOTICE, request.cookies.get(cookies.NOTICE, ""))
    html = render(
        name,
        **context,
        principal=state.principal,
        can_act=state.principal is not None and state.principal.can_act,
        is_open=site.access.is_open,
        form_token=state.form_token,
        here=request.url.path,
        back=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        notice=notice,
    )
    response = HTMLResponse(html, status)
    if state.is_new_session:
        set_session(request, response, state.session)
    if notice is not None:
        response.delete_cookie(cookies.NOTICE)
    return response


def set_session(request: Request, response: Response, session: cookies.Session) -> None:
    """Give the browser a session."""
    value = cookies.pack_session(site_of(request).access, session)
    _set_cookie(request, response, cookies.SESSION, value, cookies.LIFE_S)


def go(request: Request, path: str, *, notice: str = "", is_error: bool = False) -> Response:
    """To one of our own pages, which then shows a line."""
    response = RedirectResponse(own_path(path), 303)
    if notice:
        fields = {"text": notice[:1_000], "is_error": is_error}
        value = cookies.sign(site_of(request).access.key, cookies.NOTICE, fields, cookies.NOTICE_LIFE_S)
        _set_cookie(request, response, cookies.NOTICE, value, cookies.NOTICE_LIFE_S)
    return response


def own_path(path: str) -> str:
    """A path of this site; anything else is the first page."""
    is_own = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if is_own else "/"


def show_error(
    request: Request, status: int, text: str, *, hint: str = "", headers: Mapping[str, str] | None = None
) -> Response:
    """An error as a page, or as JSON for programs."""
    if "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"error": {"message": text, "hint": hint}}, status, headers)
    response = page(request, "error.html", status=status, text=text, hint=hint, code=status)
    response.headers.update(headers or {})
    return response


def show_our_error(request: Request, exc: Exception) -> Response:
    """What the ledger refused, in its own words."""
    assert isinstance(exc, SwarmkvError)
    return show_error(request, status_of(exc), exc.message, hint=exc.hint)


def status_of(exc: SwarmkvError) -> int:
    """The HTTP status of an error."""
    return next((status for kind, status in _STATUS if isinstance(exc, kind)), 500)


def _set_cookie(request: Request, response: Response, name: str, value: str, life_s: int) -> None:
    is_secure = request.url.scheme == "https"
    response.set_cookie(name, value, max_age=life_s, httponly=True, samesite="strict", secure=is_secure, path="/")
