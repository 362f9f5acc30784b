"""Logging in with a token, and out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.web import cookies, pages
from swarmkv.monitor.web.guard import address_of
from swarmkv.monitor.web.site import site_of


async def login_form(request: Request) -> Response:
    """GET /login"""
    if request.state.principal is not None:
        return pages.go(request, "/")
    return _form(request, request.query_params.get("next", "/"), "")


async def login(request: Request) -> Response:
    """POST /login: token, or user and password."""
    site, form = site_of(request), request.state.form
    user, secret = str(form.get("user", "")), str(form.get("token", "")).strip()
    wanted = str(form.get("next", "/"))
    principal = site.access.by_password(user, secret) if secret else None
    if principal is None:
        site.throttle.failed(address_of(request))
        await site.record(request, "login", "", "refused: wrong token")
        return _form(request, wanted, "That token is not known here.", status=401)
    site.throttle.succeeded(address_of(request))
    request.state.principal = principal
    await site.record(request, "login", "", f"as {principal.role}")
    response = pages.go(request, wanted)
    pages.set_session(request, response, cookies.new_session(principal))
    return response


async def logout(request: Request) -> Response:
    """POST /logout"""
    response = pages.go(request, "/login")
    response.delete_cookie(cookies.SESSION)
    return response


def _form(request: Request, wanted: str, problem: str, *, status: int = 200) -> Response:
    has_user = bool(site_of(request).access.user)
    return pages.page(request, "login.html", status=status, problem=problem, next=wanted, has_user=has_user)
