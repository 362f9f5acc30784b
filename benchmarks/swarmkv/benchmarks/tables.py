"""The results as tables of text, for a terminal and for a Markdown page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """`left` columns hold words, those behind them numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    notes: tuple[str, ...] = ()


Document = dict[str, Any]


def tables_of(document: Document) -> list[Table]:
    """All tables of one document."""
    return list(_MAKERS[document["benchmark"]](document))


def describe(document: Document) -> str:
    """On what it was measured, in a line."""
    machine, versions = document["machine"], document["versions"]
    model = document.get("model", {}).get("file", "no model")
    return (
        f"{model}; {machine['cpu']}, {machine['cores']} cores; swarmkv {versions.get('swarmkv', '?')}, "
        f"llama-cpp-python {versions.get('llama-cpp-python', '?')}, Python {versions['python']}; "
        f"load {machine['load_average_1_min']}; {document['measured_at']}"
    )


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}{unit}"


def times(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.2f}x" if value < 20 else f"{value:,.0f}x"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def _fanout(document: Document) -> Iterator[Table]:
    for case in document["cases"]:
        yield _fanout_walls(case)
    yield _fanout_engine(document)


def _fanout_walls(case: dict[str, Any]) -> Table:
    ready, labels = case["ready"], set(case["extrapolated"])
    rows = tuple(
        (
            name + (" (extrapolated)" if name in labels else ""),
            _with_range(case["wall_s_spread"][name]),
            times(case["speedup_vs"].get(name)),
            _with_range(ready["wall_s_spread"][name]),
            times(ready["speedup_vs"].get(name)),
        )
        for name in case["wall_s"]
    )
    title = f"{case['branches']} branches x {case['max_tokens']} tokens, {case['document_tokens']:,}-token document"
    columns = ("scheme", "cold s", "swarmkv is", "ready s", "swarmkv is")
    return Table(title, columns, rows, notes=tuple(_fanout_notes(case)))


def _fanout_notes(case: dict[str, Any]) -> Iterator[str]:
    for label, side in (("cold", case), ("ready", case["ready"])):
        for name, settings in side["variants"].items():
            listed = ", ".join(
                f"{setting.removeprefix(name).strip()} {wall:.2f} s" for setting, wall in settings.items()
            )
            yield f"{name}, {label}: {listed}"
        if side["bf16"]:
            yield (
                f"on BF16 weights, {label}: swarmkv is {times(side['bf16']['speedup_vs_vllm'])} vLLM's speed, "
                f"{share(side['bf16']['overhead_vs_ideal'])} over ideal"
            )
    for name, reason in case["dropped"].items():
        yield f"{name}: {reason}"


def _fanout_engine(document: Document) -> Table:
    columns = (
        *("branches", "over ideal", "ready", "prefill s", "restore ms", "restore GB/s", "memcpy GB/s"),
        *("activation p50 ms", "p99", "ready p50", "p99", "re-prefill ms", "reused", "recomputed"),
    )
    return Table("swarmkv", columns, tuple(_engine_row(case) for case in document["cases"]))


def _engine_row(case: dict[str, Any]) -> tuple[str, ...]:
    ready = case["ready"]
    cold_ms, ready_ms = case["activation_ms"] or {}, ready["activation_ms"] or {}
    return (
        str(case["branches"]),
        share(case["overhead_vs_ideal"]),
        share(ready["overhead_vs_ideal"]),
        number(case["prefill_s"]),
        number(ready["restore_ms"]),
        number(case["restore_gbps"], 1),
        number(case["memcpy_gbps"], 1),
        number(cold_ms.get("p50"), 0),
        number(cold_ms.get("p99"), 0),
        number(ready_ms.get("p50"), 0),
        number(ready_ms.get("p99"), 0),
        number(case["reprefill_activation_ms"], 0),
        number(case["tokens_reused"], 0),
        number(case["tokens_recomputed"], 0),
    )


def _with_range(spread: dict[str, float]) -> str:
    if spread["rounds"] == 1:
        return f"{spread['median']:.2f}"
    return f"{spread['median']:.2f} ({spread['min']:.2f}-{spread['max']:.2f})"


_MAKERS: dict[str, Callable[[Document], Iterator[Table]]] = {"fanout": _fanout}
