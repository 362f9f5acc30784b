"""`swarmkv bench report`: documents as charts and one Markdown page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swarmkv.benchmarks.charts import draw
from swarmkv.benchmarks.tables import TABLES, Table, describe, tables_of
from swarmkv.protocol.errors import InvalidInput

PAGE = "benchmarks.md"
_HEADINGS = {
    "fanout": "One document, many prompts",
    "restore": "Snapshots out of and into the KV cache",
    "queue": "The queue without a model",
    "throughput": "Documents that arrive meanwhile",
    "overheads": "Beside the engine",
    "soak": "Hours of work",
}


def load(path: Path) -> dict[str, Any]:
    """A document that --json wrote. Raises InvalidInput."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InvalidInput(f"{path} cannot be read as JSON: {exc}.", hint="Give files that --json wrote.") from exc
    if not isinstance(document, dict) or document.get("benchmark") not in TABLES:
        raise InvalidInput(f"{path} is no document of a benchmark.", hint="Give files that --json wrote.")
    return document


def write_report(paths: Sequence[Path], directory: Path) -> list[Path]:
    """The page and its charts; what has the same name is replaced. Raises InvalidInput, ConfigError."""
    documents = {path.stem: load(path) for path in paths}
    if len(documents) < len(paths):
        raise InvalidInput("Two files have the same name.", hint="Their charts would have, too: rename one.")
    directory.mkdir(parents=True, exist_ok=True)
    page, lines, charts = directory / PAGE, ["# Benchmarks", ""], list[Path]()
    for path, document in zip(paths, documents.values(), strict=True):
        with _blaming(path):
            drawn = draw(document, directory, path.stem)
            lines += _section(document, drawn)
        charts += drawn
    page.write_text("\n".join(lines), encoding="utf-8")
    return [page, *charts]


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """What a document lacks or has otherwise than this version writes it is the file's fault."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise InvalidInput(
            f"{path} is not as this version writes it ({type(exc).__name__}: {exc}).", hint="Measure again."
        ) from exc


def _section(document: dict[str, Any], charts: Sequence[Path]) -> Iterator[str]:
    yield from (
        f"## {_HEADINGS[document['benchmark']]}",
        "",
        describe(document),
        "",
        f"    {_command(document)}",
        "",
    )
    for chart in charts:
        yield from (f"![{chart.stem}]({chart.name})", "")
    for table in tables_of(document):
        yield from _markdown(table)


def _command(document: dict[str, Any]) -> str:
    """The command that was run, with the options that the document keeps."""
    options = document["options"]
    words = [f"--{name.replace('_', '-')} {_word(options[name])}" for name in _OPTIONS[document["benchmark"]]]
    return " ".join(["swarmkv bench", document["benchmark"], *words])


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _markdown(table: Table) -> Iterator[str]:
    yield from (f"### {table.title}", "", _row(table.columns))
    yield _row([":--" if index < table.left else "--:" for index in range(len(table.columns))])
    yield from map(_row, table.rows)
    yield ""
    for note in table.notes:
        yield from (note, "")


def _row(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


_OPTIONS = {
    "fanout": ("doc_tokens", "branches", "max_tokens", "rounds", "seed"),
    "restore": ("tokens", "wide_gb", "rounds", "seed"),
    "queue": ("jobs", "starts", "rounds", "idle_s"),
    "throughput": ("docs", "doc_tokens", "branches", "max_tokens", "workers", "rounds", "gap_s", "seed"),
    "overheads": ("doc_tokens", "branches", "max_tokens", "rounds", "seed"),
    "soak": ("minutes", "doc_tokens", "seed"),
}
