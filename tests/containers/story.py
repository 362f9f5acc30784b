"""What is done to the stack and must be seen: answers, scaling, kills, restarts, a drain and a stop in time."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from functools import partial
from typing import Any

from tests.containers.machine import ROOT, Failed
from tests.containers.stack import Following, Stack, wait_for
from tests.containers.told import Told

SAMPLE = ROOT / "cli" / "swarmkv" / "cli" / "samples" / "specification.md"
MONITOR = "http://127.0.0.1:8765"
STOP_GRACE_S = 30.0  # as docker-compose.yml has it
_METRICS = ("swarmkv_worker_up", "swarmkv_branches_ended_total", "swarmkv_tokens_total", "swarmkv_prefills_total")
_GREEDY = ("--temperature", "0", "--any-model")
_QUESTIONS = (
    *("What is the liability cap?", "Which cipher protects a frame?", "How many retries are allowed?"),
    *("Who may end the licence?", "What does a frame begin with?", "What is the power budget?"),
)


class Story:
    """Told in order: each chapter finds the stack as the one before has left it."""

    def __init__(self, stack: Stack, told: Told) -> None:
        self._stack = stack
        self._told = told
        self._document = SAMPLE.read_bytes()

    def tell(self) -> None:
        """All chapters; raises Failed at the first thing that is not as it should be."""
        self._comes_up_and_answers()
        self._shares_one_store()
        self._demonstrates()
        self._scales()
        self._loses_a_branch_worker()
        self._loses_the_prefill_worker()
        self._says_how_it_is()
        self._drains()
        self._stops_in_time()

    def _comes_up_and_answers(self) -> None:
        self._told.chapter("up, from a clean clone without .env")
        started = time.monotonic()
        self._stack.compose("up", "-d", "--no-build")
        self._told.saw(f"podman-compose up -d returned after {time.monotonic() - started:.1f} s")
        wait_for("a command line in the monitor's container", lambda: self._stack.told("runs") is not None)
        run = self._follow("first", self._document, _QUESTIONS[:1], max_tokens=16)
        run.until(lambda event: event["type"] == "branch_text")
        self._told.saw(f"compose up to the first token: {time.monotonic() - started:.1f} s")
        report = self._done(run)
        self._told.saw(f"compose up to the first answer: {time.monotonic() - started:.1f} s")
        self._told.saw(f"it says {report['branches'][0]['text'].strip()[:60]!r}")
        for service in ("redis", "prefill", "branch", "monitor"):
            [container] = self._stack.containers(service)
            wait_for(f"{service} healthy", partial(self._stack.is_healthy, container))
            user = self._stack.podman("exec", container, "id", "-u").strip()
            self._told.saw(f"{container} is healthy, as user {user}")

    def _shares_one_store(self) -> None:
        self._told.chapter("one store for prefill and branch")
        listings = {}
        for service in ("prefill", "branch"):
            [container] = self._stack.containers(service)
            listings[service] = self._stack.podman("exec", container, "ls", "-lan", "/run/swarmkv/store")
            owner = self._stack.podman("exec", container, "stat", "-c", "%u %a", "/run/swarmkv/store").strip()
            self._expect(owner == "10001 700", f"the store in {container} is {owner}")
        self._expect(listings["prefill"] == listings["branch"], "both containers list the same files")
        self._told.saw("the store is user 10001's, mode 700, and the same in both containers")
        report = self._done(self._follow("again", self._document, _QUESTIONS[1:], max_tokens=16))
        self._expect(report["prefills_run"] == 0, "a second run over the document needs no prefill")
        self._told.saw(
            f"{len(report['branches'])} more prompts: no prefill, {report['prefill_saved_ms'] / 1000:.1f} s saved"
        )

    def _demonstrates(self) -> None:
        self._told.chapter("--profile demo")
        started = time.monotonic()
        shown = self._stack.compose("--profile", "demo", "run", "--rm", "-T", "demo").rstrip().splitlines()
        for line in shown[-12:]:
            self._told.saw("| " + line)
        self._told.saw(f"the demo ended with 0 after {time.monotonic() - started:.1f} s")

    def _scales(self) -> None:
        self._told.chapter("up --scale branch=2")
        self._stack.compose("up", "-d", "--no-build", "--no-recreate", "--scale", "branch=2")
        took = wait_for("two branch workers", lambda: len(self._stack.workers("branch")) == 2)
        self._told.saw(f"{' and '.join(self._stack.containers('branch'))} serve after {took:.1f} s")

    def _loses_a_branch_worker(self) -> None:
        self._told.chapter("a branch container is killed over its branches")
        run = self._follow("killed", self._document, _QUESTIONS * 4, max_tokens=160)
        text = run.until(lambda event: event["type"] == "branch_text")
        run.until(lambda event: event["type"] == "branch_text" and event["branch"] != text["branch"])
        victim = self._busy_branch_container()
        self._stack.podman("kill", "-s", "KILL", victim)
        killed = time.monotonic()
        self._told.saw(f"killed {victim}")
        restarted = run.until(lambda event: event["type"] == "branch_restarted")
        self._told.saw(f"its branches began anew after {time.monotonic() - killed:.1f} s: {restarted['reason']}")
        report = self._done(run)
        attempts = sorted({branch["attempts"] for branch in report["branches"]})
        self._told.saw(f"all {len(report['branches'])} branches done, after {attempts} attempts")
        self._stack.podman("start", victim)
        took = wait_for("two branch workers again", lambda: len(self._stack.workers("branch")) == 2)
        self._told.saw(f"{victim} serves again {took:.1f} s after its start")

    def _loses_the_prefill_worker(self) -> None:
        self._told.chapter("the prefill container is killed over a document")
        document = b"Another edition.\n\n" + self._document
        run = self._follow("prefill", document, _QUESTIONS[:2], max_tokens=16)
        run.until(lambda event: event["type"] == "prefill_progress")
        [victim] = self._stack.containers("prefill")
        self._stack.podman("kill", "-s", "KILL", victim)
        self._told.saw(f"killed {victim}")
        # podman's name server starts anew when a container comes or goes: for some seconds no name may resolve.
        wait_for("a way to Redis", lambda: self._stack.told("runs") is not None)
        again = self._done(self._follow("meanwhile", self._document, _QUESTIONS[:2], max_tokens=16))
        self._expect(again["prefills_run"] == 0, "the store outlives the prefill worker")
        self._told.saw("the first document is still answered, from the snapshot of the dead worker")
        self._stack.podman("start", victim)
        started = time.monotonic()
        report = self._done(run)
        self._told.saw(
            f"the second document was prefilled and answered {time.monotonic() - started:.1f} s after a restart"
        )
        self._expect(len(report["branches"]) == 2, "both branches have an answer")

    def _says_how_it_is(self) -> None:
        self._told.chapter("/metrics")
        [monitor] = self._stack.containers("monitor")
        self._expect(_status("/metrics") == 401, "without the token nothing is told")
        token = self._stack.podman("exec", monitor, "cat", "/var/lib/swarmkv/monitor.token").strip()
        self._expect(token in self._stack.log(monitor), "the log of the monitor names the token")
        text = _get("/metrics", token)
        shown = [line for line in text.splitlines() if line.startswith(_METRICS)]
        self._expect(bool(shown), "metrics of ours are there")
        for line in shown:
            self._told.saw(line)

    def _drains(self) -> None:
        self._told.chapter("a branch worker is drained")
        victim = sorted(self._stack.workers("branch"), key=lambda row: str(row["id"]))[0]["id"]
        self._stack.swarmkv("workers", "drain", str(victim))
        took = wait_for("its leaving", lambda: victim not in {row["id"] for row in self._stack.workers("branch")})
        self._told.saw(f"{victim} left after {took:.1f} s")
        took = wait_for("two branch workers again", lambda: len(self._stack.workers("branch")) == 2)
        self._told.saw(f"a fresh one took its place after {took:.1f} s, as its restart policy says")

    def _stops_in_time(self) -> None:
        self._told.chapter("stop")
        containers = self._stack.containers()
        started = time.monotonic()
        self._stack.stop("prefill", "branch", "monitor", timeout_s=STOP_GRACE_S)
        self._stack.stop("redis", timeout_s=STOP_GRACE_S)
        took = time.monotonic() - started
        self._expect(self._stack.containers() == [], "none is left running")
        codes = {name: self._stack.inspect(name, "{{.State.ExitCode}}") for name in containers}
        self._told.saw(f"all stopped after {took:.1f} s: " + ", ".join(f"{n} {code}" for n, code in codes.items()))
        self._expect(set(codes.values()) == {"0"}, "every container ended with 0")
        self._expect(took < STOP_GRACE_S, "within the grace time")

    # -- helpers

    def _follow(self, name: str, document: bytes, questions: tuple[str, ...], *, max_tokens: int) -> Following:
        prompts = [part for n, text in enumerate(questions) for part in ("-p", f"q{n}={text}")]
        options = ("--name", name, "--max-tokens", str(max_tokens), *_GREEDY)
        return self._stack.follow("enqueue", "-", *prompts, *options, given=document)

    def _done(self, run: Following) -> dict[str, Any]:
        report = run.report()
        self._expect(
            report["state"] == "done", f"run {report['name']!r} is {report['state']}: {report.get('error')}"
        )
        return report

    def _busy_branch_container(self) -> str:
        """The container of the branch worker with the most branches: a container's host name begins its id."""
        busiest = max(self._stack.workers("branch"), key=lambda row: int(row["slots_used"]))
        for container in self._stack.containers("branch"):
            if self._stack.inspect(container, "{{.Id}}").startswith(str(busiest["host"])):
                return container
        raise Failed(f"no container has the host name {busiest['host']}")

    def _expect(self, is_so: bool, what: str) -> None:
        if not is_so:
            raise Failed(f"it should be: {what}")


def _get(path: str, token: str) -> str:
    request = urllib.request.Request(MONITOR + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def _status(path: str) -> int:
    try:
        with urllib.request.urlopen(MONITOR + path, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        return exc.code
