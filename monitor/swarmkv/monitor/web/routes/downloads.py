"""Results as files, written branch by branch: a large run never stands in memory whole."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from swarmkv.monitor.web.formats import duration, words
from swarmkv.monitor.web.site import site_of
from swarmkv.protocol.ledger import BranchView, RunView
from swarmkv.protocol.ledger.inspection import RunInspection
from swarmkv.protocol.messages import BranchResult

CHUNK = 20  # branches that are read at a time
Item = tuple[BranchView, BranchResult | None]


async def download(request: Request) -> Response:
    """GET /runs/{run}/results.{kind}"""
    kind = request.path_params["kind"]
    if kind not in _WRITERS:
        raise HTTPException(404, "Results come as json, jsonl or md.")
    write, media_type = _WRITERS[kind]
    inspection = site_of(request).ledger.inspection
    run = await inspection.run(request.path_params["run"])
    headers = {"content-disposition": f'attachment; filename="swarmkv-{run.run_id}.{kind}"'}
    return StreamingResponse(write(run, _items(inspection, run)), headers=headers, media_type=media_type)


async def _items(inspection: RunInspection, run: RunView) -> AsyncIterator[Item]:
    for start in range(0, run.branches, CHUNK):
        indexes = range(start, min(run.branches, start + CHUNK))
        for view in await inspection.branches(run.run_id, indexes):
            yield view, await inspection.result(run.run_id, view.index) if view.is_finished else None


async def _json(run: RunView, items: AsyncIterator[Item]) -> AsyncIterator[str]:
    head = json.dumps(_run_fields(run), ensure_ascii=False)
    yield head[:-1] + ', "branches": ['
    separator = "\n"
    async for item in items:
        yield separator + json.dumps(_fields(*item), ensure_ascii=False)
        separator = ",\n"
    yield "\n]}\n"


async def _jsonl(run: RunView, items: AsyncIterator[Item]) -> AsyncIterator[str]:
    async for item in items:
        yield json.dumps({"run_id": run.run_id, **_fields(*item)}, ensure_ascii=False) + "\n"


async def _markdown(run: RunView, items: AsyncIterator[Item]) -> AsyncIterator[str]:
    yield f"# {_line(run.name)}\n\nRun {run.run_id}, model {_line(run.model)}: {words(run.state)}.\n"
    async for view, result in items:
        yield f"\n## {_line(view.name)}\n\n"
        if result is not None and result.error is not None:
            yield f"**{_line(result.error.message)}** {_line(result.error.hint)}\n"
        elif result is None:
            yield f"*{view.state}*\n"
        else:
            tokens, spent = result.tokens, duration(result.timings_ms.total)
            yield f"{result.text.strip()}\n\n*{tokens.generated:,} tokens in {spent}*\n"


def _run_fields(run: RunView) -> dict[str, object]:
    names: tuple[str, ...] = ("run_id", "name", "state", "model", "document_name", "document", "document_tokens")
    names += ("snapshot", "created_ms", "finished_ms", "prefills_run", "prefill_ms", "prefill_saved_ms")
    return {name: getattr(run, name) for name in names}


def _fields(view: BranchView, result: BranchResult | None) -> dict[str, object]:
    head = {"name": view.name, "state": view.state, "attempts": view.attempts, "worker": view.worker or None}
    found = result.model_dump(mode="json") if result else BranchResult(finish_reason="stop").model_dump(mode="json")
    if result is None:
        found["finish_reason"] = None
    return {**head, **found}


def _line(text: str) -> str:
    """Text of users as one line that begins no markup of its own."""
    return " ".join(text.split()).replace("<", "&lt;")


_Writer = Callable[[RunView, AsyncIterator[Item]], AsyncIterator[str]]
_WRITERS: dict[str, tuple[_Writer, str]] = {
    "json": (_json, "application/json"),
    "jsonl": (_jsonl, "application/jsonl"),
    "md": (_markdown, "text/markdown"),
}
