"""The results as tables of text, for a terminal and for a Markdown page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

NOTHING = "-"
MB = 1e6


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
    return list(TABLES[document["benchmark"]](document))


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
    ready, best, labels = case["ready"], case["best_variant"], set(case["extrapolated"])
    rows = tuple(
        (
            name + (" (extrapolated)" if best.get(name, name) in labels else ""),
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
    rows = tuple(_engine_row(case) for case in document["cases"])
    return Table("swarmkv", columns, rows, notes=tuple(_marginal_note(document["marginal"])))


def _marginal_note(marginal: dict[str, Any] | None) -> Iterator[str]:
    if marginal is not None:
        ours, engine = (marginal[name] * 1000 for name in ("ours_s", "engine_s"))
        yield (
            f"one more branch of a ready snapshot: {ours:.0f} ms, of the engine alone {engine:.0f} ms "
            f"({times(marginal['ratio'])}), by a line through all cases"
        )


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


def _facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    return Table(title, ("what", "measured"), tuple(rows))


def _queue(document: Document) -> Iterator[Table]:
    for case in document["cases"]:
        start_ms, per_s = case["enqueue_to_start_ms"], case["jobs_per_s_spread"]
        rows = [
            ("enqueue to start, p50", number(start_ms["p50"], 1, " ms")),
            ("enqueue to start, p99", number(start_ms["p99"], 1, " ms")),
            ("jobs a second", f"{per_s['median']:,.0f} ({per_s['min']:,.0f}-{per_s['max']:,.0f})"),
            ("Redis commands per branch", number(case["redis_commands_per_branch"], 1)),
            ("... of them scripts", number(case["redis_scripts_per_branch"], 1)),
            ("Redis bytes per branch", number(case["redis_bytes_per_branch"], 0)),
            ("Redis commands per token", number(case["redis_commands_per_token"], 3)),
            ("Redis bytes per token", number(case["redis_bytes_per_token"], 1)),
        ]
        rows += [(f"idle CPU of {name}", number(pct, 2, " %")) for name, pct in case["idle_cpu_pct"].items()]
        notes = ("Commands that scripts run inside Redis are counted, too.",)
        yield replace(_facts(f"{case['jobs']:,} jobs without a model, {case['slots']} slots", rows), notes=notes)


def _restore(document: Document) -> Iterator[Table]:
    columns = (
        *("model", "tokens", "snapshot MB", "prefill s", "restore ms", "restore GB/s", "memcpy GB/s", "share"),
        *("export ms", "export GB/s", "memcpy, fresh GB/s", "share", "extra MB, export", "restore"),
    )
    notes = (
        "restore: against memcpy into memory whose pages are there; export: into a fresh mapping, against memcpy "
        "into one.",
        "extra: what the process grew by beyond the snapshot; a second copy would be as large as the snapshot.",
    )
    yield Table("Restore and export", columns, tuple(_restore_row(case) for case in document["cases"]), notes=notes)


def _restore_row(case: dict[str, Any]) -> tuple[str, ...]:
    return (
        case["model"],
        f"{case['document_tokens']:,}",
        number(case["payload_bytes"] / MB, 1),
        number(case["prefill_s"]),
        number(case["restore_ms"], 1),
        number(case["restore_gbps"], 1),
        number(case["memcpy_gbps"], 1),
        share(case["restore_vs_memcpy"]),
        number(case["export_ms"], 1),
        number(case["export_gbps"], 1),
        number(case["memcpy_fresh_gbps"], 1),
        share(case["export_vs_memcpy"]),
        number(case["export_extra_bytes"] / MB, 1),
        number(case["restore_extra_bytes"] / MB, 1),
    )


def _throughput(document: Document) -> Iterator[Table]:
    columns = (
        *("branch workers", "wall s", "branches/s", "tokens/s", "slots used while work waits"),
        *("prefill beside decode", "restores per branch", "restores per document", "queue p50 ms", "p99"),
    )
    rows = tuple(_throughput_row(case) for case in document["cases"])
    asked = document["options"]
    title = f"{asked['docs']} documents of {asked['doc_tokens']:,} tokens x {asked['branches']} branches"
    yield Table(title, columns, rows)


def _throughput_row(case: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(case["workers"]),
        _with_range(case["wall_s_spread"]),
        number(case["branches_per_s"], 1),
        number(case["tokens_per_s"], 0),
        share(case["slot_utilisation"]),
        share(case["prefill_decode_overlap"]),
        number(case["restores_per_branch"], 3),
        number(case["restores_per_document"], 2),
        number(case["queue_ms"]["p50"], 0),
        number(case["queue_ms"]["p99"], 0),
    )


def _overheads(document: Document) -> Iterator[Table]:
    for case in document["cases"]:
        beside, restart = case["neighbours"], case["restart"]
        rows = [row for kind, step in case["python"].items() for row in _step_rows(kind, step)]
        rows += [
            ("decode alone", number(beside["alone_tokens_per_s"], 0, " tokens/s")),
            ("decode beside a prefill", number(beside["beside_tokens_per_s"], 0, " tokens/s")),
            ("... of the speed alone", share(beside["decode_kept"])),
            ("decode, then prefill", number(beside["decode_s"] + beside["prefill_s"], 2, " s")),
            ("both at once", number(beside["together_s"], 2, " s")),
            ("... of the time one after the other", times(beside["together_vs_one_after_the_other"])),
            (f"prefills after {restart['rounds']} restarts", str(restart["prefills_run"])),
            ("first token of new workers", number(restart["first_token_ms"], 0, " ms")),
        ]
        title = f"{case['branches']} branches, {case['document_tokens']:,}-token document"
        notes = ("Python: what of a step is neither llama_decode nor llama.cpp's sampling.",)
        yield replace(_facts(title, rows), notes=notes)


def _step_rows(kind: str, step: dict[str, float]) -> list[tuple[str, str]]:
    return [
        (f"a {kind} step", number(step["step_ms"], 1, " ms")),
        ("... llama_decode", number(step["decode_ms"], 1, " ms")),
        ("... Python", share(step["python_share"])),
    ]


def _soak(document: Document) -> Iterator[Table]:
    for case in document["cases"]:
        columns = ("process", "memory MB, first", "last", "highest", "MB an hour", "files, first", "last")
        rows = tuple(_soak_row(name, process) for name, process in case["processes"].items())
        notes = (
            f"{case['branches_done']:,} branches of {case['runs_done']:,} runs, and {case['runs_cancelled']:,} "
            f"cancelled ones; KV cells were short {case['out_of_cells']:,} times",
            f"store: {case['store_bytes']['last'] / MB:,.1f} MB at the end, {case['store_bytes']['max'] / MB:,.1f} "
            f"at most; Redis: {case['redis_bytes']['last'] / MB:,.1f} MB",
            f"in use at most: {case['slots_used']['max']:,} slots, {case['cells_used']['max']:,} of "
            f"{case['n_ctx']:,} cells",
        )
        yield Table(f"{case['minutes']:g} minutes of work", columns, rows, notes=notes)


def _soak_row(name: str, process: dict[str, Any]) -> tuple[str, ...]:
    memory, files = process["memory_bytes"], process["open_files"]
    return (
        name,
        number(memory["first"] / MB, 1),
        number(memory["last"] / MB, 1),
        number(memory["max"] / MB, 1),
        number(memory["per_hour"] / MB, 2),
        str(files["first"]),
        str(files["last"]),
    )


TABLES: dict[str, Callable[[Document], Iterator[Table]]] = {
    "fanout": _fanout,
    "overheads": _overheads,
    "queue": _queue,
    "restore": _restore,
    "soak": _soak,
    "throughput": _throughput,
}
