"""The log lines of a worker."""

from __future__ import annotations

import json
import logging
import sys

from swarmkv.cli.logs import JsonFormatter, LineFormatter, is_telling, json_line


def record(level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.getLogger("swarmkv.test").makeRecord(
        "swarmkv.test", level, "file", 1, "restored %s", ("ab\x1b[1m",), None, extra=extra or None
    )
    made.created = 0.25
    made.msecs = 250.0
    return made


def test_a_json_line_carries_the_extra_fields() -> None:
    fields = json.loads(JsonFormatter().format(record(action="snapshot_restored", tokens=5)))
    assert fields == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "info",
        "logger": "swarmkv.test",
        "message": "restored ab\x1b[1m",
        "action": "snapshot_restored",
        "tokens": 5,
    }


def test_a_line_for_people_names_the_ids_and_cannot_act_on_a_terminal() -> None:
    line = LineFormatter().format(record(logging.WARNING, action="x", run="1234", ms=12524.894909998693))
    assert line.endswith("warning: restored ab␛[1m run=1234 ms=12524.9")


def test_a_traceback_follows_its_line() -> None:
    failed = record(logging.ERROR)
    try:
        raise ValueError("boom")
    except ValueError:
        failed.exc_info = sys.exc_info()
    assert LineFormatter().format(failed).splitlines()[-1] == "ValueError: boom"
    assert "ValueError: boom" in json.loads(JsonFormatter().format(failed))["traceback"]


def test_only_warnings_and_the_life_of_the_worker_are_printed_by_default() -> None:
    assert is_telling(record(logging.WARNING))
    assert is_telling(record(action="worker_ready"))
    assert not is_telling(record(action="snapshot_restored"))


def test_a_line_of_a_program_becomes_json_that_names_it() -> None:
    assert json.loads(json_line("branch-1", b'{"action": "x"}')) == {"action": "x", "program": "branch-1"}
    for words in (b"Ready to accept connections", b"{not json", b"[1]"):
        fields = json.loads(json_line("broker", words))
        assert (fields["message"], fields["program"], fields["level"]) == (words.decode(), "broker", "info")
