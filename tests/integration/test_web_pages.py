"""What pages and downloads say, without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import redis
from starlette.testclient import TestClient

from swarmkv.monitor.web.app import create_app
from swarmkv.producer import Producer
from swarmkv.protocol import keys
from swarmkv.protocol.ledger import AuditEntry, Ledger, RunQuery
from swarmkv.protocol.settings import Settings
from tests.waiting import eventually
from tests.web_support import StandIn, many_runs

DOCUMENT = "The secret of the document is four.\n" * 20


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    app = create_app(settings, settings.redis_url, "127.0.0.1")
    with TestClient(
        app, base_url="http://127.0.0.1", follow_redirects=False, headers={"accept": "text/html"}
    ) as client:
        yield client


@pytest.fixture
async def worker(ledger: Ledger) -> StandIn:
    worker = StandIn(ledger)
    await worker.arrive()
    return worker


async def test_results_come_as_json_lines_and_markdown(
    client: TestClient, producer: Producer, worker: StandIn
) -> None:
    run = await producer.submit(DOCUMENT, [("one", "What?"), ("two", "Why?"), ("three", "When?")], name="# a\nname")
    for branch in await worker.take(2):
        await worker.finish(branch, "Four.", error="It failed." if branch.index else "")
    answer = client.get(f"/runs/{run.id}/results.json")
    assert answer.headers["content-disposition"] == f'attachment; filename="swarmkv-{run.id}.json"'
    document = json.loads(answer.text)
    assert (document["run_id"], document["state"]) == (run.id, "running")
    assert [branch["state"] for branch in document["branches"]] == ["done", "failed", "queued"]
    assert document["branches"][0]["text"] == "Four."
    assert document["branches"][1]["error"]["message"] == "It failed."
    lines = [json.loads(line) for line in client.get(f"/runs/{run.id}/results.jsonl").text.splitlines()]
    assert [line["name"] for line in lines] == ["one", "two", "three"]
    markdown = client.get(f"/runs/{run.id}/results.md").text
    assert markdown.startswith("# # a name\n")
    assert "## one\n\nFour.\n" in markdown
    assert "**It failed.**" in markdown
    assert client.get(f"/runs/{run.id}/results.exe").status_code == 404


async def test_no_page_shows_the_document(client: TestClient, producer: Producer, worker: StandIn) -> None:
    run = await producer.submit(DOCUMENT, ["What?"])
    [branch] = await worker.take(1)
    await worker.finish(branch, "Four.")
    paths = [
        "/",
        "/runs",
        f"/runs/{run.id}",
        f"/runs/{run.id}/branches/0",
        f"/runs/{run.id}/results.json",
        "/metrics",
    ]
    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert "The secret" not in answer.text, path


async def test_what_is_refused_is_said_and_the_form_keeps_what_was_typed(
    client: TestClient, worker: StandIn
) -> None:
    token = re.search(r'name="form_token" value="([0-9a-f]+)"', client.get("/new").text)
    assert token is not None
    given = {"form_token": token.group(1), "model": "default", "document": "text", "prompts": "What?"}
    for change, words in (
        ({"document": ""}, "The document is empty."),
        ({"prompts": "  "}, "The run has no branches."),
        ({"model": "unheard-of"}, "No worker ever announced"),
        ({"max_tokens": "many"}, "max tokens is"),
        ({"temperature": "-1"}, "out of range"),
        ({"prompts": "a=What?\na=Why?"}, "the same name"),
    ):
        answer = client.post("/new", data={**given, **change})
        assert answer.status_code == 422, words
        assert words in answer.text
    accepted = client.post("/new", data=given)
    assert accepted.status_code == 303
    assert accepted.headers["location"].startswith("/runs/")


async def test_a_run_of_many_branches_is_shown_in_pages_and_says_of_which_part_its_sums_are(
    client: TestClient, producer: Producer, worker: StandIn
) -> None:
    run = await producer.submit(DOCUMENT, [f"Question {number}?" for number in range(120)])
    for branch in await worker.take(3):
        await worker.finish(branch, "Yes, that is so.")
    first, third = client.get(f"/runs/{run.id}").text, client.get(f"/runs/{run.id}?page=3").text
    assert [text.count('<article class="branch">') for text in (first, third)] == [50, 20]
    assert "3,000 <small>0 recomputed, this page" in first
    assert "page 3 of 3" in third
    assert 'id="row-100"' in third
    for odd in ("0", "-1", "x", "99999999", "4"):
        assert client.get(f"/runs/{run.id}?page={odd}").status_code == 200


async def test_programs_get_actions_answered_as_json(
    settings: Settings, producer: Producer, worker: StandIn
) -> None:
    run = await producer.submit(DOCUMENT, ["What?"])
    token = "admin-token-long"
    closed = settings.model_copy(update={"monitor_token": token})
    bearer = {"authorization": f"Bearer {token}"}
    with TestClient(create_app(closed, settings.redis_url, "0.0.0.0"), headers=bearer) as client:
        answer = client.post(f"/runs/{run.id}/cancel")
        assert answer.json() == {"action": "cancel", "target": run.id, "outcome": f"Run {run.id}: cancelled."}
        missing = client.post("/runs/abcdef/cancel")
        assert missing.status_code == 404
        assert "There is no run" in missing.json()["error"]["message"]
        assert client.post("/workers/branch-9/pause").status_code >= 400
        assert client.post("/workers/branch-1/fly").status_code == 404


async def test_ten_thousand_runs_are_a_page_of_fifty_lines(client: TestClient, settings: Settings) -> None:
    many_runs(settings.redis_url, 10_000)
    answer = client.get("/runs")
    assert len(answer.content) < 60_000
    assert answer.text.count("<tr>") == 51


async def test_the_catalog_sees_new_runs_ends_and_retries_and_forgets_what_expired(
    ledger: Ledger, settings: Settings, producer: Producer, worker: StandIn
) -> None:
    async def finds(count: int, **wanted: str) -> None:
        async def is_so() -> bool:
            return (await ledger.catalog.search(RunQuery(**wanted), offset=0, limit=10))[0] == count  # type: ignore[arg-type]

        await eventually(is_so)

    many_runs(settings.redis_url, 3)
    await finds(3)
    run = await producer.submit(DOCUMENT, ["What?"], name="Ünlike", document_name="paper.md")
    await producer.submit(DOCUMENT, ["What?"], name="a newer one")
    await finds(1, text="ünLIKE")
    await finds(1, text="PAPER.md", state="open")
    [branch] = await worker.take(1)
    await worker.finish(branch, error="no")
    await finds(1, state="errors", text=run.id)
    await producer.run(run.id).retry()
    await finds(1, state="open", text=run.id)
    with redis.Redis.from_url(settings.redis_url) as client:
        client.delete(keys.key("run", run=f"{0:012x}"))
    _, rows = await ledger.catalog.search(RunQuery(), offset=0, limit=10)
    assert f"{0:012x}" not in [row.run_id for row in rows]
    await finds(4)


async def test_the_audit_log_is_bounded_paged_and_cuts_long_words(ledger: Ledger) -> None:
    for number in range(5):
        await ledger.audit.record(AuditEntry("admin", "1.1.1.1", "cancel", str(number), "x" * 9_000))
    first, older = await ledger.audit.newest(3)
    rest, end = await ledger.audit.newest(3, before=older)
    assert [entry.target for entry in (*first, *rest)] == ["4", "3", "2", "1", "0"]
    assert end == ""
    assert len(first[0].outcome) == 500
    assert first[0].at_ms > 0
