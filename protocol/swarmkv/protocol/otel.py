"""Tracing by OpenTelemetry's SDK; alone imports it, and is imported only when tracing is on.

Its own variables (OTEL_*) say where spans go, how they are sampled and sent, and what this service is called.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import threading
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from swarmkv.protocol.tracing import Attributes, Span, SpanKind

CLOSE_S = 2.0  # a collector that is away must not keep a program from ending
_KINDS = {
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
    "internal": trace.SpanKind.INTERNAL,
}
_CONTEXT = TraceContextTextMapPropagator()


class OtelTracing:
    """Spans of this process, sent in the background. A provider that the program has set by itself is used."""

    is_on = True

    def __init__(self) -> None:
        # What the exporter says of a collector that is away goes to logs, where there are any, not to stderr.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        found: Any = trace.get_tracer_provider()
        self._own = None if isinstance(found, TracerProvider) else _provider()
        version = importlib.metadata.version("swarmkv")
        self._tracer = (self._own or found).get_tracer("swarmkv", version)

    def start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        *,
        parent: str | None = None,
        start_ns: int | None = None,
    ) -> Span:
        context = None if parent is None else _CONTEXT.extract({"traceparent": parent}, Context())
        span = self._tracer.start_span(
            name, context, _KINDS[kind], attributes, start_time=start_ns, record_exception=False
        )
        return _OtelSpan(self._tracer, span)

    def close(self) -> None:
        if self._own is not None:
            closing = threading.Thread(target=self._own.shutdown, name="swarmkv-otel-close", daemon=True)
            closing.start()
            closing.join(CLOSE_S)


class _OtelSpan:
    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _CONTEXT.inject(carrier, self._context())
        return carrier.get("traceparent", "")

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str, at_ns: int) -> None:
        self._span.add_event(name, timestamp=at_ns)

    def child(self, name: str, start_ns: int, end_ns: int, attributes: Attributes | None = None) -> None:
        span = self._tracer.start_span(name, self._context(), attributes=attributes, start_time=start_ns)
        span.end(max(start_ns, end_ns))

    def end(self, *, error: str = "") -> None:
        if not self._span.is_recording():
            return
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()

    def _context(self) -> Context:
        return trace.set_span_in_context(self._span, Context())


def _provider() -> TracerProvider:
    attributes = {SERVICE_VERSION: importlib.metadata.version("swarmkv")}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        attributes[SERVICE_NAME] = "swarmkv"
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
