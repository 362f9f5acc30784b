"""`swarmkv bench` from end to end on tiny models: every command ends well, and scripts find the keys they read."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmkv.benchmarks.fanout.marginal import marginal_costs
from swarmkv.benchmarks.report import write_report
from swarmkv.protocol.errors import InvalidInput
from tests import bench_peers
from tests.command import Done, Home, all_gone, descendants
from tests.waiting import wait_until

SIDE = {
    *("wall_s", "speedup_vs_reprefill", "overhead_vs_ideal", "prefill_s", "restore_ms", "restore_gbps"),
    *("memcpy_gbps", "activation_ms", "reprefill_activation_ms", "tokens_reused", "tokens_recomputed"),
}
HEAD = {"benchmark", "measured_at", "machine", "versions", "options", "cases"}


@pytest.fixture
def home() -> Iterator[Home]:
    """A home of a short name: the path of a unix socket in it may have no more than 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        yield Home(Path(directory))


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
    schemes = "reprefill,context_per_branch,llama_cpp_python,swarmkv"
    done, document = fanout(home, tiny_gemma3_path, "--branches", "9", "--schemes", schemes)
    [case] = document["cases"]
    one_after_another = {"context_per_branch", "llama_cpp_python", "reprefill"}
    assert {name.split()[0] for name in case["extrapolated"]} == one_after_another
    for scheme in one_after_another:
        assert f"{scheme} (extrapolated)" in done.stdout
    assert "swarmkv (extrapolated)" not in done.stdout
    ratio = case["wall_s"]["reprefill"] / case["wall_s"]["swarmkv"]
    assert case["speedup_vs_reprefill"] == pytest.approx(ratio)
    assert case["overhead_vs_ideal"] is None


def test_every_setting_of_llama_server_is_named_and_the_best_is_the_peer(home: Home, tiny_llama_path: Path) -> None:
    server = bench_peers.llama_server(home.directory / "llama-server")
    chosen = ("--schemes", "swarmkv,llama_server", "--llama-server", str(server))
    done, document = fanout(home, tiny_llama_path, "--branches", "2", *chosen)
    [case] = document["cases"]
    settings = case["variants"]["llama_server"]
    assert {name.removeprefix("llama_server ") for name in settings} == {
        *("np=1 fa=off", "np=1 fa=on", "np=1 fa=off spin=few", "np=1 fa=on spin=few"),
        *("np=B kvu fa=off", "np=B kvu fa=on"),
    }
    assert case["wall_s"]["llama_server"] == min(settings.values())
    assert settings[case["best_variant"]["llama_server"]] == min(settings.values())
    assert "llama_server, cold: np=1 fa=off" in done.stdout


def test_vllm_is_compared_with_ours_on_bf16_weights(home: Home, tiny_gemma3_path: Path) -> None:
    python = bench_peers.vllm_python(home.directory / "python")
    chosen = ("--schemes", "swarmkv,ideal,vllm", "--vllm", str(python))
    _, document = fanout(home, tiny_gemma3_path, "--branches", "2", *chosen)
    [case] = document["cases"]
    assert case["wall_s"]["vllm"] == 0.5
    assert case["bf16"]["speedup_vs_vllm"] == pytest.approx(0.5 / case["wall_s"]["swarmkv_bf16"])
    assert case["ready"]["bf16"]["overhead_vs_ideal"] is not None
    assert "BF16" in document["weights"]["swarmkv_bf16"]
    child = int(Path(f"{python}.child").read_text())
    wait_until(lambda: not Path(f"/proc/{child}").exists(), timeout_s=20)


def test_a_peer_that_dies_is_reported_with_its_last_words(home: Home, tiny_llama_path: Path) -> None:
    server = home.directory / "llama-server"
    server.write_text("#!/bin/sh\necho 'no such option: -kvu' >&2\nexit 3\n")
    server.chmod(0o755)
    small = ("--doc-tokens", "100", "--branches", "1", "--rounds", "1", "--schemes", "llama_server")
    done = home.run("bench", "fanout", "--model", str(tiny_llama_path), *small, "--llama-server", str(server))
    assert done.code == 1
    assert "ended with 3" in done.stderr
    assert "no such option: -kvu" in done.stderr


def test_a_scheme_that_fails_does_not_cost_what_the_others_took(home: Home, tiny_llama_path: Path) -> None:
    server, path = home.directory / "llama-server", home.directory / "partial.json"
    server.write_text("#!/bin/sh\nexit 3\n")
    server.chmod(0o755)
    small = ("--doc-tokens", "100", "--branches", "1,2", "--rounds", "1", "--schemes", "llama_server,reprefill")
    peer = ("--llama-server", str(server), "--json", str(path))
    done = home.run("bench", "fanout", "--model", str(tiny_llama_path), *small, *peer)
    assert done.code == 1
    assert "llama_server np=1 fa=off failed: " in done.stderr
    document = json.loads(path.read_text())
    assert [set(case["wall_s"]) for case in document["cases"]] == [{"reprefill"}] * 2
    assert "ended with 3" in document["failed"]["llama_server np=1 fa=off"][0]


def test_a_server_that_dies_over_a_prompt_is_a_scheme_that_failed(home: Home, tiny_llama_path: Path) -> None:
    server, path = bench_peers.llama_server(home.directory / "llama-server"), home.directory / "partial.json"
    server.write_text(server.read_text().replace("body = json", "import os; os._exit(1)  # "))
    small = ("--doc-tokens", "100", "--branches", "1", "--rounds", "1", "--schemes", "llama_server,reprefill")
    peer = ("--llama-server", str(server), "--json", str(path))
    done = home.run("bench", "fanout", "--model", str(tiny_llama_path), *small, *peer)
    assert done.code == 1
    assert "llama_server np=1 fa=off failed: llama_server np=1 fa=off gave no answer" in done.stderr
    assert set(json.loads(path.read_text())["cases"][0]["wall_s"]) == {"reprefill"}


def test_more_branches_than_a_worker_has_slots_by_default_are_one_batch(home: Home, tiny_llama_path: Path) -> None:
    _, document = fanout(home, tiny_llama_path, "--branches", "24", "--schemes", "ideal,swarmkv")
    assert document["failed"] == {}
    assert document["cases"][0]["overhead_vs_ideal"] is not None


def test_a_benchmark_leaves_nothing_behind(home: Home, tiny_llama_path: Path) -> None:
    fanout(home, tiny_llama_path, "--branches", "2", "--schemes", "swarmkv")
    assert list(home.directory.glob("swarmkv-demo-*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_processes_go_with_a_benchmark_that_is_ended(
    home: Home, tiny_llama_path: Path, number: signal.Signals
) -> None:
    server = bench_peers.llama_server(home.directory / "llama-server")
    endless = ("--rounds", "100000", "--doc-tokens", "100", "--branches", "2", "--max-tokens", "2")
    chosen = ("--schemes", "swarmkv,reprefill,llama_server", "--llama-server", str(server))
    with home.started("bench", "fanout", "--model", str(tiny_llama_path), *endless, *chosen) as process:
        wait_until(lambda: "round 3 of" in home.stderr, timeout_s=60)
        family = descendants(process.pid)
        assert len(family) > 5
        process.send_signal(number)
        wait_until(lambda: process.poll() is not None, timeout_s=40)
        wait_until(lambda: all_gone(family), timeout_s=20)
    wait_until(lambda: not list(home.directory.glob("swarmkv-demo-*")))


def test_a_benchmark_that_is_ended_has_kept_the_cases_that_were_measured(home: Home, tiny_llama_path: Path) -> None:
    path = home.directory / "fanout.json"
    sizes = ("--doc-tokens", "100", "--branches", "2,3", "--max-tokens", "2", "--rounds", "40")
    chosen = ("--schemes", "reprefill", "--json", str(path))
    with home.started("bench", "fanout", "--model", str(tiny_llama_path), *sizes, *chosen) as process:
        wait_until(lambda: "3 branches, round 2 of" in home.stderr, timeout_s=100)
        process.terminate()
        wait_until(lambda: process.poll() is not None, timeout_s=40)
    assert [case["branches"] for case in json.loads(path.read_text())["cases"]] == [2]


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


def test_queue_measures_the_path_without_a_model(home: Home) -> None:
    _, document = measured(home, "queue", "--jobs", "60", "--starts", "5", "--rounds", "1", "--idle-s", "0.5")
    [case] = document["cases"]
    assert set(case["enqueue_to_start_ms"]) == {"p50", "p99"}
    assert case["jobs_per_s"] > 0
    assert set(case["idle_cpu_pct"]) == {"broker", "prefill-1", "branch-1"}
    assert case["redis_commands_per_branch"] > 1
    assert case["redis_bytes_per_token"] > 0


def test_restore_measures_documents_and_wide_snapshots(home: Home, tiny_gemma3_path: Path) -> None:
    arguments = ("--model", str(tiny_gemma3_path), "--tokens", "200,500", "--wide-gb", "0.05", "--rounds", "2")
    _, document = measured(home, "restore", *arguments)
    assert [case["document_tokens"] for case in document["cases"]] == [200, 500, 256]
    for case in document["cases"]:
        rates = ("restore_gbps", "memcpy_gbps", "export_gbps", "memcpy_fresh_gbps", "restore_vs_memcpy")
        assert all(case[name] > 0 for name in (*rates, "export_vs_memcpy", "restore_ms"))
    wide = document["cases"][-1]
    assert wide["payload_bytes"] > 256 * 128 * 1024, "128 KB a token"
    assert wide["export_extra_bytes"] < wide["payload_bytes"] / 2, "no second copy"
    assert wide["restore_extra_bytes"] < wide["payload_bytes"] / 2, "no second copy"


def test_throughput_counts_slots_and_restores(home: Home, tiny_llama_path: Path) -> None:
    sizes = ("--docs", "2", "--branches", "3", "--workers", "1,2", "--doc-tokens", "200", "--max-tokens", "8")
    _, document = measured(home, "throughput", "--model", str(tiny_llama_path), *sizes, "--gap-s", "0.05")
    assert [case["workers"] for case in document["cases"]] == [1, 2]
    for case in document["cases"]:
        assert case["branches"] == 6
        assert 2 / 6 <= case["restores_per_branch"] <= 1
        assert case["tokens_per_s"] == pytest.approx(6 * 8 / case["wall_s"])
        assert case["prefill_decode_overlap"] is None or 0 <= case["prefill_decode_overlap"] <= 1


def test_soak_follows_memory_files_and_store(home: Home, tiny_llama_path: Path) -> None:
    arguments = ("--minutes", "0.05", "--doc-tokens", "200", "--model", str(tiny_llama_path))
    _, document = measured(home, "soak", *arguments)
    [case] = document["cases"]
    assert set(case["processes"]) == {"broker", "prefill-1", "branch-1"}
    assert case["runs_done"] + case["runs_cancelled"] >= 1
    assert case["store_bytes"]["last"] > 0
    assert case["out_of_cells"] == 0
    assert 0 <= case["cells_used"]["max"] <= case["n_ctx"]
    assert len(case["samples"]) >= 2


def test_overheads_are_measured_in_the_engine_and_between_workers(home: Home, tiny_llama_path: Path) -> None:
    arguments = ("--doc-tokens", "200", "--branches", "3", "--max-tokens", "8", "--rounds", "1")
    done, document = measured(home, "overheads", "--model", str(tiny_llama_path), *arguments)
    assert "... Python" in done.stdout
    [case] = document["cases"]
    for step in case["python"].values():
        assert 0 < step["decode_ms"] < step["step_ms"]
        assert 0 < step["python_share"] < 1
    assert case["python"]["greedy"]["sampling_ms"] == 0 < case["python"]["sampled"]["sampling_ms"]
    assert case["neighbours"]["decode_kept"] > 0
    assert case["restart"]["prefills_run"] == 0
    assert case["restart"]["first_token_ms"] >= case["restart"]["restore_ms"] > 0


def test_one_more_branch_costs_the_slope_of_a_line() -> None:
    walls = {1: (1.2, 1.0), 4: (1.8, 1.3), 16: (4.2, 2.5)}
    cases = [
        {"branches": branches, "ready": {"wall_s": {"swarmkv": ours, "ideal": engine}}}
        for branches, (ours, engine) in walls.items()
    ]
    found = marginal_costs(cases, "swarmkv", "ideal")
    assert found is not None
    assert (round(found["ours_s"], 6), round(found["engine_s"], 6)) == (0.2, 0.1)
    assert round(found["ratio"], 6) == 2
    assert marginal_costs(cases[:2], "swarmkv", "ideal") is None
    assert marginal_costs(cases, "swarmkv", "absent") is None


def test_a_report_has_charts_and_the_tables_of_every_file(home: Home, tiny_llama_path: Path) -> None:
    fanout(home, tiny_llama_path, "--branches", "1,2", "--schemes", "swarmkv,reprefill,ideal")
    tiny = ("--model", str(tiny_llama_path))
    measured(home, "restore", *tiny, "--tokens", "100", "--wide-gb", "0", "--rounds", "1")
    measured(home, "soak", *tiny, "--minutes", "0.02", "--doc-tokens", "100")
    files = [str(home.directory / f"{name}.json") for name in ("fanout", "restore", "soak")]
    done = home.run("bench", "report", *files, "-o", str(home.directory / "out"))
    assert done.code == 0, done.stderr
    charts = sorted(path.name for path in (home.directory / "out").glob("*.png"))
    assert charts == [
        *("fanout-cold.png", "fanout-ready.png", "fanout-speedup.png"),
        *("restore-bandwidth.png", "soak-memory.png"),
    ]
    page = (home.directory / "out" / "benchmarks.md").read_text()
    assert all(f"({chart})" in page for chart in charts)
    assert "swarmkv bench fanout --doc-tokens 300 --branches 1,2 --max-tokens 4 --rounds 1 --seed 0" in page
    assert "| reprefill |" in page


def test_a_report_of_something_else_is_refused(home: Home) -> None:
    path = home.directory / "other.json"
    path.write_text("[1]")
    done = home.run("bench", "report", str(path), "-o", str(home.directory / "out"))
    assert done.code == 2
    assert "is no document of a benchmark" in done.stderr


@pytest.mark.parametrize("benchmark", ["fanout", "restore", "queue", "throughput", "overheads", "soak"])
@pytest.mark.parametrize("content", [{}, {"cases": [{}]}, {"cases": [1]}, {"cases": {"a": 1}, "machine": []}])
def test_a_document_of_another_version_is_refused(home: Home, benchmark: str, content: dict[str, Any]) -> None:
    path = home.directory / "older.json"
    path.write_text(json.dumps({"benchmark": benchmark, **content}))
    with pytest.raises(InvalidInput, match="is not as this version writes it"):
        write_report([path], home.directory / "out")


def test_an_error_beside_a_json_file_leaves_stdout_alone(home: Home) -> None:
    done = home.run("bench", "queue", "--json", str(home.directory / "absent" / "queue.json"))
    assert (done.code, done.stdout) == (2, "")
    assert "There is no directory" in done.stderr
