"""docs/guarantees.md promises nothing that no test shows."""

from __future__ import annotations

import ast
import re

from tests.readme import README, ROOT

GUARANTEES = ROOT / "docs" / "guarantees.md"
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def _sections() -> list[str]:
    return GUARANTEES.read_text("utf-8").split("\n## ")[1:]


def _functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_a_promise_names_is_there() -> None:
    named = NAMED_TEST.findall(GUARANTEES.read_text("utf-8"))
    missing = [f"{path}::{name}" for path, name in named if name not in _functions_of(path)]
    assert missing == []
    assert len(named) == len(set(named)) > 40


def test_every_promise_says_where_it_ends_and_what_shows_it() -> None:
    assert len(_sections()) >= 7
    for section in _sections():
        title = section.partition("\n")[0]
        assert "\nLimits: " in section, title
        assert NAMED_TEST.search(section), title


def test_readme_leads_to_the_promises() -> None:
    assert "(docs/guarantees.md)" in README.read_text("utf-8")
