"""One run: its page, its branches' whole texts, cancelling and trying again."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.web import pages
from swarmkv.monitor.web.routes.actions import act
from swarmkv.monitor.web.run_feed import RunSource
from swarmkv.monitor.web.run_page import RunPage
from swarmkv.monitor.web.site import site_of

TEXT_CHARS = 20_000  # of a text on one page


async def run_page(request: Request) -> Response:
    """GET /runs/{run}"""
    shown = _page(request)
    await shown.read()
    token = request.state.form_token
    return pages.page(request, "run.html", **shown.context(form_token=token))


async def run_events(request: Request) -> Response:
    """GET /live/runs/{run}"""
    site, shown = site_of(request), _page(request)
    await shown.read()  # a run that is not there is said at once
    can_act = request.state.principal.can_act
    key = ("run", shown.run_id, shown.number, can_act)
    return site.hub.stream(key, lambda: RunSource(site.ledger, shown))


async def branch_page(request: Request) -> Response:
    """GET /runs/{run}/branches/{index}: prompt and answer, a piece of each."""
    site, run_id = site_of(request), request.path_params["run"]
    index = int(request.path_params["index"])
    run = await site.ledger.inspection.run(run_id)
    spec = await site.ledger.inspection.spec(run_id, index)
    [branch] = await site.ledger.inspection.branches(run_id, [index])
    result = await site.ledger.inspection.result(run_id, index)
    return pages.page(
        request,
        "branch.html",
        run=run,
        branch=branch,
        spec=spec,
        answer=Excerpt.of(request, "page", result.text if result else ""),
        prompt=Excerpt.of(request, "prompt", spec.prompt),
    )


async def cancel(request: Request) -> Response:
    """POST /runs/{run}/cancel: all that is open of it, or the branches that are named."""
    run_id = request.path_params["run"]
    names = _branches(request)

    async def work() -> str:
        was_open = await site_of(request).producer.run(run_id).cancel(*names)
        what = f"{', '.join(names)} of run {run_id}" if names else f"Run {run_id}"
        return f"{what}: cancelled." if was_open else f"{what} had already ended."

    return await act(request, "cancel", _target(run_id, names), work())


async def retry(request: Request) -> Response:
    """POST /runs/{run}/retry: all that failed or was cancelled, or the branches that are named."""
    run_id = request.path_params["run"]
    names = _branches(request)

    async def work() -> str:
        again = await site_of(request).producer.run(run_id).retry(branches=names)
        if not again:
            return f"Run {run_id} has nothing that failed or was cancelled."
        return "1 branch is queued again." if len(again) == 1 else f"{len(again):,} branches are queued again."

    return await act(request, "retry", _target(run_id, names), work())


class Excerpt:
    """One piece of a long text, and which one it is."""

    def __init__(self, text: str, number: int, parameter: str) -> None:
        self.chars = len(text)
        self.num_pages = max(1, -(-self.chars // TEXT_CHARS))
        self.number = min(number, self.num_pages)
        self.parameter = parameter
        self.text = text[(self.number - 1) * TEXT_CHARS : self.number * TEXT_CHARS]

    @classmethod
    def of(cls, request: Request, parameter: str, text: str) -> Excerpt:
        """The piece that the address asks for."""
        return cls(text, _number(request, parameter), parameter)


def _page(request: Request) -> RunPage:
    can_act = request.state.principal.can_act
    return RunPage(site_of(request).ledger, request.path_params["run"], _number(request, "page"), can_act=can_act)


def _number(request: Request, parameter: str) -> int:
    text = request.query_params.get(parameter, "1")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 7 else 1


def _branches(request: Request) -> list[str]:
    return [str(name) for name in request.state.form.getlist("branch")]


def _target(run_id: str, names: list[str]) -> str:
    return f"{run_id}/{','.join(names)}" if names else run_id
