"""`swarmkv snapshots`: what the store of this host holds.

`pin`, `unpin` and `rm` act on the store of this host; with --remote, or where there is none, through the workers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from typing import Annotated, Any

import typer

from swarmkv.cli import exits, output, render
from swarmkv.cli.client import open_producer
from swarmkv.cli.control import answer_document, asker
from swarmkv.cli.options import Json
from swarmkv.producer import Producer
from swarmkv.protocol.commands import Answer, Command, CommandKind
from swarmkv.protocol.errors import SnapshotError, SnapshotMissing
from swarmkv.protocol.settings import load_settings
from swarmkv.snapshots import SnapshotEntry, SnapshotMeta, SnapshotStore, format_bytes

app = typer.Typer(help="List, check, pin and remove the snapshots of this host, or of the workers.")
Key = Annotated[str, typer.Argument(metavar="KEY", help="A snapshot's key, or its unambiguous beginning.")]
Keys = Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys, or their unambiguous beginnings.")]
Remote = Annotated[
    bool,
    typer.Option("--remote", help="Through the workers, in their store; so it is done, too, where none is here."),
]
_KEY_CHARS = 32
_MIN_PREFIX_CHARS = 4
_DATES = ("last_used_ms", "created_ms")


@app.command("ls")
def ls(as_json: Json = False) -> None:
    """List the snapshots, the most recently used first."""
    store = _store()
    entries = store.ls()
    if as_json:
        output.print_json([_entry_document(entry) for entry in entries])
        return
    columns = ("snapshot", "state", "pinned", "tokens", "size", "prefill", "last used")
    render.table(output.stdout(), columns, map(_row, entries), left=3)
    used, budget = format_bytes(store.used_bytes()), format_bytes(store.budget_bytes)
    output.note(f"{used} of {budget} in {store.path}", style="dim")


@app.command("inspect")
def inspect(key: Key, as_json: Json = False) -> None:
    """Show what a snapshot says of itself."""
    store = _store()
    entry = _find(store, key)
    if as_json:
        output.print_json(_entry_document(entry))
        return
    fields = _entry_document(entry)
    rows: list[list[render.Cell]] = [
        [name, _shown(name, value)] for name, value in fields.items() if not isinstance(value, dict)
    ]
    rows += [[f"layout.{name}", _shown(name, value)] for name, value in (fields.get("layout") or {}).items()]
    render.table(output.stdout(), ("field", "value"), rows, left=2)


@app.command("verify")
def verify(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="All, if none is given.")] = None,
    as_json: Json = False,
) -> None:
    """Check every byte; exit code 1 when a snapshot is damaged."""
    store = _store()
    found = [_find(store, key).key for key in keys] if keys else [entry.key for entry in store.ls()]
    problems = {key: _problem(store, key) for key in found}
    if as_json:
        output.print_json([{"key": key, "problem": problem} for key, problem in problems.items()])
    else:
        rows = [(key, render.verdict(problem)) for key, problem in problems.items()]
        render.table(output.stdout(), ("snapshot", "state"), rows, left=2)
    if any(problems.values()):
        raise typer.Exit(exits.FAILED)


@app.command("rm")
def rm(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="What to remove.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every snapshot.")] = False,
    remote: Remote = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --remote: also what unfinished runs need; they prefill it again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove snapshots, pinned ones too; what still needs one prefills again.

    Through the workers, one that unfinished runs need is refused.
    """
    if everything == bool(keys):
        raise typer.BadParameter("give the keys of snapshots, or --all")
    if _is_remote(remote):
        if everything:
            raise typer.BadParameter("--all is for the store of this host; name what the workers are to remove")
        _tell("drop", keys or [], as_json, force=force)
        return
    store = _store()
    chosen = store.ls() if everything else [_find(store, key) for key in keys or []]
    removed = [entry.key for entry in chosen if store.remove(entry.key)]
    if as_json:
        output.print_json({"removed": removed})
    else:
        output.note(f"Removed {len(removed)} of {len(chosen)} snapshots.")


@app.command("pin")
def pin(keys: Keys, remote: Remote = False, as_json: Json = False) -> None:
    """Keep snapshots from being evicted, until they are unpinned or removed."""
    if _is_remote(remote):
        _tell("pin", keys, as_json)
        return
    store = _store()
    chosen = [_find(store, key).key for key in keys]
    changed = [key for key in chosen if store.pin(key)]
    _say_pinned("pinned", chosen, changed, as_json)


@app.command("unpin")
def unpin(keys: Keys, remote: Remote = False, as_json: Json = False) -> None:
    """Let pinned snapshots be evicted again."""
    if _is_remote(remote):
        _tell("unpin", keys, as_json)
        return
    store = _store()
    chosen = [_find(store, key).key for key in keys]
    changed = [key for key in chosen if store.unpin(key)]
    _say_pinned("unpinned", chosen, changed, as_json)


def _say_pinned(what: str, chosen: list[str], changed: list[str], as_json: bool) -> None:
    if as_json:
        output.print_json({what: changed})
    else:
        output.note(f"{what.capitalize()} {len(changed)} of {len(chosen)} snapshots; the others were so already.")


def _is_remote(asked: bool) -> bool:
    """Whether the workers are to do it; said when nobody asked for that."""
    directory = load_settings().store_dir
    if not asked and not directory.is_dir():
        output.note(f"No store is at {directory}: asking the workers.", style="dim")
        return True
    return asked


def _tell(kind: CommandKind, keys: list[str], as_json: bool, *, force: bool = False) -> None:
    """One answer for each key; raises CommandRefused for the first no, what was done before stays done."""
    answers = asyncio.run(_told(kind, keys, force))
    if as_json:
        output.print_json([answer_document(answer) for answer in answers])
    else:
        for answer in answers:
            output.note(answer.message)


async def _told(kind: CommandKind, keys: list[str], force: bool) -> list[Answer]:
    answers: list[Answer] = []
    async with open_producer() as producer:
        for key in [await _remote_key(producer, key) for key in keys]:
            command = Command(kind=kind, snapshot=key, force=force, by=asker())
            answers.append(await producer.tell("store", command))
            answers[-1].check()
    return answers


async def _remote_key(producer: Producer, key: str) -> str:
    """The whole key of a beginning, as the workers say what they hold. Raises SnapshotMissing, UsageFault."""
    if len(key) >= _KEY_CHARS:
        return key
    stored = {item.key for store in await producer.stores() for item in store.snapshots}
    return _the_one(key, [found for found in stored if found.startswith(key)], "No worker's store has a")


def _store() -> SnapshotStore:
    settings = load_settings()
    return SnapshotStore(settings.store_dir, settings.store_budget_bytes)


def _find(store: SnapshotStore, key: str) -> SnapshotEntry:
    """The one snapshot whose key begins with `key`; raises SnapshotMissing, UsageFault."""
    entries = {entry.key: entry for entry in store.ls() if entry.key.startswith(key)}
    return entries[_the_one(key, list(entries), f"The store at {store.path} has no")]


def _the_one(key: str, found: list[str], none: str) -> str:
    if not found or len(key) < _MIN_PREFIX_CHARS:
        raise SnapshotMissing(
            f"{none} snapshot {key!r}.",
            hint="`swarmkv snapshots ls` lists those of this host; --remote asks the workers.",
        )
    if len(found) > 1:
        raise exits.UsageFault(f"{len(found)} snapshots begin with {key!r}.", hint="Give more of the key.")
    return found[0]


def _problem(store: SnapshotStore, key: str) -> str:
    try:
        store.verify(key)
    except SnapshotError as exc:
        return exc.message
    return ""


def _entry_document(entry: SnapshotEntry) -> dict[str, Any]:
    document: dict[str, Any] = {
        "key": entry.key,
        "size_bytes": entry.size_bytes,
        "last_used_ms": entry.last_used_ms,
        "pinned": entry.is_pinned,
        "problem": entry.problem or None,
    }
    return document | (_meta_document(entry.meta) if entry.meta else {})


def _meta_document(meta: SnapshotMeta) -> dict[str, Any]:
    fields = {field.name: getattr(meta, field.name) for field in dataclasses.fields(meta)}
    return fields | {"layout": dict(meta.layout)}


def _row(entry: SnapshotEntry) -> list[render.Cell]:
    return [
        entry.key,
        render.verdict(entry.problem),
        "pinned" if entry.is_pinned else "",
        render.count(entry.prefix_tokens),
        format_bytes(entry.size_bytes),
        render.milliseconds(entry.meta.prefill_ms if entry.meta else 0.0),
        _date(entry.last_used_ms),
    ]


def _shown(name: str, value: object) -> str:
    """A field for people: a date, a duration, a size, or a number that can be read."""
    match value:
        case None:
            return render.NOTHING
        case int() if name.endswith("_bytes"):
            return f"{value:,} ({format_bytes(value)})"
        case int() if name in _DATES:
            return _date(value)
        case int() | float() if name.endswith("_ms"):
            return render.milliseconds(value)
        case _:
            return _number_or_text(value)


def _date(value_ms: int) -> str:
    return datetime.datetime.fromtimestamp(value_ms / 1_000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _number_or_text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
