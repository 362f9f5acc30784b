"""The page in a real browser, as a person uses it; what a worker says is written by hand."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from swarmkv.producer import Producer
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.settings import Settings
from tests.processes import fleet_of
from tests.web_support import CHROMIUM, StandIn, chromium, many_runs, monitor_of

pytestmark = pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"{CHROMIUM} is not installed on this machine")
TOKEN, READ_TOKEN = "admin-token-long", "reader-token-long"
EVIL = "<img src=x onerror=\"document.title='broken in'\"><script>document.title='broken in'</script>"
DOCUMENT = "The retry limit is four.\n" * 20


@pytest.fixture
def monitor(settings: Settings) -> Iterator[str]:
    with monitor_of(settings) as address:
        yield address


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page on which nothing may go wrong unseen: a script's error or a refusal of the policy fails the test."""
    page = await browser.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if "Content Security Policy" in said.text else None)
    yield page
    assert problems == []


@pytest.fixture
async def worker(ledger: Ledger) -> StandIn:
    worker = StandIn(ledger)
    await worker.arrive()
    return worker


async def test_a_run_is_submitted_by_form_and_answered_by_a_real_worker(
    page: Page, monitor: str, settings: Settings, producer: Producer, tmp_path: Path
) -> None:
    document = tmp_path / "agreement.txt"
    document.write_text(DOCUMENT)
    with fleet_of(settings.model_copy(update={"null_engine": True}), tmp_path / "logs") as fleet:
        fleet.start("all", "null")
        await fleet.ready(producer, 2)
        await page.goto(f"{monitor}/new")
        await page.get_by_label("Document").first.set_input_files(document)
        await page.get_by_label("Prompts").fill("limit=How many?\nWhy is that?")
        await page.get_by_label("Tokens of an answer").fill("5")
        await page.get_by_role("button", name="Submit run").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("agreement.txt")
        await expect(page.locator("#run-head .state").first).to_have_text("done")
        await expect(page.locator("#text-0 .answer")).to_contain_text("-4")
        await expect(page.locator("#row-1")).to_contain_text("branch-2")
        await page.get_by_role("link", name="limit").click()
        await expect(page.locator("pre.whole").nth(0)).to_have_text("How many?")
        await expect(page.locator("pre.whole").nth(1)).to_contain_text("-4")


async def test_words_appear_as_they_are_said_and_a_new_attempt_begins_anew(
    page: Page, monitor: str, producer: Producer, worker: StandIn, ledger: Ledger
) -> None:
    run = await producer.submit(DOCUMENT, [("one", "What?"), ("two", "Why?")])
    await page.goto(f"{monitor}/runs/{run.id}")
    branches = await worker.take(2)
    tail = page.locator('[data-tail="0"]')
    await worker.say(branches, "Four ")
    await expect(tail).to_have_text("Four ")
    await worker.say(branches, "times.")
    await expect(tail).to_have_text("Four times.")
    await ledger.jobs.hand_back("branch-1", [branches[0].job_id], reason="a test")
    [again] = await worker.take(1)
    worker.said.clear()
    await worker.say([again], "No: five.")
    await expect(tail).to_have_text("No: five.")
    await worker.finish(again)
    await worker.finish(branches[1], "Because.")
    await expect(page.locator("#text-0 .answer")).to_have_text("No: five.")
    await expect(page.locator("#run-head .state").first).to_have_text("done")
    await expect(page.locator("#row-0 svg rect.decode")).to_have_count(1)


async def test_who_comes_late_sees_what_was_said_and_pausing_holds_the_page_still(
    page: Page, monitor: str, producer: Producer, worker: StandIn
) -> None:
    run = await producer.submit(DOCUMENT, ["What?"])
    branches = await worker.take(1)
    await worker.say(branches, "Said before. ")
    await page.goto(f"{monitor}/runs/{run.id}")
    tail = page.locator('[data-tail="0"]')
    await expect(tail).to_have_text("Said before. ")
    await page.keyboard.press("p")
    await expect(page.locator("#live")).to_have_text("Paused")
    await worker.say(branches, "Said meanwhile. ")
    await worker.finish(branches[0])
    assert await producer.run(run.id).results(10)
    await expect(tail).to_have_text("Said before. ")
    await page.keyboard.press("p")
    await expect(page.locator("#text-0 .answer")).to_have_text("Said before. Said meanwhile.")


async def test_a_run_is_cancelled_and_tried_again_and_the_log_says_who_did_it(
    page: Page, monitor: str, producer: Producer, worker: StandIn
) -> None:
    run = await producer.submit(DOCUMENT, [("one", "What?"), ("two", "Why?")])
    branches = await worker.take(2)
    await worker.finish(branches[0], error="llama.cpp refused a batch.")
    await page.goto(f"{monitor}/runs/{run.id}")
    await expect(page.locator("#text-0 .problem")).to_contain_text("llama.cpp refused a batch. Try it again.")
    page.on("dialog", lambda dialog: dialog.accept())
    await page.get_by_role("button", name="Cancel run").click()
    await expect(page.get_by_role("status")).to_contain_text("cancelled")
    await expect(page.locator("#row-1 .state")).to_have_text("cancelled")
    await page.get_by_role("button", name="Retry 2").click()
    await expect(page.get_by_role("status")).to_contain_text("2 branches are queued again")
    for branch in await worker.take(2):
        await worker.finish(branch, "Yes.")
    await expect(page.locator("#run-head .state").first).to_have_text("done")
    await page.goto(f"{monitor}/audit")
    rows = page.locator("tbody tr")
    await expect(rows.nth(0)).to_contain_text(re.compile(rf"local.*retry.*{run.id}.*2 branches are queued again"))
    await expect(rows.nth(1)).to_contain_text(re.compile(rf"local.*cancel.*{run.id}.*cancelled"))


async def test_one_branch_is_cancelled_by_a_button_that_came_with_a_live_update(
    page: Page, monitor: str, producer: Producer, worker: StandIn
) -> None:
    run = await producer.submit(DOCUMENT, [("one", "What?"), ("two", "Why?")])
    await page.goto(f"{monitor}/runs/{run.id}")
    await worker.take(2)
    await expect(page.locator("#row-0 .state")).to_have_text("running")
    await page.locator("#cancel-0").click()
    await expect(page.get_by_role("status")).to_contain_text("one of run")
    report = await producer.run(run.id).report()
    assert [branch.state for branch in report.branches] == ["cancelled", "running"]


async def test_ten_thousand_runs_are_searched_by_id_name_document_and_state_and_paged(
    page: Page, settings: Settings, monitor: str
) -> None:
    many_runs(settings.redis_url, 10_000)
    await page.goto(f"{monitor}/runs")
    await expect(page.locator("tbody tr")).to_have_count(50)
    await expect(page.locator("tbody tr").first).to_contain_text("review-9999")
    await expect(page.locator(".foot")).to_contain_text("of 10,000")
    await page.get_by_role("link", name="Older →").click()
    await expect(page.locator("tbody tr").first).to_contain_text("review-9949")
    for text, count in ((f"{77:012x}", "1"), ("REVIEW-777", "11"), ("paper-3", "1,429")):
        await page.keyboard.press("/")
        await page.keyboard.type(text)
        await page.keyboard.press("Enter")
        await expect(page.locator(".foot")).to_contain_text(f"of {count}")
    await page.get_by_label("State").select_option("errors")
    await expect(page.locator(".foot")).to_contain_text(re.compile("of 14[0-9]"))
    await page.goto(f"{monitor}/runs?q=nothing+of+the+kind")
    await expect(page.get_by_text("No run matches.")).to_be_visible()


async def test_a_new_run_comes_into_the_list_by_itself(
    page: Page, monitor: str, producer: Producer, worker: StandIn
) -> None:
    await page.goto(f"{monitor}/runs")
    await expect(page.get_by_text("No runs yet.")).to_be_visible()
    run = await producer.submit(DOCUMENT, ["What?"], name="came later")
    await expect(page.locator(f"#run-{run.id}")).to_have_text("came later")
    await expect(page.locator("tbody .state")).to_have_text("queued")
    [branch] = await worker.take(1)
    await worker.finish(branch, "Yes.")
    await expect(page.locator("tbody .state")).to_have_text("done")


async def test_markup_in_names_prompts_outputs_and_errors_is_text_everywhere(
    page: Page, monitor: str, producer: Producer, worker: StandIn
) -> None:
    run = await producer.submit(DOCUMENT, [("one", EVIL), ("two", "Why?")], name=EVIL, document_name=EVIL)
    await page.goto(f"{monitor}/runs/{run.id}")
    branches = await worker.take(2)
    await worker.say(branches, EVIL)
    await expect(page.locator('[data-tail="0"]')).to_have_text(EVIL)
    await worker.finish(branches[0])
    await worker.finish(branches[1], error=EVIL)
    await expect(page.locator("#text-0 .answer")).to_have_text(EVIL)
    await expect(page.locator("#text-1 .problem strong")).to_have_text(EVIL)
    await expect(page.locator("h1")).to_have_text(EVIL)
    for path in (f"/runs/{run.id}", "/runs", f"/runs/{run.id}/branches/0", f"/runs/{run.id}/branches/1"):
        await page.goto(monitor + path)
        await expect(page.locator("body")).to_contain_text("onerror")
        assert await page.locator('img[src="x"]').count() == 0
        assert await page.title() != "broken in"
    await page.goto(f"{monitor}/runs?q={EVIL}")
    await expect(page.locator("tbody tr")).to_have_count(1)
    assert await page.title() != "broken in"


async def test_a_reader_sees_runs_and_no_buttons_and_is_refused_by_the_server(
    page: Page, settings: Settings, producer: Producer, worker: StandIn
) -> None:
    run = await producer.submit(DOCUMENT, ["What?"])
    with monitor_of(settings, monitor_token=TOKEN, monitor_read_token=READ_TOKEN) as monitor:
        await page.goto(f"{monitor}/runs/{run.id}")
        await page.get_by_label("Token").fill("a wrong token")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_contain_text("not known")
        await page.get_by_label("Token").fill(READ_TOKEN)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator("h1")).to_have_text(run.id)
        await expect(page.get_by_text("Read-only")).to_be_visible()
        await worker.take(1)
        await expect(page.locator("#row-0 .state")).to_have_text("running")
        assert await page.get_by_role("button", name="Cancel").count() == 0
        token = await page.evaluate("document.body.dataset.formToken")
        status = await page.evaluate(
            """async ([path, token]) => (await fetch(path, {method: "POST",
               body: new URLSearchParams({form_token: token})})).status""",
            [f"/runs/{run.id}/cancel", token],
        )
        assert status == 403
        assert (await producer.run(run.id).report()).state == "running"
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("heading", name="Log in")).to_be_visible()


async def test_an_answer_of_three_megabytes_is_read_in_parts(
    page: Page, monitor: str, producer: Producer, worker: StandIn
) -> None:
    run = await producer.submit(DOCUMENT, ["What?"])
    [branch] = await worker.take(1)
    await worker.finish(branch, "".join(f"{number:07d} " for number in range(393_216)))
    await page.goto(f"{monitor}/runs/{run.id}")
    await expect(page.locator("#text-0")).to_contain_text("all 3,145,728 characters")
    assert len(await page.content()) < 50_000
    await page.get_by_role("link", name="all 3,145,728 characters").click()
    await expect(page.get_by_text("part 1 of 158")).to_be_visible()
    assert len(await page.content()) < 60_000
    await page.get_by_role("link", name="After →").click()
    await expect(page.locator("pre.whole").nth(1)).to_contain_text("0002500 ")


async def test_the_whole_page_is_reached_by_keyboard_and_the_theme_is_kept(page: Page, monitor: str) -> None:
    await page.goto(f"{monitor}/runs")
    await page.keyboard.press("Tab")
    await expect(page.get_by_text("Skip to content")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await expect(page.get_by_label("Search by id, name or document")).to_be_focused()
    await page.get_by_role("button", name="Theme").click()
    await page.get_by_role("button", name="Theme").click()
    await page.reload()
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 19, 21)"


async def test_nothing_is_wider_than_a_phone(
    browser: Browser, monitor: str, producer: Producer, worker: StandIn
) -> None:
    run = await producer.submit(
        DOCUMENT, [("a-name-of-sixty-four-letters-which-is-as-long-as-it-may-be-for-u", "What?")]
    )
    page = await browser.new_page(viewport={"width": 360, "height": 740})
    for path in ("/", "/runs", f"/runs/{run.id}", "/new", "/workers", "/snapshots", "/dead", "/audit"):
        await page.goto(monitor + path)
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, path
