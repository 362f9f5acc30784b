"""The head of the screen: queues, speed, what sharing saved, the store, and alerts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich.text import Text

from swarmkv.monitor.top import figures
from swarmkv.monitor.top.reading import AlertRow, QueueRow, Reading
from swarmkv.protocol.text import clean_line

_WIDE = 76  # columns from which on two blocks stand side by side
_BAR_COLUMNS = 10
_QUEUE_COLUMNS = 40
ALERT_STYLES = {"critical": "bold red", "warning": "yellow", "notice": "cyan"}


def fact_lines(reading: Reading, columns: int, room: int) -> list[Text]:
    """At most `room` lines: side by side where there is space for it, else the sums and then the queues."""
    sums = [_speed(reading), _saved(reading), _store(reading), _fleet(reading)]
    if columns >= _WIDE:
        left = _queue_block(reading.queues, min(_QUEUE_COLUMNS, columns // 2), room)
        return [_joined(a, b, columns) for a, b in zip_longest(left, sums[:room])]
    sums = sums[: max(1, room // 2)]
    return [*sums, *_queue_block(reading.queues, columns, room - len(sums))]


def alert_lines(alerts: Sequence[AlertRow], columns: int, room: int) -> list[Text]:
    """At most `room` lines; the last one says how many more there are."""
    hidden = max(0, len(alerts) - room)
    lines = [_alert(alert, columns) for alert in alerts[: room - bool(hidden)]]
    if hidden:
        lines.append(_alert(alerts[room - 1], columns, f" (and {hidden} more)"))
    return lines


def _alert(alert: AlertRow, columns: int, more: str = "") -> Text:
    style = ALERT_STYLES.get(alert.severity, "")
    line = Text.assemble(("! ", "bold"), clean_line(alert.message), style=style, no_wrap=True)
    line.append(f" {clean_line(alert.remedy)}", style="dim")
    line.truncate(columns - len(more), overflow="ellipsis")
    return line.append(more)


def _joined(left: Text | None, right: Text | None, columns: int) -> Text:
    width = min(_QUEUE_COLUMNS, columns // 2)
    line = left.copy() if left else Text()
    line.truncate(width, overflow="ellipsis", pad=True)
    return line + Text("  ") + (right or Text())


def _queue_block(queues: Sequence[QueueRow], columns: int, room: int) -> list[Text]:
    """Those with work first, so that what is left out is idle."""
    if room < 2 or not queues:
        return [Text("no queue yet", style="dim")] if not queues and room else []
    head = _queue_cells("queue", "", "waiting", "running", "oldest", columns)
    head.stylize("dim")
    busiest = sorted(queues, key=lambda queue: -(queue.waiting + queue.running))
    shown = queues if len(queues) < room else busiest[: max(1, room - 2)]
    lines = [head, *(_queue_line(queue, columns) for queue in shown)]
    if hidden := len(queues) - len(shown):
        lines.append(Text(f"and {hidden} more: panel 1", style="dim"))
    return lines[:room]


def _queue_line(queue: QueueRow, columns: int) -> Text:
    line = _queue_cells(
        queue.role,
        clean_line(queue.model),
        figures.count(queue.waiting),
        figures.count(queue.running),
        figures.age(queue.oldest_s),
        columns,
    )
    if not queue.waiting and not queue.running:
        line.stylize("dim")
    elif queue.waiting:
        line.stylize("yellow", line.cell_len - 25, line.cell_len - 17)
    return line


def _queue_cells(role: str, model: str, waiting: str, running: str, oldest: str, columns: int) -> Text:
    """What stands on the right is always 25 columns wide."""
    name = Text(f"{role} {model}".rstrip())
    name.truncate(max(1, columns - 25), overflow="ellipsis", pad=True)
    return name.append(f"{waiting:>8} {running:>7} {oldest:>8}")


def _speed(reading: Reading) -> Text:
    branch = [worker for worker in reading.workers if worker.role == "branch"]
    slots, used = sum(worker.slots for worker in branch), sum(worker.slots_used for worker in branch)
    speed = f"{figures.rate(reading.totals.decode_tokens_per_s)} tok/s"
    line = Text.assemble(("decode  ", "dim"), (speed, "bold"))
    return line.append(f"  {figures.of(used, slots)} slots" if slots else "  no branch worker")


def _saved(reading: Reading) -> Text:
    totals = reading.totals
    line = Text.assemble(("saved   ", "dim"), (f"{figures.count(totals.saved_tokens)} tok", "bold green"))
    return line.append(f"  {figures.age(totals.saved_ms / 1_000)}  {figures.share(totals.saved_share)}")


def _fleet(reading: Reading) -> Text:
    roles = [worker.role for worker in reading.workers]
    parts = [f"{roles.count(role)} {role}" for role in dict.fromkeys(roles)]
    line = Text.assemble(("workers ", "dim"), "  ".join(parts) or ("none", "bold red"))
    return line.append(f"  {reading.totals.dead:,} dead", style="red") if reading.totals.dead else line


def _store(reading: Reading) -> Text:
    totals = reading.totals
    line = Text.assemble(("store   ", "dim"))
    if not totals.store_limit_bytes:
        return line.append("no worker reports one")
    used = totals.store_bytes / totals.store_limit_bytes
    style = "red" if used > 0.95 else "yellow" if used > 0.8 else "green"
    line.append(figures.bar(used, _BAR_COLUMNS), style=style)
    return line.append(f" {figures.size(totals.store_bytes)} of {figures.size(totals.store_limit_bytes)}")
