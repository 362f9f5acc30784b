"""What an extra of the distribution brings is imported late; a plain installation is told which one it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from swarmkv.protocol.errors import ConfigError


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Around imports that `what` needs. Raises ConfigError, naming the package and `extra`, when one is missing.

    A module of our own that is missing is no user's fault: ModuleNotFoundError then.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is not None and exc.name.startswith("swarmkv"):
            raise
        raise ConfigError(
            f"{what} needs the package {exc.name}, which is not installed.",
            hint=f"pip install 'swarmkv[{extra}]'",
        ) from exc
