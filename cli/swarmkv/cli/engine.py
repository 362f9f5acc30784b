"""Whether the engine is installed; asked before a command imports it."""

from __future__ import annotations

import importlib.util

from swarmkv.protocol.errors import ConfigError


def need_engine() -> None:
    """Raise ConfigError, naming the extra, on a plain installation."""
    for package in ("llama_cpp", "numpy", "jinja2"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            raise ConfigError(
                f"This needs the package {package}, which is not installed.",
                hint="pip install 'swarmkv[worker]'",
            )
