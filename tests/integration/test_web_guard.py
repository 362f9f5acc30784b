"""What every request passes: identity, role, form token, host, size; and what every answer carries."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from swarmkv.monitor.web.app import ROUTES, create_app
from swarmkv.monitor.web.throttle import FREE_TRIES
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.settings import Settings

TOKEN, READ_TOKEN = "admin-token-long", "reader-token-long"
HTML = {"accept": "text/html"}
PUBLIC = {"/login", "/static/{name}", "/healthz", "/readyz"}
GETS = [route.path for route in ROUTES if "GET" in (route.methods or ())]
POSTS = [route.path for route in ROUTES if "POST" in (route.methods or ())]


def client_of(settings: Settings, **changes: object) -> TestClient:
    settings = settings.model_copy(update=changes)
    app = create_app(settings, settings.redis_url, "127.0.0.1")
    return TestClient(app, base_url="http://127.0.0.1", follow_redirects=False, headers=HTML)


@pytest.fixture
def closed(settings: Settings) -> Iterator[TestClient]:
    """A page with both tokens, of which none was given yet."""
    with client_of(settings, monitor_token=TOKEN, monitor_read_token=READ_TOKEN) as client:
        yield client


@pytest.fixture
def opened(settings: Settings) -> Iterator[TestClient]:
    """A page without tokens."""
    with client_of(settings) as client:
        yield client


def form_token(client: TestClient, path: str = "/new") -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', client.get(path).text)
    assert found is not None
    return found.group(1)


def log_in(client: TestClient, token: str) -> None:
    answer = client.post("/login", data={"form_token": form_token(client, "/login"), "token": token})
    assert answer.status_code == 303, answer.text


def address(path: str) -> str:
    values = {"{run}": "ab", "{index:int}": "0", "{kind}": "json", "{name}": "app.css", "{entry}": "ab:0"}
    values |= {"{store}": "s", "{snapshot}": "0" * 32, "{worker}": "w"}
    for part, value in values.items():
        path = path.replace(part, value)
    return path


@pytest.mark.parametrize("path", GETS)
def test_nobody_sees_anything_without_a_token(closed: TestClient, path: str) -> None:
    as_page = closed.get(address(path))
    as_program = closed.get(address(path), headers={"accept": "application/json"})
    if path in PUBLIC:
        assert as_page.status_code in (200, 303)
    else:
        assert as_page.headers["location"].startswith("/login")
        assert as_program.status_code == 401


@pytest.mark.parametrize("path", [path for path in POSTS if path not in ("/login", "/logout")])
def test_nobody_does_anything_without_a_token_and_a_reader_nothing_at_all(closed: TestClient, path: str) -> None:
    assert closed.post(address(path)).status_code == 401
    assert closed.post(address(path), headers={"authorization": f"Bearer {READ_TOKEN}"}).status_code == 403
    log_in(closed, READ_TOKEN)
    answer = closed.post(address(path), data={"form_token": form_token(closed, "/audit"), "back": "/"})
    assert answer.status_code == 403
    assert "look, and change nothing" in answer.text


def test_a_reader_logs_out(closed: TestClient) -> None:
    log_in(closed, READ_TOKEN)
    assert closed.post("/logout", data={"form_token": form_token(closed, "/audit")}).status_code == 303
    assert closed.get("/runs").status_code == 303


async def test_what_a_reader_asked_for_is_in_the_audit_log(closed: TestClient, ledger: Ledger) -> None:
    closed.post("/runs/ab/cancel", headers={"authorization": f"Bearer {READ_TOKEN}"})
    entries, _ = await ledger.audit.newest(10)
    assert [(entry.who, entry.target) for entry in entries] == [("read token", "/runs/ab/cancel")]
    assert entries[0].action.startswith("refused")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic ====="},
        {"authorization": "Basic " + "eDp5"},
        {"cookie": "swarmkv_session=eyJpZCI6IngiLCJuYW1lIjoieCIsInJvbGUiOiJhZG1pbiJ9.0000"},
    ],
)
def test_wrong_secrets_and_forged_cookies_open_nothing(closed: TestClient, headers: dict[str, str]) -> None:
    assert closed.get("/runs", headers={**headers, "accept": "*/*"}).status_code == 401


def test_tokens_work_as_bearer_as_basic_password_and_by_the_form(closed: TestClient) -> None:
    assert closed.get("/runs", headers={"authorization": f"Bearer {READ_TOKEN}"}).status_code == 200
    assert closed.get("/runs", auth=("anybody", TOKEN)).status_code == 200
    assert closed.get("/runs").status_code == 303
    log_in(closed, TOKEN)
    assert closed.get("/runs").status_code == 200
    assert closed.post("/logout", data={"form_token": form_token(closed)}).status_code == 303
    assert closed.get("/runs").status_code == 303


def test_the_session_cookie_cannot_be_read_by_scripts_or_sent_by_other_sites(closed: TestClient) -> None:
    cookie = closed.get("/login").headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    behind_tls = TestClient(closed.app, base_url="https://127.0.0.1", follow_redirects=False, headers=HTML)
    assert "secure" in behind_tls.get("/login").headers["set-cookie"].lower()


def test_a_form_of_another_site_is_refused(opened: TestClient) -> None:
    data = {"form_token": form_token(opened), "back": "/runs"}
    assert opened.post("/runs/ab/cancel", data=data).status_code == 303
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        assert opened.post("/runs/ab/cancel", data=data, headers=headers).status_code == 403, headers
    assert opened.post("/runs/ab/cancel", data=data, headers={"origin": "http://127.0.0.1"}).status_code == 303


def test_a_form_without_its_token_or_with_that_of_another_session_is_refused(opened: TestClient) -> None:
    another = TestClient(opened.app, base_url="http://127.0.0.1", headers=HTML).get("/nothing").text
    [stolen] = re.findall(r'data-form-token="([0-9a-f]+)"', another)
    form_token(opened)
    for data in ({}, {"form_token": ""}, {"form_token": stolen}):
        assert opened.post("/runs/ab/cancel", data=data).status_code == 403
    assert opened.post("/runs/ab/cancel", content=b"\x00\xff", headers={"content-type": "x/y"}).status_code == 403
    broken = {"content-type": "multipart/form-data; boundary=x"}
    assert opened.post("/runs/ab/cancel", content=b"--x\r\nnonsense", headers=broken).status_code in (400, 403)


def test_who_guesses_tokens_is_made_to_wait_in_every_way_of_giving_them(closed: TestClient) -> None:
    token = form_token(closed, "/login")
    for _ in range(FREE_TRIES):
        assert closed.post("/login", data={"form_token": token, "token": "wrong"}).status_code == 401
    refused = closed.post("/login", data={"form_token": token, "token": TOKEN})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 0
    assert closed.get("/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 429


def test_a_foreign_name_for_this_machine_is_not_answered(opened: TestClient) -> None:
    assert opened.get("/runs", headers={"host": "evil.example"}).status_code == 421
    assert opened.get("/runs", headers={"host": "localhost:8765"}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/runs", "/nothing", "/static/app.js", "/login", "/runs/ab"])
def test_every_answer_forbids_what_pages_here_never_do(opened: TestClient, path: str) -> None:
    headers = opened.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert ("no-store" in headers["cache-control"]) != path.startswith("/static/")


def test_no_page_has_scripts_styles_or_handlers_inside(opened: TestClient) -> None:
    for path in ("/", "/runs", "/new", "/workers", "/snapshots", "/dead", "/audit", "/login"):
        html = opened.get(path).text
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", html), path
        assert not re.search(r'(?:src|href|action)="(?!/|#)', html), path


def test_a_body_beyond_all_limits_is_not_read(settings: Settings) -> None:
    with client_of(settings, max_document_bytes=1_000, max_prompt_bytes=1_000) as client:
        data = {"form_token": form_token(client), "document": "x" * 200_000, "prompts": "What?"}
        assert client.post("/new", data=data).status_code == 413


def test_methods_that_no_page_has_are_refused(opened: TestClient) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert opened.request(method, "/runs/ab").status_code == 405


def test_a_redis_that_is_away_is_said_in_words(settings: Settings) -> None:
    with client_of(settings, redis_url="redis://127.0.0.1:1/0") as client:
        answer = client.get("/runs")
        assert answer.status_code == 503
        assert "Redis cannot be reached" in answer.text
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503


def test_every_address_is_a_route_that_these_tests_see() -> None:
    assert all(isinstance(route, Route) for route in ROUTES)
    assert len(POSTS) >= 9
