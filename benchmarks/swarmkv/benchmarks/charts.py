"""Charts of the documents, as PNG files. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from swarmkv.benchmarks.tables import MB
from swarmkv.protocol.errors import ConfigError

Document = dict[str, Any]
Spread = dict[str, float]
OURS = "#1b7837"
COLOURS = ("#762a83", "#5aae61", "#d6604d", "#4393c3", "#b2abd2", "#fdb863", "#878787", "#8c510a")
DPI = 150


def draw(document: Document, directory: Path, stem: str) -> list[Path]:
    """The charts of one document, written to `directory`; none for what has only single figures.

    Raises ConfigError when matplotlib is absent.
    """
    try:
        import matplotlib
    except ImportError as exc:
        hint = "pip install 'swarmkv[bench]'"
        raise ConfigError("Charts need the package matplotlib, which is not installed.", hint=hint) from exc
    matplotlib.use("agg")
    return [_drawn(make, document, directory / f"{stem}-{name}.png") for name, make in _charts(document).items()]


def _charts(document: Document) -> dict[str, Callable[[Any, Document], None]]:
    return _CHARTS.get(document["benchmark"], {})


def _drawn(make: Callable[[Any, Document], None], document: Document, path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    make(figure, document)
    figure.savefig(path, dpi=DPI)
    return path


def _walls(kind: str) -> Callable[[Any, Document], None]:
    """Seconds of every scheme by number of branches; `kind` is cold or ready."""

    def make(figure: Any, document: Document) -> None:
        cases = document["cases"]
        sides = [case if kind == "cold" else case["ready"] for case in cases]
        axes = figure.subplots()
        names = [name for name in cases[0]["wall_s"] if name in sides[-1]["wall_s"]]
        width = 0.8 / len(names)
        for index, name in enumerate(names):
            places = [place + (index - (len(names) - 1) / 2) * width for place in range(len(cases))]
            spreads = [side["wall_s_spread"].get(name) for side in sides]
            _bars(axes, name, places, spreads, width, _colour(name, index))
        walls = [wall for side in sides for wall in side["wall_s"].values()]
        axes.set_yscale("log")
        axes.set_ylim(min(walls) / 3, max(walls) * 3)  # bars have no zero on such a scale, and labels need room
        axes.set_xticks(range(len(cases)), [f"{case['branches']} branches" for case in cases])
        axes.set_ylabel("seconds to the last answer (log)")
        tokens, answer = cases[0]["document_tokens"], cases[0]["max_tokens"]
        state = "document unknown" if kind == "cold" else "snapshot ready"
        axes.set_title(f"{tokens:,}-token document, answers of {answer} tokens, {state}")
        axes.legend(fontsize="small", ncols=2)
        axes.grid(axis="y", which="both", alpha=0.2)

    return make


def _bars(
    axes: Any,
    name: str,
    places: Sequence[float],
    spreads: Sequence[dict[str, float] | None],
    width: float,
    colour: str,
) -> None:
    """Medians, with the range of the rounds as a line."""
    found = [(place, spread) for place, spread in zip(places, spreads, strict=True) if spread]
    heights = [spread["median"] for _, spread in found]
    below = [spread["median"] - spread["min"] for _, spread in found]
    above = [spread["max"] - spread["median"] for _, spread in found]
    xs = [place for place, _ in found]
    bars = axes.bar(xs, heights, width, label=name, color=colour, yerr=(below, above), error_kw={"lw": 0.8})
    axes.bar_label(bars, fmt="%.3g", fontsize=6.5, padding=3, rotation=90)  # across, nine schemes overlap


def _speedups(figure: Any, document: Document) -> None:
    """How many times as long every other scheme takes."""
    axes = figure.subplots()
    cases = document["cases"]
    branches = [case["branches"] for case in cases]
    for index, name in enumerate(cases[0]["speedup_vs"]):
        for style, sides in (("-", cases), ("--", [case["ready"] for case in cases])):
            values = [side["speedup_vs"].get(name) for side in sides]
            label = name if style == "-" else None
            axes.plot(branches, values, style, marker="o", ms=3, color=_colour(name, index), label=label)
    axes.axhline(1, color="black", lw=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(branches, [str(count) for count in branches])
    axes.set_xlabel("branches")
    axes.set_ylabel("times as long as swarmkv (log)")
    axes.set_title("Against swarmkv: document unknown (solid), snapshot ready (dashed)")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.2)


def _bandwidth(figure: Any, document: Document) -> None:
    axes = figure.subplots()
    cases = sorted(document["cases"], key=lambda case: case["payload_bytes"])
    sizes = [case["payload_bytes"] / MB for case in cases]
    lines = {
        "memcpy_gbps": ("memcpy, pages there", "-", "#878787"),
        "restore_gbps": ("restore", "-", OURS),
        "memcpy_fresh_gbps": ("memcpy, fresh mapping", "--", "#878787"),
        "export_gbps": ("export, fresh mapping", "--", OURS),
    }
    for key, (label, style, colour) in lines.items():
        axes.plot(sizes, [case[key] for case in cases], style, marker="o", ms=3, label=label, color=colour)
    axes.set_xscale("log")
    axes.set_xlabel("snapshot, MB (log)")
    axes.set_ylabel("GB/s")
    axes.set_ylim(bottom=0)
    axes.set_title("Restore and export against copying as many bytes")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.2)


def _memory(figure: Any, document: Document) -> None:
    axes = figure.subplots()
    samples = document["cases"][0]["samples"]
    minutes = [sample["at_s"] / 60 for sample in samples]
    for index, name in enumerate(samples[0]["memory"]):
        axes.plot(minutes, [sample["memory"][name] / MB for sample in samples], label=name, color=COLOURS[index])
    axes.plot(
        minutes, [sample["store_bytes"] / MB for sample in samples], "--", label="store", color="black", lw=0.8
    )
    axes.set_xlabel("minutes")
    axes.set_ylabel("MB")
    axes.set_ylim(bottom=0)
    axes.set_title("Memory of each process, and the store")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.2)


def _colour(name: str, index: int) -> str:
    return OURS if name == "swarmkv" else COLOURS[index % len(COLOURS)]


_CHARTS: dict[str, dict[str, Callable[[Any, Document], None]]] = {
    "fanout": {"cold": _walls("cold"), "ready": _walls("ready"), "speedup": _speedups},
    "restore": {"bandwidth": _bandwidth},
    "soak": {"memory": _memory},
}
