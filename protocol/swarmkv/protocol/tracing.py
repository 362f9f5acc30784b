"""Traces: one for each run, from its submission through its prefill to every attempt at every branch.

The context travels as W3C's `traceparent` with the run. Off unless asked for, by `SWARMKV_OTEL` or OpenTelemetry's
own variable for an endpoint: nothing of it is imported then, and a span is an object that does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Literal, Protocol

from swarmkv.protocol.errors import ConfigError
from swarmkv.protocol.identity import digest_fields
from swarmkv.protocol.settings import Settings

SpanKind = Literal["producer", "consumer", "internal"]
Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PACKAGES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


class Span(Protocol):
    """One piece of work. Times are nanoseconds since the epoch; None is now."""

    @property
    def traceparent(self) -> str:
        """The context for whoever goes on from here; "" when nothing is traced."""

    def note(self, attributes: Attributes) -> None:
        """Add attributes."""

    def event(self, name: str, at_ns: int) -> None:
        """A moment within the span."""

    def child(self, name: str, start_ns: int, end_ns: int, attributes: Attributes | None = None) -> None:
        """A part of the work that is over already."""

    def end(self, *, error: str = "") -> None:
        """It is done, or failed with the code `error`. Any number of times: the first one counts."""


class Tracing(Protocol):
    """Where spans come from. `close` sends what is left, within a moment, and may block for that."""

    @property
    def is_on(self) -> bool: ...

    def start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        *,
        parent: str | None = None,
        start_ns: int | None = None,
    ) -> Span:
        """A span below `parent`, a traceparent; None: below what the caller's own program traces, if it does."""

    def close(self) -> None: ...


class _NoSpan:
    traceparent = ""

    def note(self, attributes: Attributes) -> None: ...

    def event(self, name: str, at_ns: int) -> None: ...

    def child(self, name: str, start_ns: int, end_ns: int, attributes: Attributes | None = None) -> None: ...

    def end(self, *, error: str = "") -> None: ...


class NoTracing:
    """Traces nothing, and costs nothing."""

    is_on = False
    _span = _NoSpan()

    def start(
        self,
        name: str,  # noqa: ARG002 - satisfies Tracing
        kind: SpanKind,  # noqa: ARG002
        attributes: Attributes,  # noqa: ARG002
        *,
        parent: str | None = None,  # noqa: ARG002
        start_ns: int | None = None,  # noqa: ARG002
    ) -> Span:
        return self._span

    def close(self) -> None: ...


def open_tracing(settings: Settings) -> Tracing:
    """Tracing as the settings and the environment ask for it; the caller closes it.

    Raises ConfigError when it is asked for by SWARMKV_OTEL=on and OpenTelemetry is not installed.
    """
    if settings.otel == "off" or (settings.otel == "auto" and not any(map(os.environ.get, ENDPOINTS))):
        return NoTracing()
    if not all(map(_is_installed, PACKAGES)):
        if settings.otel == "auto":
            return NoTracing()
        raise ConfigError(
            "SWARMKV_OTEL=on needs OpenTelemetry, which is not installed.", hint="pip install 'swarmkv[otel]'"
        )
    from swarmkv.protocol.otel import OtelTracing

    return OtelTracing()


def run_context(run_id: str, traceparent: str) -> str:
    """The context of a run. One whose producer traced nothing still has a trace of its own, drawn from its id."""
    if traceparent:
        return traceparent
    digest = digest_fields("trace", run=run_id)
    return f"00-{digest[:32]}-{digest[-16:]}-01"


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
