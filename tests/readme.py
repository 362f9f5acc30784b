"""Keeps README true: `python -m tests.readme` writes its generated parts anew, a test compares them.

Generated are the settings' table, from the settings themselves, and the example, from its file.
"""

from __future__ import annotations

import re
from pathlib import Path

from swarmkv.protocol.settings import PREFIX, Settings

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
EXAMPLE = ROOT / "examples" / "review.py"


def settings_table() -> str:
    """A Markdown table with a row per setting, in the order of the source."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = str(default).replace(str(default).rsplit("-", 1)[-1], "UID") if name == "store_dir" else default
        shown = "" if shown is None or shown == "" else f"`{shown}`"
        rows.append(f"| `{PREFIX}{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(rows)


def example_block() -> str:
    """The example file as a code block."""
    return f"```python\n{EXAMPLE.read_text('utf-8').rstrip()}\n```"


def with_parts(text: str) -> str:
    """README with its generated parts as they should be."""
    for mark, content in (("settings", settings_table()), ("example", example_block())):
        pattern = rf"<!-- {mark} -->.*?<!-- /{mark} -->"
        block = f"<!-- {mark} -->\n{content}\n<!-- /{mark} -->"
        text = re.sub(pattern, block.replace("\\", r"\\"), text, flags=re.DOTALL)
    return text


def commands() -> list[str]:
    """Every command line of README's console blocks, without its comment."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text("utf-8"), flags=re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [re.sub(r"\s{2,}#.*", "", line).strip() for line in lines]


if __name__ == "__main__":
    README.write_text(with_parts(README.read_text("utf-8")), "utf-8")
