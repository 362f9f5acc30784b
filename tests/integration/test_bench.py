"""`swarmkv bench` from end to end on tiny models: every command ends well, and scripts find the keys they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import Done, Home

SIDE = {
    *("wall_s", "speedup_vs_reprefill", "overhead_vs_ideal", "prefill_s", "restore_ms", "restore_gbps"),
    *("memcpy_gbps", "activation_ms", "reprefill_activation_ms", "tokens_reused", "tokens_recomputed"),
}
HEAD = {"benchmark", "measured_at", "machine", "versions", "options", "cases"}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def measured(home: Home, command: str, *arguments: str) -> tuple[Done, dict[str, Any]]:
    """Run a benchmark; its output and its JSON document."""
    path = home.directory / f"{command}.json"
    done = home.run("bench", command, *arguments, "--json", str(path), timeout_s=170)
    assert done.code == 0, done.stderr
    document: dict[str, Any] = json.loads(path.read_text())
    assert document.keys() >= HEAD
    assert document["benchmark"] == command
    assert {case["kind"] for case in document["cases"]} == {command}
    return done, document


def fanout(home: Home, model: Path, *arguments: str) -> tuple[Done, dict[str, Any]]:
    small = ("--doc-tokens", "300", "--max-tokens", "4", "--rounds", "1")
    return measured(home, "fanout", "--model", str(model), *small, *arguments)


def test_fanout_compares_all_schemes_on_the_same_documents(home: Home, tiny_llama_path: Path) -> None:
    done, document = fanout(home, tiny_llama_path, "--branches", "3,2")
    assert [case["branches"] for case in document["cases"]] == [2, 3]
    for case in document["cases"]:
        schemes = {"swarmkv", "ideal", "reprefill", "context_per_branch", "llama_cpp_python"}
        assert case.keys() >= SIDE | {"branches", "document_tokens"}
        assert case["ready"].keys() >= SIDE
        assert set(case["wall_s"]) == set(case["ready"]["wall_s"]) == schemes
        assert all(seconds > 0 for seconds in case["wall_s"].values())
        assert set(case["activation_ms"]) == {"p50", "p99"}
        assert case["document_tokens"] == 300
        assert case["tokens_reused"] == case["ready"]["tokens_reused"] == 300 * case["branches"]
        assert case["tokens_recomputed"] == 0
        assert case["ready"]["restore_ms"] > 0, "a ready run restores the snapshot"
        assert (case["prefills_run"], case["ready"]["prefills_run"]) == (1, 0)
        assert case["extrapolated"] == []
    assert "swarmkv" in done.stdout
    assert "300-token document" in done.stdout


def test_more_than_eight_agents_are_extrapolated_and_labelled(home: Home, tiny_gemma3_path: Path) -> None:
    done, document = fanout(home, tiny_gemma3_path, "--branches", "9", "--schemes", "reprefill,swarmkv")
    [case] = document["cases"]
    assert case["extrapolated"] == ["reprefill"]
    assert "reprefill (extrapolated)" in done.stdout
    ratio = case["wall_s"]["reprefill"] / case["wall_s"]["swarmkv"]
    assert case["speedup_vs_reprefill"] == pytest.approx(ratio)
    assert case["overhead_vs_ideal"] is None


def test_a_benchmark_leaves_nothing_behind(home: Home, tiny_llama_path: Path) -> None:
    fanout(home, tiny_llama_path, "--branches", "2", "--schemes", "swarmkv")
    assert list(home.directory.glob("swarmkv-demo-*")) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--branches", "two"), "--branches 'two' is no list of numbers"),
        (("--schemes", "magic"), "Unknown schemes: magic"),
        (("--schemes", "vllm"), "--vllm PATH"),
        (("--llama-server", "/nowhere/llama-server"), "There is no program /nowhere/llama-server"),
        (("--json", "/nowhere/x.json"), "There is no directory /nowhere"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_measured(
    home: Home, tiny_llama_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = home.run("bench", "fanout", "--model", str(tiny_llama_path), *arguments)
    assert done.code == 2
    assert words in done.stderr
