"""What running branches have said so far, for those who look before the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from swarmkv.producer import Producer, RunHandle
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.settings import Settings
from tests import played_worker
from tests.command import Home


@pytest.fixture
async def run(settings: Settings) -> AsyncIterator[RunHandle]:
    """A run of three branches that nobody has taken."""
    async with Producer(settings=settings) as producer:
        prompts = [("a", "Which?"), ("b", "Why?"), ("c", "When?")]
        yield await producer.submit("A text.", prompts, any_model=True)


async def texts(run: RunHandle) -> list[str]:
    return [branch.text for branch in (await run.so_far()).branches]


async def test_running_branches_tell_what_they_have_said_and_others_their_result(
    run: RunHandle, ledger: Ledger
) -> None:
    assert await texts(run) == ["", "", ""]
    a, b, _ = await played_worker.begin(ledger)
    await played_worker.say(ledger, a, "The retry ", "limit")
    await played_worker.say(ledger, b, "Bec")
    await played_worker.finish(ledger, b, "Because.")
    assert await texts(run) == ["The retry limit", "Because.", ""]
    assert [branch.text for branch in (await run.report()).branches] == ["", "Because.", ""]


async def test_words_of_an_attempt_that_was_given_up_are_void(run: RunHandle, ledger: Ledger) -> None:
    a, *_ = await played_worker.begin(ledger)
    await played_worker.say(ledger, a, "Old words")
    await ledger.jobs.hand_back(played_worker.WORKER, [a.job_id], reason="it stops")
    assert (await texts(run))[0] == ""
    [again] = await played_worker.begin(ledger)
    await played_worker.say(ledger, again, "New")
    assert (await texts(run))[0] == "New"


async def test_a_beginning_that_the_bounded_stream_has_lost_is_shown_as_cut(
    run: RunHandle, ledger: Ledger, redis_url: str
) -> None:
    a, *_ = await played_worker.begin(ledger)
    await played_worker.say(ledger, a, "The retry ")
    redis.Redis.from_url(redis_url).xtrim(f"swarmkv:run:{run.id}:events", maxlen=0, approximate=False)
    await played_worker.say(ledger, a, "limit", said_before="The retry ")
    assert (await texts(run))[0] == "…limit"


async def test_results_and_show_print_what_is_there(
    run: RunHandle, ledger: Ledger, settings: Settings, tmp_path: Path
) -> None:
    a, *_ = await played_worker.begin(ledger)
    await played_worker.say(ledger, a, "The retry limit\n", "is \x1b[2Jfour")
    home = Home(tmp_path).with_settings(redis_url=settings.redis_url)
    results = home.run("results", run.id)
    assert results.code == 3
    assert results.stdout.startswith("a (running)\nThe retry limit\nis ␛[2Jfour\n")
    shown = home.run("show", run.id)
    assert "\na: The retry limit is ␛[2Jfour\n" in shown.stdout
    documents = [home.run(command, run.id, "--json").json for command in ("results", "show")]
    assert [document["branches"][0]["text"] for document in documents] == ["The retry limit\nis \x1b[2Jfour"] * 2
