"""What `docker compose up` is made of: docker-compose.yml, Dockerfile, .dockerignore and .env.example."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from swarmkv.protocol.settings import PREFIX, Settings
from tests import dockerfile

ROOT = Path(__file__).parent.parent.parent
SCHEMA = ROOT / "tests" / "data" / "compose-spec" / "compose-spec.json"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text("utf-8")
EXAMPLE = (ROOT / ".env.example").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
WORKERS = {name: service for name, service in OURS.items() if service["command"][0] == "worker"}
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}")


def default(value: object) -> str:
    """A value of the file as it is when no variable is set."""
    return _VARIABLE.sub(lambda match: match[2] or "", str(value))


def seconds(duration: object) -> float:
    match = re.fullmatch(r"(\d+)(s|m)", default(duration))
    assert match is not None, duration
    return int(match[1]) * (60 if match[2] == "m" else 1)


def test_the_compose_file_follows_the_specification() -> None:
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text("utf-8")))
    assert [f"{list(error.absolute_path)}: {error.message}" for error in validator.iter_errors(COMPOSE)] == []


def test_the_schema_refuses_what_is_misspelt() -> None:
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text("utf-8")))
    wrong = {"services": {"redis": {"image": "x:1", "stop_grace_periode": "1s"}}}
    assert not validator.is_valid(wrong)


def test_without_a_profile_exactly_the_four_services_run() -> None:
    plain = {name for name, service in SERVICES.items() if "profiles" not in service}
    assert plain == {"redis", "prefill", "branch", "monitor"}
    assert {profile for service in SERVICES.values() for profile in service.get("profiles", ())} == {
        *("demo", "gpu", "metrics")
    }


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_pinned_bounded_and_can_be_scaled(name: str) -> None:
    service = SERVICES[name]
    assert "container_name" not in service
    assert re.fullmatch(r"[\w./-]+:(v?\d[\w.-]*|local|cuda)", service["image"])
    assert default(service["mem_limit"])
    assert isinstance(service.get("command", []), list), "exec form: signals must reach the process"
    assert "ipc" not in service
    assert "privileged" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_published_is_published_on_loopback_alone(name: str) -> None:
    ports = SERVICES[name].get("ports", [])
    assert all(default(port).startswith("127.0.0.1:") for port in ports)
    assert not ports or name in {"monitor", "grafana"}


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_an_init_no_capability_and_a_root_they_cannot_write(name: str) -> None:
    service = OURS[name]
    assert service["init"] is True
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["depends_on"]["redis"]["condition"] == "service_healthy"


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_is_given_longer_to_stop_than_it_takes(name: str) -> None:
    grace_s = Settings.model_fields["grace_s"].default
    assert seconds(WORKERS[name]["stop_grace_period"]) >= 2 * grace_s


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_is_asked_for_its_own_role_and_not_while_it_loads(name: str) -> None:
    check = WORKERS[name]["healthcheck"]
    assert check["test"] == ["CMD", "swarmkv", "health", "--role", WORKERS[name]["command"][1]]
    assert seconds(check["start_period"]) >= 60


def test_workers_share_snapshots_in_a_named_tmpfs_as_large_as_the_budget() -> None:
    options = COMPOSE["volumes"]["store"]["driver_opts"]
    assert (options["type"], options["device"]) == ("tmpfs", "tmpfs")
    size = next(part for part in options["o"].split(",") if part.startswith("size="))
    budget = COMPOSE["x-settings"]["SWARMKV_STORE_BUDGET_BYTES"]
    assert size == f"size={budget}"
    assert default(budget) == str(Settings.model_fields["store_budget_bytes"].default)
    mounts = {name: dict(v.rsplit(":", 1) for v in service["volumes"]) for name, service in WORKERS.items()}
    assert {mounts[name]["store"] for name in WORKERS} == {"/run/swarmkv"}
    assert "SWARMKV_STORE_DIR=/run/swarmkv/store" in DOCKERFILE  # below: a tmpfs' root is root's


def test_redis_keeps_what_it_accepts() -> None:
    command = " ".join(map(default, SERVICES["redis"]["command"]))
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert "redis:/data" in SERVICES["redis"]["volumes"]
    assert "ports" not in SERVICES["redis"]


def test_every_variable_is_explained_in_the_example_and_every_one_there_is_used() -> None:
    used = {name for name, _ in _VARIABLE.findall(COMPOSE_TEXT)}
    explained = set(re.findall(r"^# ([A-Z][A-Z0-9_]+)=", EXAMPLE, flags=re.MULTILINE))
    assert explained - {"COMPOSE_PROFILES"} == used


def test_a_variable_with_our_prefix_is_a_setting_or_the_command_line_would_refuse_the_file() -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    named = set(re.findall(rf"\b{PREFIX}[A-Z0-9_]+", COMPOSE_TEXT + EXAMPLE + DOCKERFILE))
    assert named <= known


def test_the_examples_defaults_are_the_files_own() -> None:
    defaults = {name: value for name, value in _VARIABLE.findall(COMPOSE_TEXT) if value}
    example = dict(re.findall(r"^# ([A-Z][A-Z0-9_]+)=(.*)$", EXAMPLE, flags=re.MULTILINE))
    chosen = {"SWARMKV_MODEL", "MODELS", "CPU_WORKERS"}  # shown as somebody would set them
    differing = {name for name, value in defaults.items() if example[name] != value}
    assert differing == chosen


def test_the_image_has_the_versions_that_the_tests_ran_with() -> None:
    image, tested = (
        set(re.findall(r"^[\w.-]+==\S+", (ROOT / "requirements" / name).read_text("utf-8"), flags=re.MULTILINE))
        for name in ("image.txt", "dev.txt")
    )
    assert image
    assert image <= tested


def test_the_dockerfile_keeps_our_rules() -> None:
    assert dockerfile.problems(DOCKERFILE) == []


def test_what_the_dockerfile_copies_is_let_through_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    let_through = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines
    assert let_through == set(dockerfile.copied(DOCKERFILE))
    assert all((ROOT / path).exists() for path in let_through)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("FROM debian", "no version"),
        ("FROM debian:latest", "no version"),
        ("ARG BASE=debian\nFROM ${BASE}", "no version"),
        ("ENTRYPOINT swarmkv", "shell form"),
        ("CMD swarmkv --help", "shell form"),
        ("USER root", "as root"),
        ("USER swarmkv", "without a fixed number"),
        ("ADD a b", "use COPY"),
        ("ENV REDIS_PASSWORD=x", "holds a secret"),
        ("ARG HF_TOKEN", "holds a secret"),
        ("RUN pip install --require-hashes --index-url somewhere -r a.txt", "a host is named"),
        ("RUN pip install \\\n  arq", "without --require-hashes"),
        ("RUN apt-get update && apt-get install -y g++ && rm -rf /var/lib/apt/lists/*", "--no-install-recommends"),
        ("RUN apt-get update && apt-get install --no-install-recommends g++", "rm -rf /var/lib/apt/lists"),
        ("RUN curl x | sh", "curl"),
    ],
)
def test_a_dockerfile_that_breaks_a_rule_is_told_so(line: str, problem: str) -> None:
    good = "FROM debian:12\nUSER 10001:10001\n"
    assert dockerfile.problems(good) == []
    assert any(problem in found for found in dockerfile.problems(good + line + "\n")), line
