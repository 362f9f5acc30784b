"""A new run by form: a document as text or file, and its prompts."""

from __future__ import annotations

import re

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response

from swarmkv.monitor.web import pages
from swarmkv.monitor.web.site import Site, site_of
from swarmkv.producer import RunHandle, Sampling
from swarmkv.producer.validate import BranchLike
from swarmkv.protocol.errors import InvalidBranch, InvalidInput, SwarmkvError

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})=(.*)", re.DOTALL)
_RULER = re.compile(r"^-{3,}[ \t]*$", re.MULTILINE)
DEFAULT_MODEL = "default"
FIELDS = ("name", "model", "prompts", "system", "max_tokens", "temperature")


async def submit_form(request: Request) -> Response:
    """GET /new"""
    models = await site_of(request).ledger.fleet.known_models()
    model = models[0] if models and DEFAULT_MODEL not in models else DEFAULT_MODEL
    return await _form(request, {**dict.fromkeys(FIELDS, ""), "model": model})


async def submit(request: Request) -> Response:
    """POST /new"""
    site, form = site_of(request), request.state.form
    try:
        run = await _submitted(site, form)
    except SwarmkvError as exc:
        await site.record(request, "submit", _text(form, "name"), f"refused: {exc.message}")
        given = {name: _text(form, name) for name in FIELDS}
        return await _form(request, given, problem=exc, status=pages.status_of(exc))
    await site.record(request, "submit", run.id, "accepted")
    notice = " ".join(f"{warning.message} {warning.hint}" for warning in run.warnings)
    return pages.go(request, f"/runs/{run.id}", notice=notice, is_error=bool(run.warnings))


async def _form(
    request: Request, given: dict[str, str], *, problem: SwarmkvError | None = None, status: int = 200
) -> Response:
    models = await site_of(request).ledger.fleet.known_models()
    limit_bytes = site_of(request).settings.max_document_bytes
    context = {"given": given, "problem": problem, "models": models, "limit_bytes": limit_bytes}
    return pages.page(request, "new.html", status=status, **context, sampling=Sampling())


async def _submitted(site: Site, form: FormData) -> RunHandle:
    """Raises InvalidInput, UnknownModel, Overloaded, BrokerError."""
    document, file_name = await _document(form)
    return await site.producer.submit(
        document,
        split_prompts(_text(form, "prompts")),
        model=_text(form, "model").strip() or DEFAULT_MODEL,
        system=_text(form, "system") or None,
        name=_text(form, "name") or file_name or None,
        document_name=file_name or None,
        sampling=_sampling(form),
    )


async def _document(form: FormData) -> tuple[bytes | str, str]:
    """The document, and its file's name."""
    upload = form.get("file")
    if isinstance(upload, UploadFile) and upload.filename:
        return await upload.read(), upload.filename.replace("\\", "/").rsplit("/", 1)[-1][:100]
    return _text(form, "document"), ""


def split_prompts(text: str) -> list[BranchLike]:
    """A prompt a line; or, between lines of dashes, prompts of several lines. NAME=TEXT names one."""
    text = text.replace("\r\n", "\n")
    parts = _RULER.split(text) if _RULER.search(text) else text.split("\n")
    prompts = [part.strip() for part in parts if part.strip()]
    return [match.groups() if (match := _NAMED.fullmatch(prompt)) else prompt for prompt in prompts]  # type: ignore[misc]


def _sampling(form: FormData) -> Sampling:
    given: dict[str, float] = {}
    for name, kind in (("max_tokens", int), ("temperature", float)):
        text = _text(form, name).strip()
        try:
            if text:
                given[name] = kind(text)
        except ValueError as exc:
            raise InvalidInput(f"{name.replace('_', ' ')} is {text[:40]!r}.", hint="Give a number.") from exc
    try:
        return Sampling.model_validate(given)
    except ValueError as exc:
        raise InvalidBranch(
            "max tokens or temperature is out of range.", hint="Use 1 or more, and 0 to 100."
        ) from exc


def _text(form: FormData, name: str) -> str:
    value = form.get(name, "")
    return value if isinstance(value, str) else ""
