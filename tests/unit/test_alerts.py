"""What is alarming, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarmkv.monitor.alerts import SEVERITIES, alerts
from tests.overviews import BROKER, model, overview, queue, store, worker

WAITING = queue(waiting=12, oldest_age_s=30.0)
OLD = queue(waiting=12, running=8, oldest_age_s=600.0)
CASES: dict[str, dict[str, Any]] = {
    "no_worker": {"queues": (WAITING,), "workers": (worker("prefill"),)},
    "role_missing": {"workers": (worker(),)},
    "workers_paused": {"queues": (WAITING,), "workers": (worker("prefill"), worker(state="paused"))},
    "queue_old": {"queues": (OLD,)},
    "stores_apart": {"workers": (worker("prefill", store="a"), worker(store="b"))},
    "settings_apart": {"workers": (worker("prefill", identity="a"), worker(identity="b"))},
    "eviction_policy": {"broker": replace(BROKER, policy="allkeys-lru")},
    "redis_memory": {"broker": replace(BROKER, used_bytes=90, max_bytes=100)},
    "store_full": {"stores": (store(50, 45, is_needed=True),)},
    "worker_silent": {"workers": (worker("prefill"), worker(age_s=7.0))},
    "crashes": {"models": (model(crashes=3),)},
    "failures": {"models": (model(branches_failed=9, branches_done=2),)},
    "dead_letters": {"dead": 2},
}


def test_a_quiet_installation_alarms_nobody() -> None:
    assert alerts(overview()) == []


@pytest.mark.parametrize("code", CASES)
def test_each_fault_is_named_once_with_what_to_do(code: str) -> None:
    [alert] = alerts(overview(**CASES[code]))
    assert alert.code == code
    assert alert.message.endswith(".")
    assert len(alert.remedy) > 20


def test_who_is_missing_and_how_much_waits_is_said() -> None:
    [alert] = alerts(overview(**CASES["no_worker"]))
    assert alert.severity == "critical"
    assert alert.message == "No branch worker serves model 'default'; 12 jobs wait, the oldest for 30 s."
    assert "swarmkv worker branch --model default=PATH" in alert.remedy


def test_a_worker_of_another_model_or_role_serves_nobody() -> None:
    others = (worker("branch", "other"), worker("prefill"))
    assert [alert.code for alert in alerts(overview(queues=(WAITING,), workers=others))] == ["no_worker"]


def test_one_running_worker_among_paused_ones_is_enough() -> None:
    found = alerts(overview(queues=(WAITING,), workers=(worker(state="draining"), worker(id="branch-2"))))
    assert found == []


def test_jobs_that_are_to_start_later_wait_for_nobody() -> None:
    assert alerts(overview(queues=(queue(deferred=5),), workers=())) == []


def test_a_model_without_any_worker_and_without_work_is_at_rest() -> None:
    assert alerts(overview(workers=())) == []


def test_a_store_full_of_what_may_go_is_as_it_should_be_until_something_went() -> None:
    assert alerts(overview(stores=(store(50, 45),))) == []
    [alert] = alerts(overview(stores=(store(50, 45),), models=(model(evictions=4),)))
    assert (alert.code, alert.severity) == ("store_full", "notice")
    assert "95%" in alert.message
    assert "4 snapshots" in alert.message


def test_workers_that_have_one_store_in_common_are_not_apart() -> None:
    workers = (worker("prefill", store="a"), worker("prefill", id="p2", store="b"), worker(store="b"))
    assert alerts(overview(workers=workers)) == []
    assert alerts(overview(workers=(worker("prefill", store=""), worker(store="b")))) == []


def test_without_the_right_to_ask_redis_nothing_is_said_of_it() -> None:
    assert alerts(overview(broker=None)) == []


def test_the_worst_comes_first() -> None:
    changes: dict[str, Any] = {}
    for case in CASES.values():
        changes.update(case)
    found = [SEVERITIES.index(alert.severity) for alert in alerts(overview(**changes))]
    assert len(found) > 3
    assert found == sorted(found)
