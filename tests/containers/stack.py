"""The stack of containers, as podman-compose runs it, and what swarmkv says inside of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.containers.machine import Failed, Place, run

PROJECT = "swarmkv-test"
_LOG_LINES = "40"
# What podman 4.3 cannot: sizes of tmpfs volumes, and health checks that come faster while a container starts.
# Without systemd it runs no health check by itself either: `is_healthy` does.
_OVERRIDE = """\
services:
  redis: {healthcheck: {start_interval: !reset null}}
  prefill: {healthcheck: {start_interval: !reset null}}
  branch: {healthcheck: {start_interval: !reset null}}
  monitor: {healthcheck: {start_interval: !reset null}}
volumes:
  store:
    driver_opts: {o: "mode=1777,nosuid,nodev,noexec"}
"""


class Stack:
    """One project of containers."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._override = place.work / "podman.yml"
        self._override.write_text(_OVERRIDE)

    # -- containers

    def compose(self, *arguments: str) -> str:
        """podman-compose in the clean clone."""
        files = ["-f", str(self._place.clone / "docker-compose.yml"), "-f", str(self._override)]
        argv = [str(self._place.compose), "--no-ansi", "-p", PROJECT, *files, *arguments]
        return run(argv, env=self._place.environment)

    def podman(self, *arguments: str, given: bytes | None = None) -> str:
        return run(["podman", *arguments], env=self._place.environment, given=given)

    def containers(self, service: str | None = None, *, running: bool = True) -> list[str]:
        """Names of a service's containers, or of all services'."""
        wanted = ["--filter", f"label=com.docker.compose.project={PROJECT}"]
        if service is not None:
            wanted += ["--filter", f"label=com.docker.compose.service={service}"]
        if running:
            wanted += ["--filter", "status=running"]
        return sorted(self.podman("ps", "-a", "--format", "{{.Names}}", *wanted).split())

    def inspect(self, container: str, form: str) -> str:
        return self.podman("inspect", "-f", form, container).strip()

    def log(self, container: str) -> str:
        """What its process wrote, to stdout and stderr."""
        argv = ["podman", "logs", container]
        done = subprocess.run(
            argv, env=self._place.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True
        )
        return done.stdout.decode(errors="replace")

    def is_healthy(self, container: str) -> bool:
        """Run the container's health check now."""
        with suppress(Failed):
            self.podman("healthcheck", "run", container)
            return True
        return False

    def stop(self, *services: str, timeout_s: float) -> None:
        """As `docker compose stop`; podman-compose knows only the first container of a service."""
        names = [name for service in services for name in self.containers(service)]
        self.podman("stop", "-t", f"{timeout_s:.0f}", *names)

    def remove(self) -> None:
        """Every container, volume and network of the project; raises Failed when one is left.

        Without systemd podman misses the timers of health checks, and complains once it has removed a container.
        """
        for service in ("demo", "monitor", "branch", "prefill", "redis"):  # Redis last: the others need it
            for container in self.containers(service, running=False):
                with suppress(Failed):
                    self.podman("rm", "-f", "-t", "0", container)
        with suppress(Failed):
            self.compose("--profile", "demo", "down", "-v", "-t", "0")
        left = [*self.containers(running=False), *self._named("volume"), *self._named("network")]
        if left:
            raise Failed(f"could not remove {', '.join(left)}")

    def _named(self, kind: str) -> list[str]:
        """Volumes or networks of the project."""
        names = self.podman(kind, "ls", "--format", "{{.Name}}").split()
        return [name for name in names if name.startswith(f"{PROJECT}_")]

    def show_logs(self) -> None:
        """The end of what each container said, on stderr."""
        for service in ("redis", "prefill", "branch", "monitor"):
            for container in self.containers(service, running=False):
                sys.stderr.write(f"\n-- {container}\n")
                sys.stderr.flush()
                argv = ["podman", "logs", "--tail", _LOG_LINES, container]
                subprocess.run(argv, env=self._place.environment, stdout=sys.stderr, check=False)

    # -- swarmkv inside

    def swarmkv(self, *arguments: str, given: bytes | None = None) -> str:
        """The command line in the monitor's container; standard output."""
        return self.podman("exec", "-i", self.containers("monitor")[0], "swarmkv", *arguments, given=given)

    def told(self, *arguments: str, given: bytes | None = None) -> Any:
        """Its --json document; None when it ended with an error."""
        try:
            return json.loads(self.swarmkv(*arguments, "--json", given=given))
        except (Failed, ValueError, IndexError):
            return None

    def follow(self, *arguments: str, given: bytes) -> Following:
        """Start `swarmkv enqueue … --follow --json`."""
        argv = ["podman", "exec", "-i", self.containers("monitor")[0], "swarmkv", *arguments, "--follow", "--json"]
        return Following(argv, self._place.environment, given)

    def workers(self, role: str) -> list[dict[str, Any]]:
        """Live workers of a role, by what Redis knows."""
        return [row for row in self.told("workers") or [] if row["role"] == role]


class Following:
    """A run that is followed by another process; its events are read as they come."""

    def __init__(self, argv: list[str], env: dict[str, str], given: bytes) -> None:
        self._process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        self._process.stdin.write(given)
        self._process.stdin.close()
        self.events: list[dict[str, Any]] = []

    def until(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read events up to one; raises Failed when the stream ends before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if "error" in event and "type" not in event:
                raise Failed(f"it could not be enqueued: {event['error']}")
            self.events.append(event)
            if is_it(event):
                return event
        last = self.events[-1] if self.events else None
        raise Failed(f"the stream ended with {self._process.wait()}; its last event was {last}")

    def report(self) -> dict[str, Any]:
        """Read to the end; the report is the last line."""
        return self.until(lambda event: event["type"] == "report")


def wait_for(what: str, is_so: Callable[[], object], *, timeout_s: float = 120.0) -> float:
    """Wait until it is; the seconds that it took. Raises Failed naming what was waited for."""
    started = time.monotonic()
    while not is_so():
        if time.monotonic() - started > timeout_s:
            raise Failed(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.2)
    return time.monotonic() - started
