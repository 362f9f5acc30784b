"""What one worker process tells Prometheus of itself, beside what the monitor tells of all.

Its names are not the monitor's: who scrapes both counts nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from swarmkv.protocol.messages import WorkerInfo
from swarmkv.workers.engine.jobs import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Serving(Protocol):
    """What is asked of a worker."""

    @property
    def info(self) -> WorkerInfo: ...

    @property
    def num_held(self) -> int: ...

    @property
    def beat_age_s(self) -> float | None: ...


def own_metrics(workers: Sequence[Serving], engine: Engine | None) -> bytes:
    """Of this process, in Prometheus' text format; while the model is loaded (no engine), of the process alone.

    Takes the values as of now; nothing is kept.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    if engine is not None and workers:
        registry.register(_Own(workers, engine))
    return generate_latest(registry)


class _Own(Collector):
    def __init__(self, workers: Sequence[Serving], engine: Engine) -> None:
        self._workers = workers
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        by_role = [((worker.info.role, worker.info.model), worker) for worker in self._workers]
        model, load, info = (self._workers[0].info.model,), self._engine.load, self._engine.info
        what = (*model, info.architecture, info.device)
        yield _gauge(
            "swarmkv_engine_info", "What the engine is; always 1.", ("model", "architecture", "device"), [(what, 1)]
        )
        yield _gauge(
            "swarmkv_engine_slots",
            "Jobs that this process runs at once.",
            ("role", "model"),
            ((labels, worker.info.slots) for labels, worker in by_role),
        )
        yield _gauge(
            "swarmkv_engine_slots_used",
            "Jobs that this process runs now.",
            ("role", "model"),
            ((labels, worker.num_held) for labels, worker in by_role),
        )
        yield _gauge("swarmkv_engine_cells", "KV cells of the context.", ("model",), [(model, info.n_ctx)])
        yield _gauge(
            "swarmkv_engine_cells_used",
            "KV cells that are held or reserved.",
            ("model",),
            [(model, load.cells_used)],
        )
        yield _gauge(
            "swarmkv_engine_residents", "Snapshots in the KV cache.", ("model",), [(model, len(load.residents))]
        )
        tokens = CounterMetricFamily(
            "swarmkv_engine_tokens_total", "Tokens that this process computed.", labels=("model", "kind")
        )
        tokens.add_metric((*model, "prefilled"), load.prefilled_tokens)
        tokens.add_metric((*model, "generated"), load.generated_tokens)
        yield tokens
        ages = [(labels, worker.beat_age_s) for labels, worker in by_role]
        yield _gauge(
            "swarmkv_engine_beat_age_seconds",
            "Time since Redis took the last heartbeat.",
            ("role", "model"),
            ((labels, age_s) for labels, age_s in ages if age_s is not None),
        )


def _gauge(name: str, text: str, labels: Iterable[str], rows: Iterable[tuple[Iterable[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=tuple(labels))
    for values, number in rows:
        family.add_metric(tuple(values), number)
    return family
