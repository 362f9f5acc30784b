"""A worker's own /metrics, /healthz and /readyz, and a real Prometheus that scrapes all there is."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from swarmkv.monitor.machines import machine_pages
from swarmkv.monitor.metrics import answer_metrics
from swarmkv.protocol.broker import connect
from swarmkv.protocol.ledger import Ledger
from swarmkv.protocol.probes import answering, listen, url_of
from tests.command import Home
from tests.prometheus import DEPLOY, families, program, promtool
from tests.waiting import eventually, wait_until

DOCUMENT = b"The retry limit is four.\n"


@pytest.fixture
def home(redis_url: str, tmp_path: Path) -> Home:
    return Home(tmp_path).with_settings(
        redis_url=redis_url, null_engine=True, lease_s=2, heartbeat_s=0.5, sweep_s=0.2
    )


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read()


def listening(home: Home) -> str:
    """The URL that the worker's log names."""

    def named() -> list[str]:
        return re.findall(r"metrics at (http://\S+)/metrics", home.stderr)

    wait_until(lambda: bool(named()), timeout_s=60)
    return named()[0]


def is_ready(url: str) -> bool:
    return get(f"{url}/readyz") == (200, b"ok\n")


def samples(body: bytes) -> dict[tuple[str, ...], float]:
    return {
        (s.name, *sorted(s.labels.values())): s.value for family in families(body).values() for s in family.samples
    }


def test_a_worker_tells_of_its_own_process(home: Home) -> None:
    with home.started("worker", "all", "--metrics-port", "0") as process:
        url = listening(home)
        wait_until(lambda: is_ready(url), timeout_s=60)
        assert get(f"{url}/healthz") == (200, b"ok\n")
        options = ("-p", "One?", "-p", "Two?", "--max-tokens", "3", "--wait", "--json")
        assert home.run("enqueue", "-", *options, stdin=DOCUMENT).code == 0
        status, body = get(f"{url}/metrics")
        assert (status, promtool("check", "metrics", stdin=body)) == (200, "")
        told = samples(body)
        assert told["swarmkv_engine_tokens_total", "default", "generated"] == 6
        assert told["swarmkv_engine_tokens_total", "default", "prefilled"] > 0
        assert told["swarmkv_engine_slots", "branch", "default"] == 16
        assert told["swarmkv_engine_slots_used", "branch", "default"] == 0
        assert told[("process_resident_memory_bytes",)] > 0
        assert ("process_cpu_seconds_total",) in told
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


def test_a_worker_without_redis_is_alive_and_not_ready(home: Home) -> None:
    there = home.with_settings(redis_url="redis://127.0.0.1:1/0", metrics_address="127.0.0.1:0")
    with there.started("worker", "branch"):
        url = listening(there)
        assert get(f"{url}/healthz") == (200, b"ok\n")
        status, body = get(f"{url}/readyz")
        assert (status, b"not loaded yet" in body) == (503, True)
        status, body = get(f"{url}/metrics")
        assert (status, b"process_resident_memory_bytes" in body) == (200, True)


def test_a_port_that_is_taken_and_an_address_that_is_none_end_the_worker(home: Home) -> None:
    with home.started("worker", "branch", "--metrics-port", "0"):
        port = listening(home).rpartition(":")[2]
        done = home.run("worker", "branch", "--metrics-port", port)
        assert (done.code, "port 0" in done.stderr) == (2, True)
    done = home.with_settings(metrics_address="nowhere").run("worker", "branch")
    assert (done.code, "SWARMKV_METRICS_ADDRESS='nowhere' is no address" in done.stderr) == (2, True)


def test_a_monitor_answers_machines_on_an_address_of_their_own_without_a_token(home: Home) -> None:
    there = home.with_settings(monitor_token="a-token-of-the-page", metrics_address="127.0.0.1:0")
    with there.started("monitor", "--port", "0", "--log-format", "json") as process:
        url = listening(there)
        status, body = get(f"{url}/metrics")
        assert (status, samples(body)[("swarmkv_redis_up",)]) == (200, 1)
        assert is_ready(url)
        assert get(f"{url}/runs")[0] == 404
        lines = [json.loads(line) for line in there.stderr.splitlines()]
        assert {"note", "monitor_metrics"} <= {line["action"] for line in lines}
        [page] = [line["message"].split()[1] for line in lines if line["message"].startswith("monitor ")]
        assert get(f"{page}metrics")[0] == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    text = home.with_settings(metrics_address="127.0.0.1:0")
    with text.started("monitor", "--port", "0"):
        assert get(f"{listening(text)}/healthz") == (200, b"ok\n")


async def test_redis_that_is_away_is_told_instead_of_a_failed_scrape() -> None:
    redis = connect("redis://127.0.0.1:1/0", timeout_s=5)
    told = families(await answer_metrics(Ledger(redis, max_events=100)))
    await redis.aclose(close_connection_pool=True)
    assert told.keys() == {"swarmkv_build_info", "swarmkv_redis_up"}
    assert [sample.value for sample in told["swarmkv_redis_up"].samples] == [0]


@contextmanager
def prometheus(directory: Path, targets: list[str]) -> Iterator[str]:
    """The URL of a Prometheus with our rules that scrapes these targets."""
    directory.mkdir()
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config = config.replace('["monitor:9464"]', json.dumps(targets)).replace("15s", "250ms")
    config = config.replace("alerts.yml", str(DEPLOY / "prometheus" / "alerts.yml"))
    (directory / "prometheus.yml").write_text(config)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        text = r'msg="?Listening on"? address=(127\.0\.0\.1:[1-9]\d*)'
        wait_until(lambda: bool(re.search(text, (directory / "log").read_text())), timeout_s=30)
        found = re.search(text, (directory / "log").read_text())
        assert found is not None
        url = f"http://{found[1]}"
        wait_until(lambda: get(f"{url}/-/ready")[0] == 200, timeout_s=30)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)


def asked(url: str, query: str) -> dict[str, float]:
    """What a query answers, by the target that it came from."""
    answer = json.loads(get(f"{url}/api/v1/query?" + urllib.parse.urlencode({"query": query}))[1])
    assert answer["status"] == "success", answer
    return {row["metric"].get("instance", ""): float(row["value"][1]) for row in answer["data"]["result"]}


async def test_a_real_prometheus_scrapes_monitor_and_worker_and_takes_the_rules(home: Home) -> None:
    redis = connect(dict(home.settings)["SWARMKV_REDIS_URL"], timeout_s=5)
    ledger = Ledger(redis, max_events=100)

    listener = listen("127.0.0.1:0")
    monitor_url = url_of(listener)
    async with answering(listener, machine_pages(ledger)):
        with home.started("worker", "all", "--metrics-port", "0"):
            worker_url = await asyncio.to_thread(listening, home)
            targets = [url.removeprefix("http://") for url in (monitor_url, worker_url)]
            with prometheus(home.directory / "prometheus", targets) as url:

                async def both_are_up() -> bool:
                    return await asyncio.to_thread(asked, url, "up") == dict.fromkeys(targets, 1.0)

                async def has_workers() -> bool:
                    found: dict[str, float] = await asyncio.to_thread(
                        asked, url, "sum by (instance) (swarmkv_worker_up)"
                    )
                    return found.get(targets[0]) == 2

                await eventually(both_are_up, timeout_s=30)
                await eventually(has_workers, timeout_s=30)
                rules: Any = json.loads((await asyncio.to_thread(get, f"{url}/api/v1/rules"))[1])
                [group] = rules["data"]["groups"]
                assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    await redis.aclose(close_connection_pool=True)
