"""The files that the page needs: read once, named by their digest, so that browsers keep them for good."""

from __future__ import annotations

import functools
import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_TYPES = {
    "app.css": "text/css",
    "app.js": "text/javascript",
    "theme.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file, plain and packed."""

    data: bytes
    packed: bytes
    media_type: str
    digest: str


@functools.cache
def assets() -> dict[str, Asset]:
    """All of them, by name."""
    return {name: _read(name, media_type) for name, media_type in _TYPES.items()}


def asset_url(name: str) -> str:
    """Its address; a changed file has another one."""
    return f"/static/{name}?v={assets()[name].digest}"


async def static(request: Request) -> Response:
    """GET /static/{name}"""
    asset = assets().get(request.path_params["name"])
    if asset is None:
        raise HTTPException(404, "There is no such file.")
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.packed, headers={**headers, "content-encoding": "gzip"}, media_type=asset.media_type)
    return Response(asset.data, headers=headers, media_type=asset.media_type)


def _read(name: str, media_type: str) -> Asset:
    data = (files("swarmkv.monitor.web") / "static" / name).read_bytes()
    return Asset(data, gzip.compress(data, mtime=0), media_type, hashlib.blake2b(data, digest_size=6).hexdigest())
