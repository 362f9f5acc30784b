"""The log lines of a worker on stderr: for people, or as JSON for machines."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from typing import Any, Protocol

from swarmkv.cli.text import clean_line

logger = logging.getLogger(__name__)

_BUILT_IN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logs(*, as_json: bool, verbose: bool) -> None:
    """Send the records of this process to stderr; as text without `verbose`, warnings and the worker's own life."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    if not (verbose or as_json):
        handler.addFilter(is_telling)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("swarmkv").setLevel(logging.INFO)


def is_telling(record: logging.LogRecord) -> bool:
    """Whether a record is printed by default."""
    action = str(getattr(record, "action", ""))
    return record.levelno >= logging.WARNING or action.startswith(("worker_", "model_", "monitor_"))


class LineFormatter(logging.Formatter):
    """`12:31:07 warning  message  run=… branch=…`."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno == logging.INFO else record.levelname.lower() + ": "
        fields = " ".join(f"{name}={_short(value)}" for name, value in extras(record).items() if name != "action")
        line = clean_line(f"{stamp} {level}{record.getMessage()}  {fields}")
        return line if record.exc_info is None else line + "\n" + self.formatException(record.exc_info)


def _short(value: object) -> object:
    """Milliseconds to a tenth: the JSON lines have all digits."""
    return round(value, 1) if isinstance(value, float) else value


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then the record's extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info is not None:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields | extras(record), default=str)


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller gave as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _BUILT_IN}


class Say(Protocol):
    """As `output.note`: a line about what goes on."""

    def __call__(self, message: str, hint: str = "", *, style: str = "") -> None: ...


def notes_as_records(message: str, hint: str = "", *, style: str = "") -> None:  # noqa: ARG001 - as `Say` is called
    """A note as a record, for who reads the log by machine."""
    told = {"hint": hint} if hint else {}
    logger.info("%s", clean_line(message), extra={"action": "note", **told})


def json_line(program: str, line: bytes) -> bytes:
    """A line of a program as a line of JSON that names it: its own object, or its words as the message."""
    text = line.decode(errors="replace")
    fields: Any = None
    if text.startswith("{"):
        with contextlib.suppress(ValueError):
            fields = json.loads(text)
    if not isinstance(fields, dict):
        fields = {"time": _stamp(time.time()), "level": "info", "message": text}
    return json.dumps(fields | {"program": program}).encode()


def _stamp(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s)) + f".{int(unix_s % 1 * 1000):03d}Z"
