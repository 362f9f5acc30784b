"""Every Redis key and channel, spelled here and nowhere else.

The Lua scripts of the ledger build their keys with functions generated from the same templates
(`lua_key_functions`), so that a key can never be spelled differently on the two sides.

Ids: a run is 12 hex digits; a branch is its run and its index; a prefix is the digest of what is prefilled.
"""

from __future__ import annotations

import re

_TEMPLATES = {
    "document": "swarmkv:document:{digest}",  # string: UTF-8 text, written once
    "run": "swarmkv:run:{run}",  # hash: spec, state, counts, times
    "branch": "swarmkv:run:{run}:branch:{index}",  # hash: spec, state, attempt, result
    "events": "swarmkv:run:{run}:events",  # stream, bounded; field "e" holds a list of events
    "done": "swarmkv:run:{run}:done",  # stream of one entry, written when the run ends
    "prefix": "swarmkv:prefix:{prefix}",  # hash: spec, state, generation, snapshot
    "waiters": "swarmkv:prefix:{prefix}:waiters",  # sorted set of branch members waiting for the snapshot
    "snapshot": "swarmkv:snapshot:{snapshot}",  # set of prefix ids that this snapshot serves
    "model": "swarmkv:model:{alias}",  # hash: what workers of this alias announced last
    "worker": "swarmkv:worker:{worker}",  # hash with a TTL: the last heartbeat
    "model_stats": "swarmkv:stats:{alias}",  # hash: counters and times of one model (`statistics.py`)
    "model_stats_minute": "swarmkv:minute:{minute}:{alias}",  # hash: the same as it was at the start of a minute
    "store": "swarmkv:store:{store}",  # hash: what a snapshot store holds, as its workers last said
    "dead": "swarmkv:dead:{run}:{index}",  # hash: why a branch was given up, for people
    "queue": "swarmkv:queue:{role}:{alias}",  # arq's sorted set: jobs that wait for a worker
    "command": "swarmkv:command:{command}",  # hash: what a worker is told, by whom, and what it answered
    "answer": "swarmkv:command:{command}:answer",  # stream of one entry, for who waits for it
    "inbox": "swarmkv:commands:{worker}",  # sorted set: commands that the worker has not taken, by their expiry
    "doorbell": "swarmkv:doorbell:{role}:{alias}",  # pub/sub: something was queued
}

RUNS = "swarmkv:runs"  # sorted set: run id by creation time
ACTIVE = "swarmkv:active"  # sorted set: unfinished run id by deadline
OPEN = "swarmkv:open"  # sorted set: branch member that has not ended, by its run's deadline
DEAD = "swarmkv:dead"  # sorted set: branch member with a dead-letter entry, by the entry's expiry
DOCUMENTS = "swarmkv:documents"  # sorted set: digest and size of a stored document, by its expiry
DOCUMENT_BYTES = "swarmkv:documents:bytes"  # string: bytes of the documents in that set
READY = "swarmkv:ready"  # sorted set: queued job by the time it became ready
LEASES = "swarmkv:leases"  # sorted set: running job by lease expiry
WORKERS = "swarmkv:workers"  # sorted set: worker id by last heartbeat
MODELS = "swarmkv:models"  # set of aliases that a worker ever announced
ASKED = "swarmkv:asked"  # sorted set: alias by the last time that work was submitted for it
STORES = "swarmkv:stores"  # sorted set: store id by the last report
COMMANDS = "swarmkv:commands"  # sorted set: command id by the time it was asked
CONTROL = "swarmkv:control"  # pub/sub: cancelled jobs, and bells for commands, to all workers
AUDIT = "swarmkv:audit"  # stream, bounded: what people did by hand, for people
SWEPT = "swarmkv:swept"  # string: time of the last sweep
NOTHING = "swarmkv:nothing"  # never there: deleting it is a write that a full Redis allows


def key(name: str, **parts: str | int) -> str:
    """The key called `name`, with its parts filled in."""
    return _TEMPLATES[name].format(**parts)


def branch_job(run: str, index: int, attempt: int) -> str:
    """Deterministic arq job id of one attempt at a branch."""
    return f"b:{run}:{index}:{attempt}"


def prefill_job(prefix: str, generation: int) -> str:
    """Deterministic arq job id of one generation of a prefix's prefill."""
    return f"p:{prefix}:{generation}"


def command_bell(worker: str) -> str:
    """What is published on CONTROL when a worker has a command waiting; no job's id begins so."""
    return f"c:{worker}"


def lua_key_functions() -> str:
    """Lua source: one local table K with a function per key template and a string per fixed key."""
    lines = ["local K = {}"]
    for name, template in _TEMPLATES.items():
        parts = re.findall(r"{(\w+)}", template)
        expression = re.sub(r"{(\w+)}", r"'..\1..'", template)
        lines.append(f"function K.{name}({', '.join(parts)}) return '{expression}' end")
    fixed = {"RUNS": RUNS, "ACTIVE": ACTIVE, "READY": READY, "LEASES": LEASES}
    fixed |= {"WORKERS": WORKERS, "MODELS": MODELS, "CONTROL": CONTROL}
    fixed |= {"SWEPT": SWEPT, "NOTHING": NOTHING, "OPEN": OPEN, "DEAD": DEAD}
    fixed |= {"DOCUMENTS": DOCUMENTS, "DOCUMENT_BYTES": DOCUMENT_BYTES, "ASKED": ASKED, "STORES": STORES}
    fixed |= {"COMMANDS": COMMANDS}
    lines += [f"K.{name} = '{value}'" for name, value in fixed.items()]
    return "\n".join(lines)
