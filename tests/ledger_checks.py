"""What holds in Redis after every step, told by every key that there is."""

from __future__ import annotations

from swarmkv.protocol import keys
from tests.ledger_driver import CLOCK
from tests.ledger_model import LEASE_S, MAX_REBUILDS, MAX_SOLO_CRASHES, Branch, Prefix
from tests.ledger_pair import DOCUMENTS, MODEL, TTL_S, LedgerPair, prefix_of, snapshot_of


def redis_agrees(pair: LedgerPair) -> None:
    """Everything below."""
    work_is_as_the_model_says(pair)
    arq_knows_what_is_queued_and_nothing_else(pair)
    what_runs_is_leased_and_nothing_else(pair)
    runs_end_once_with_their_last_branch(pair)
    what_an_open_run_needs_outlives_its_deadline(pair)


def work_is_as_the_model_says(pair: LedgerPair) -> None:
    for branch in pair.model.branches():
        row = pair.driver.fields("branch", run=branch.run, index=branch.index)
        seen = (row["state"], int(row["attempt"]), "result" in row)
        assert seen == (branch.state, branch.attempt, not branch.is_open)
        if branch.state == "running":
            assert row["worker"] == branch.worker
        assert branch.text in row.get("result", "")
    for prefix in pair.model.prefixes.values():
        row = pair.driver.fields("prefix", prefix=prefix.id)
        assert (row.get("state", "absent"), int(row.get("generation", 0))) == (prefix.state, prefix.generation)
        waiting = {f"{branch.run}:{branch.index}" for branch in pair.model.waiting(prefix)}
        assert set(pair.driver.members(keys.key("waiters", prefix=prefix.id))) == waiting


def arq_knows_what_is_queued_and_nothing_else(pair: LedgerPair) -> None:
    queued = pair.model.work("queued")
    for role, kind in (("branch", Branch), ("prefill", Prefix)):
        known = set(pair.driver.members(keys.key("queue", role=role, alias=MODEL)))
        assert known == {item.job for item in queued if isinstance(item, kind)} - pair.model.unqueued
    assert set(pair.driver.members(keys.READY)) == {item.job for item in queued}
    defined = {name.removeprefix("arq:job:") for name in pair.driver.names("arq:job:*")}
    assert {item.job for item in queued} - pair.model.undefined <= defined
    assert defined <= {item.job for item in (*queued, *pair.model.work("running"))}, "a job outlived its work"


def what_runs_is_leased_and_nothing_else(pair: LedgerPair) -> None:
    leases = {item.job: item.leased_until_s * 1000 for item in pair.model.work("running")}
    assert pair.driver.members(keys.LEASES) == leases
    for name in pair.driver.names("arq:in-progress:*"):
        assert 0 <= pair.driver.raw.ttl(name) <= LEASE_S, "a mark outlives the lease that it stands for"


def runs_end_once_with_their_last_branch(pair: LedgerPair) -> None:
    open_runs = {run_id: run for run_id, run in pair.model.runs.items() if run.is_open}
    members = {branch.member: pair.model.runs[branch.run].deadline_s * 1000 for branch in pair.model.branches()}
    open_members = {branch.member for branch in pair.model.branches() if branch.is_open}
    assert pair.driver.members(keys.OPEN) == {name: members[name] for name in open_members}
    assert set(pair.driver.members(keys.DEAD)) == pair.model.dead
    assert pair.driver.members(keys.ACTIVE) == {name: run.deadline_s * 1000 for name, run in open_runs.items()}
    for run_id, run in pair.model.runs.items():
        row = pair.driver.fields("run", run=run_id)
        states = [branch.state for branch in run.branches]
        assert int(row["open"]) == sum(branch.is_open for branch in run.branches)
        assert [int(row[state]) for state in ("done", "failed", "cancelled")] == [
            states.count(state) for state in ("done", "failed", "cancelled")
        ]
        assert pair.driver.raw.xlen(keys.key("done", run=run_id)) == (not run.is_open)
        follower = pair.followers[run_id]
        follower.hear(pair.driver, run_id)
        assert follower.run_state == (None if run.is_open else run.state)
        ends = {str(branch.index): branch.state for branch in run.branches if not branch.is_open}
        assert follower.ended == ends


def what_an_open_run_needs_outlives_its_deadline(pair: LedgerPair) -> None:
    for run_id, run in pair.model.runs.items():
        if not run.is_open:
            continue
        left_ms = (run.deadline_s - pair.model.now_s) * 1000
        names = [keys.key("run", run=run_id), keys.key("prefix", prefix=run.prefix.id)]
        names += [keys.key("branch", run=run_id, index=branch.index) for branch in run.branches]
        names += [keys.key("document", digest=digest) for digest in digests_of(run.prefix.id)]
        for name in names:
            assert pair.driver.raw.pttl(name) > left_ms, f"{name} is gone before its run"


def digests_of(prefix_id: str) -> list[str]:
    specs = [prefix_of(document) for document in DOCUMENTS]
    return [spec.document for spec in specs if spec.prefix_id == prefix_id]


def everything_has_ended(pair: LedgerPair) -> None:
    """As any reader sees it."""
    for branch in pair.model.branches():
        pair.tally["branches"] += 1
        pair.tally["branches given up after crashes"] += branch.solo_crashes >= MAX_SOLO_CRASHES
        pair.tally["branches given up after rebuilds"] += branch.rebuilds > MAX_REBUILDS
    for run_id, run in pair.model.runs.items():
        report = pair.report(run_id)
        assert report.state == run.state
        assert [item.state for item in report.branches] == [branch.state for branch in run.branches]


def only_results_are_left(pair: LedgerPair) -> None:
    """And when their time has come, not even those."""
    pair.wait(LEASE_S)
    pair.call(lambda ledger: ledger.fleet.workers())  # drops the entries of who is gone
    assert names_but_minutes(pair) <= base() | results(pair) | kept_for_later(pair)
    pair.wait(2 * TTL_S)
    pair.sweep(None)
    pair.call(lambda ledger: ledger.runs.listing(99))  # drops the runs that have expired
    assert names_but_minutes(pair) <= base()


def names_but_minutes(pair: LedgerPair) -> set[str]:
    """All keys but copies of the counts, of which there is one a minute for an hour."""
    minutes = pair.driver.names(keys.key("model_stats_minute", minute="*", alias="*"))
    assert all(0 < pair.driver.raw.ttl(name) <= 3900 for name in minutes)
    return pair.driver.names("*") - minutes


def base() -> set[str]:
    return {CLOCK, keys.RUNS, keys.MODELS, keys.SWEPT, keys.ASKED, keys.key("model_stats", alias=MODEL)}


def results(pair: LedgerPair) -> set[str]:
    names = set()
    for run_id, run in pair.model.runs.items():
        names |= {keys.key(name, run=run_id) for name in ("run", "events", "done")}
        names |= {keys.key("branch", run=run_id, index=branch.index) for branch in run.branches}
        names |= {keys.key("dead", run=run_id, index=branch.index) for branch in run.branches}
    return names


def kept_for_later(pair: LedgerPair) -> set[str]:
    """What the next run over the same document finds, and the indexes of what expires."""
    names = {keys.DOCUMENTS, keys.DOCUMENT_BYTES, keys.DEAD}
    names |= {keys.key("document", digest=prefix_of(document).document) for document in DOCUMENTS}
    for prefix_id in pair.model.prefixes:
        names |= {keys.key("prefix", prefix=prefix_id)}
        names |= {keys.key("snapshot", snapshot=snapshot_of(prefix_id))}
    return names
