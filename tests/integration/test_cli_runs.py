"""enqueue, runs, show, results, cancel, workers: what scripts rely on, against a real broker and worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.command import COMMAND, Done, Home
from tests.waiting import wait_until

DOCUMENT = b"The retry limit is four.\n"
REPORT_KEYS = {
    *("run_id", "state", "name", "document_tokens", "prefills_run", "prefill_ms", "prefill_saved_ms"),
    *("wall_ms", "snapshot", "branches"),
}
BRANCH_KEYS = {
    *("name", "state", "text", "finish_reason", "error", "attempts", "worker", "tokens", "timings_ms"),
}
WORKER_KEYS = {"id", "role", "state", "pid", "host", "model", "slots", "slots_used", "last_beat_age_s"}


@pytest.fixture
def home(redis_url: str, tmp_path: Path) -> Home:
    """A home on the test's broker, whose workers need no model."""
    return Home(tmp_path).with_settings(redis_url=redis_url, null_engine=True)


@pytest.fixture
def workers(home: Home) -> Iterator[Home]:
    """The same with a worker of both roles."""
    with home.started("worker", "all"):
        wait_until(lambda: home.run("workers", "--json").code == 0, timeout_s=60)
        yield home


def enqueue(home: Home, *arguments: str, document: bytes = DOCUMENT) -> Done:
    return home.run("enqueue", "-", *arguments, stdin=document)


def test_enqueue_wait_json_prints_one_document_with_all_keys(workers: Home) -> None:
    done = enqueue(workers, "-p", "risks=Which?", "-p", "Why?", "--max-tokens", "3", "--wait", "--json")
    assert (done.code, done.stderr) == (0, "")
    assert done.json.keys() >= REPORT_KEYS
    assert [branch["name"] for branch in done.json["branches"]] == ["risks", "branch-2"]
    for branch in done.json["branches"]:
        assert branch.keys() == BRANCH_KEYS
        assert branch["tokens"].keys() == {"reused", "recomputed", "prompt", "generated"}
        assert branch["timings_ms"].keys() == {"queue", "restore", "prompt", "first_token", "decode", "total"}
        assert (branch["state"], branch["finish_reason"], branch["error"]) == ("done", "length", None)
    assert workers.run("results", done.json["run_id"], "--json").json == done.json


def test_enqueue_prints_the_run_id_alone_and_results_finds_it(workers: Home) -> None:
    (workers.directory / "spec.md").write_bytes(DOCUMENT)
    accepted = workers.run("enqueue", "spec.md", "-p", "Why?", "--max-tokens", "2")
    run = accepted.stdout.strip()
    assert (accepted.code, accepted.stdout) == (0, run + "\n")
    wait_until(lambda: workers.run("results", run).code == 0)
    results = workers.run("results", run)
    assert results.stdout.startswith("branch-1 (cut at max_tokens)\n")
    shown = workers.run("show", run)
    assert "spec.md" in shown.stdout
    assert "decode tok/s" in shown.stdout
    listed = workers.run("runs", "--json").json
    assert [(item["run_id"], item["name"], item["state"]) for item in listed] == [(run, "spec.md", "done")]
    assert run in workers.run("runs").stdout


def test_follow_json_streams_events_and_ends_with_the_report(workers: Home) -> None:
    done = enqueue(workers, "-p", "Why?", "--max-tokens", "3", "--follow", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    types = [line["type"] for line in lines]
    assert done.code == 0
    assert types[-2:] == ["run_done", "report"]
    assert {"prefill_done", "branch_started", "branch_text", "branch_done"} <= set(types)
    text = "".join(line["text"] for line in lines if line["type"] == "branch_text")
    assert text == lines[-1]["branches"][0]["text"]


def test_follow_in_a_pipe_tells_the_progress_on_stderr_and_the_answers_on_stdout(workers: Home) -> None:
    done = enqueue(workers, "-p", "risks=Why?", "--max-tokens", "3", "--follow")
    assert done.code == 0
    assert "risks: started by" in done.stderr
    assert "risks: done, 3 tokens" in done.stderr
    assert done.stdout.startswith("risks (cut at max_tokens)\n")
    assert "\x1b" not in done.stdout + done.stderr


def test_workers_json_has_exactly_the_promised_keys(workers: Home) -> None:
    rows = workers.run("workers", "--json").json
    assert sorted(row["role"] for row in rows) == ["branch", "prefill"]
    assert all(row.keys() == WORKER_KEYS for row in rows)
    assert "branch" in workers.run("workers").stdout


def test_a_reader_that_leaves_is_no_error(workers: Home) -> None:
    shell = f"{' '.join(COMMAND)} enqueue - -p 'Why?' --max-tokens 200 --wait | true"
    done = subprocess.run(
        ["/bin/sh", "-c", shell], env=workers.env, input=DOCUMENT, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_branch_that_fails_makes_the_exit_code_one_and_hides_no_other(home: Home, tiny_llama_path: Path) -> None:
    real = home.with_settings(null_engine=False, threads=1)
    with real.started("worker", "all", "--model", str(tiny_llama_path)):
        wait_until(lambda: real.run("workers", "--json").code == 0, timeout_s=60)
        done = enqueue(
            real,
            *("-p", "good=Why?", "--prompts", _too_long(home), "--max-tokens", "4", "--wait", "--json"),
        )
    states = {branch["name"]: branch["state"] for branch in done.json["branches"]}
    assert (done.code, done.json["state"]) == (1, "completed_with_errors")
    assert states == {"good": "done", "bad": "failed"}
    assert done.json["branches"][1]["error"].keys() == {"code", "message", "hint"}


def _too_long(home: Home) -> str:
    branch = {"name": "bad", "prompt": "Why?", "sampling": {"max_tokens": 1_000_000}}
    (home.directory / "bad.jsonl").write_text(json.dumps(branch))
    return "bad.jsonl"


@pytest.fixture
def announced(home: Home, redis_url: str) -> Home:
    """The alias `default` was announced once; nobody serves it now."""
    redis.Redis.from_url(redis_url).sadd("swarmkv:models", "default")
    return home


def test_a_run_that_waits_for_a_worker_is_accepted_with_a_warning(announced: Home) -> None:
    done = enqueue(announced, "-p", "Why?")
    assert done.code == 0
    assert "warning: No prefill worker for model 'default' is alive" in done.stderr
    run = done.stdout.strip()
    results = announced.run("results", run, "--json")
    assert (results.code, results.json["state"]) == (3, "queued")
    cancelled = announced.run("cancel", run, "--json")
    assert cancelled.json == {"run_id": run, "cancelled": True, "state": "cancelled"}
    assert announced.run("results", run).code == 1
    assert "had already ended: cancelled" in announced.run("cancel", run).stderr
    two = enqueue(announced, "-p", "a=What?", "-p", "b=Why?").stdout.strip()
    assert f"a of run {two}: cancelled." in announced.run("cancel", two, "a").stderr
    shown = announced.run("show", two, "--json").json
    assert [branch["state"] for branch in shown["branches"]] == ["cancelled", "waiting"]
    unknown = announced.run("cancel", two, "c")
    assert (unknown.code, "has no branch 'c'" in unknown.stderr) == (2, True)


def test_waiting_in_vain_for_a_worker_ends_with_code_five(announced: Home) -> None:
    late = enqueue(announced, "-p", "Why?", "--wait", "--deadline", "0.3", "--json")
    assert (late.code, late.json["state"]) == (5, "failed")
    assert "No worker for model 'default' is alive" in late.stderr
    impatient = enqueue(announced, "-p", "Why?", "--wait", "--timeout", "0.3")
    assert impatient.code == 5
    assert announced.run("workers").code == 5


def test_a_followed_run_that_fails_says_each_thing_once(announced: Home) -> None:
    done = enqueue(announced, "-p", "a=Why?", "-p", "b=What?", "--follow", "--deadline", "0.3")
    assert done.code == 5
    said = done.stdout + done.stderr
    assert said.count("No prefill worker for model 'default' is alive") == 1
    assert said.count("did not end within its deadline") == 1
    assert "b (failed)\n" in done.stdout


def test_interrupting_a_wait_leaves_the_run_and_says_how_to_return(announced: Home) -> None:
    (announced.directory / "d.txt").write_bytes(DOCUMENT)
    with announced.started("enqueue", "d.txt", "-p", "Why?", "--wait") as process:
        wait_until(lambda: "is alive" in announced.stderr)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 3
    [summary] = announced.run("runs", "--json").json
    assert summary["state"] == "queued"
    assert f"swarmkv results {summary['run_id']}" in announced.stderr
    assert "Traceback" not in announced.stderr


def test_an_unknown_alias_is_refused_naming_the_known_ones(announced: Home) -> None:
    done = enqueue(announced, "-p", "Why?", "--model", "legal")
    assert done.code == 2
    assert "'legal'; known models: default" in done.stderr
    assert enqueue(announced, "-p", "Why?", "--model", "legal", "--any-model").code == 0


@pytest.mark.parametrize(
    ("document", "arguments", "message"),
    [
        (b"", ["-p", "Why?"], "The document is empty"),
        (b" \n\t", ["-p", "Why?"], "nothing but white space"),
        (b"caf\xe9", ["-p", "Why?"], "byte 0xe9 at offset 3"),
        (b"a\x00b", ["-p", "Why?"], "NUL byte at offset 1"),
        (b"x" * 2_001, ["-p", "Why?"], "at least 2,001 bytes; the limit is 2,000"),
        (DOCUMENT, [], "The run has no branches"),
        (DOCUMENT, ["-p", ""], "is empty"),
        (DOCUMENT, ["-p", "a=x", "-p", "a=y"], "the same name 'a'"),
        (DOCUMENT, ["-p", "../x=Why?"], "'../x' is not allowed"),
        (DOCUMENT, ["-p", "a" * 300 + "=Why?"], "(300 characters)"),
        (DOCUMENT, ["-p", "x"] * 6, "has 6 branches; the limit is 5"),
        (DOCUMENT, ["-p", "Why?", "--temperature", "-1"], "--temperature -1.0: "),
        (DOCUMENT, ["-p", "Why?", "--max-tokens", "0"], "--max-tokens 0: "),
        (DOCUMENT, ["-p", "Why?", "--max-tokens", "many"], "--max-tokens"),
        (DOCUMENT, ["-p", "Why?", "--prompts", "none.yaml"], "none.yaml cannot be read"),
        (DOCUMENT, ["-p", "Why?", "--deadline", "-1"], "deadline of -1.0 s is out of range"),
        (DOCUMENT, ["-p", "Why?", "--wait", "--timeout", "nan"], "nan is no length of time"),
        (DOCUMENT, ["-p", "Why?", "--wait", "--timeout", "inf"], "inf is no length of time"),
        (DOCUMENT, ["-p", "Why?", "--follow", "--timeout", "-5"], "-5 is no length of time"),
        (DOCUMENT, ["-p", "Why?", "--timeout", "5"], "nothing waits"),
        (DOCUMENT, ["-p", "Why?", "--model", "a\x1b[31m=b"], "is no alias"),
        (DOCUMENT, ["-p", "Why?", "--template", "/dev/zero"], "The template has at least"),
        (DOCUMENT, ["-p", "Why?", "--no-such-option"], "No such option"),
    ],
)
def test_bad_input_is_refused_with_code_two_in_plain_words(
    announced: Home, document: bytes, arguments: list[str], message: str
) -> None:
    limited = announced.with_settings(max_document_bytes=2_000, max_branches=5)
    done = enqueue(limited, *arguments, "--json", document=document)
    assert done.code == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert done.json["error"]["message"] in done.stderr
    assert announced.run("runs", "--json").json == []


def test_an_absent_document_is_named(announced: Home) -> None:
    done = announced.run("enqueue", "none.md", "-p", "Why?")
    assert (done.code, "none.md cannot be read" in done.stderr) == (2, True)


def test_a_lone_surrogate_in_a_prompt_is_refused(announced: Home) -> None:
    done = subprocess.run(
        [*COMMAND, "enqueue", "-", "-p", os.fsdecode(b"Why \xff?")],
        env=announced.env,
        input=DOCUMENT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("runs",), ("results", "0" * 12), ("workers",), ("cancel", "0" * 12)])
@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", ""])
def test_an_unreachable_redis_ends_with_code_four(tmp_path: Path, command: tuple[str, ...], url: str) -> None:
    done = Home(tmp_path).with_settings(redis_url=url).run(*command, "--json")
    assert (done.code, done.json["error"]["code"]) == (4, "broker")
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("command", ["results", "show", "cancel"])
def test_an_unknown_run_is_refused(home: Home, command: str) -> None:
    done = home.run(command, "no-such\x1brun", "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "run_not_found")
    assert "\x1b" not in done.stderr


def test_a_misspelt_setting_is_refused_by_name(home: Home) -> None:
    done = home.with_settings(slotz=3).run("runs")
    assert (done.code, "SWARMKV_SLOTZ (environment) is no setting" in done.stderr) == (2, True)


def test_a_worker_without_a_model_file_ends_with_code_two(home: Home) -> None:
    done = home.with_settings(null_engine=False).run("worker", "branch", "--model", "none.gguf")
    assert (done.code, "none.gguf" in done.stderr) == (2, True)
    assert len(done.stderr.splitlines()) <= 2


def test_the_version_is_printed(home: Home) -> None:
    assert home.run("--version").stdout.startswith("swarmkv ")
