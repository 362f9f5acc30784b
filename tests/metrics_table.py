"""Keeps the tables of metrics in docs/monitoring.md true: `python -m tests.metrics_table` writes them anew.

They are made of what the processes answer: names, types, labels and help.
"""

from __future__ import annotations

import re

from swarmkv.monitor.metrics import render_metrics
from tests.prometheus import ROOT, families, full_overview
from tests.status_support import own_answer

PAGE = ROOT / "docs" / "monitoring.md"


def table(answer: bytes) -> str:
    """A Markdown table with a row per metric of ours."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, family in families(answer).items():
        if name.startswith("swarmkv_"):
            labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
            shown = ", ".join(f"`{label}`" for label in labels)
            rows.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    return "\n".join(rows)


def with_tables(text: str) -> str:
    """The page with its generated parts as they should be."""
    for mark, content in (
        ("metrics", table(render_metrics(full_overview()))),
        ("own metrics", table(own_answer())),
    ):
        block = f"<!-- {mark} -->\n{content}\n<!-- /{mark} -->"
        text = re.sub(rf"<!-- {mark} -->.*?<!-- /{mark} -->", block.replace("\\", r"\\"), text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
