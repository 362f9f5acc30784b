"""Branches from -p options and prompts files."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmkv.cli.prompts import parse_prompt, read_prompts
from swarmkv.cli.submission import name_of, parse_sampling, read_document, read_template, with_defaults
from swarmkv.producer import Sampling
from swarmkv.protocol.errors import InvalidBranch, InvalidDocument, InvalidInput

LIMIT_BYTES = 1_000_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("What is claimed?", "What is claimed?"),
        ("claims=What is claimed?", ("claims", "What is claimed?")),
        ("claims=a=b", ("claims", "a=b")),
        ("Is a = b?", "Is a = b?"),
        ("=x=1 holds. Why?", "x=1 holds. Why?"),
        ("../etc=text", ("../etc", "text")),
        ("claims=", ("claims", "")),
    ],
)
def test_what_stands_before_the_first_equals_sign_is_a_name_unless_it_has_spaces(
    value: str, expected: object
) -> None:
    assert parse_prompt(value) == expected


def test_yaml_gives_texts_and_named_branches_in_order(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text('branches:\n  - Why?\n  - {name: risks, prompt: "Which?", sampling: {max_tokens: 4}}\n')
    expected = ["Why?", {"name": "risks", "prompt": "Which?", "sampling": {"max_tokens": 4}}]
    assert read_prompts(path, LIMIT_BYTES) == expected


def test_yaml_may_be_a_bare_list(tmp_path: Path) -> None:
    path = tmp_path / "p.yml"
    path.write_text("- one\n- two\n")
    assert read_prompts(path, LIMIT_BYTES) == ["one", "two"]


def test_json_lines_give_a_branch_a_line_and_skip_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('\ufeff"one"\n\n{"name": "b", "prompt": "two\u2028lines"}\n')
    assert read_prompts(path, LIMIT_BYTES) == ["one", {"name": "b", "prompt": "two\u2028lines"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", b'"one"\n{"prompt": \n', "line 2 cannot be parsed"),
        ("p.jsonl", b'{"name": "x"}\n', "line 1 has no prompt text"),
        ("p.yaml", b"branches:\n  - [1\n", "line 3, column 1: expected ',' or ']'"),
        ("p.yaml", b"- [1, 2]\n", "branch 1 has no prompt text"),
        ("p.yaml", b"text\n", "holds no list of branches"),
        ("p.yaml", b"[]\n", "holds no branches"),
        ("p.yaml", b"- caf\xe9\n", "byte 0xe9 at offset 5"),
        ("p.yaml", b"!!python/object/apply:os.system ['true']", "cannot be parsed"),
        ("p.jsonl", b"[" * 100_000, "line 1 cannot be parsed"),
        ("p.txt", b"one", "neither .yaml nor .jsonl"),
    ],
)
def test_a_bad_prompts_file_is_refused_naming_the_place(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidBranch, match=message):
        read_prompts(path, LIMIT_BYTES)


def test_an_absent_prompts_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidBranch, match=r"absent.yaml cannot be read: No such file"):
        read_prompts(tmp_path / "absent.yaml", LIMIT_BYTES)


def test_a_branch_with_some_sampling_of_its_own_takes_the_rest_from_the_options() -> None:
    sampling = Sampling(temperature=0.0, max_tokens=9)
    branch = with_defaults({"prompt": "x", "sampling": {"max_tokens": 3}}, sampling)
    assert isinstance(branch, dict)
    assert Sampling(**branch["sampling"]) == sampling.model_copy(update={"max_tokens": 3})


@pytest.mark.parametrize(("option", "value"), [("temperature", -1), ("max_tokens", 0), ("seed", -1)])
def test_a_sampling_option_out_of_range_is_named_with_its_value(option: str, value: int) -> None:
    with pytest.raises(InvalidBranch, match=rf"--{option.replace('_', '-')} {value}: "):
        parse_sampling({option: value})


def test_a_run_is_named_after_its_file_as_far_as_a_name_goes() -> None:
    assert name_of("docs/spec.md") == "spec.md"
    assert name_of("-") is None
    assert name_of("n\udcff\x1b" + "x" * 255) == "n\N{REPLACEMENT CHARACTER}\u241b" + "x" * 47


def test_a_file_without_an_end_is_read_up_to_the_limit_and_refused_with_both_numbers(tmp_path: Path) -> None:
    zeros = tmp_path / "zeros.yaml"
    zeros.symlink_to("/dev/zero")
    both = "has at least 101 bytes; the limit is 100"
    with pytest.raises(InvalidInput, match=f"The template {both}"):
        read_template(zeros, 100)
    with pytest.raises(InvalidBranch, match=f"The prompts file {both}"):
        read_prompts(zeros, 100)
    with pytest.raises(InvalidDocument, match=f"The document {both}"):
        read_document(str(zeros), 100)


def test_a_file_over_the_limit_is_refused_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"x" * 1_234)
    with pytest.raises(InvalidInput, match="has 1,234 bytes; the limit is 1,233"):
        read_template(path, 1_233)
    assert read_template(path, 1_234) == "x" * 1_234


def test_an_empty_name_is_not_taken_for_a_directory() -> None:
    with pytest.raises(InvalidDocument, match="The name of the document's file is empty"):
        read_document("", 100)
