"""What `swarmkv tune` found to be fastest here, and where workers read it.

One file a model, $XDG_CONFIG_HOME/swarmkv/tuned/FINGERPRINT.json (else ~/.config/swarmkv/...). It counts on the
machine, with the build of llama.cpp, and beside the settings that it was measured with; and a setting that the
user made always wins. Flash attention and the sliding-window ring decide the layout of snapshots: prefill and
branch workers of one host read the same file, so they agree, if they are started after the same `tune`.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swarmkv.protocol.errors import ConfigError
from swarmkv.protocol.settings import MAX_SEQUENCES, Settings, check_together
from swarmkv.workers.engine.fingerprint import fingerprint
from swarmkv.workers.engine.machine import cpu_model, library_build, physical_cores

logger = logging.getLogger(__name__)

MEASURED_WITH = ("kv_type_k", "kv_type_v", "n_gpu_layers", "n_batch")


class Machine(BaseModel):
    """What a measurement is true for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: str
    cores: int
    build: str  # digest of llama.cpp's libraries


class TunedSettings(BaseModel):
    """Settings that are faster than the defaults; None: the default is as good."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flash_attention: Literal["on", "off"] | None = None
    swa_full: bool | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    n_ubatch: Annotated[int, Field(ge=1, le=65_536)] | None = None
    slots: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = None
    omp_spin_count: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings that are to be changed."""
        return self.model_dump(exclude_none=True)


class Profile(BaseModel):
    """The content of a profile's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    model: str  # for people; the fingerprint names it
    fingerprint: str
    machine: Machine
    measured_with: dict[str, str | int]
    settings: TunedSettings


def this_machine() -> Machine:
    """The machine and the build of now."""
    return Machine(cpu=cpu_model(), cores=physical_cores(), build=library_build())


def measured_with(settings: Settings) -> dict[str, str | int]:
    """The settings that a measurement depends on, and does not vary."""
    return {name: getattr(settings, name) for name in MEASURED_WITH}


def profile_path(model_fingerprint: str) -> Path:
    """Where the profile of a model is; it need not exist."""
    return _directory() / f"{model_fingerprint}.json"


def write_profile(profile: Profile) -> Path:
    """Write by rename, so that a worker that starts meanwhile reads a whole one. Raises ConfigError."""
    path = profile_path(profile.fingerprint)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(profile.model_dump_json(indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as exc:
        with suppress(OSError):
            partial.unlink()
        raise ConfigError(
            f"The profile {path} cannot be written: {exc.strerror}.",
            hint="Set XDG_CONFIG_HOME to a directory of your own.",
        ) from exc
    return path


def with_tuning(model_path: Path, settings: Settings) -> Settings:
    """`settings` with what was tuned for this model here, but for what the user set; logged either way.

    Reads the whole model the first time, for its fingerprint, if there is any profile at all. A profile that does
    not count is named in the log and left alone: nothing here stops a worker.
    """
    if settings.null_engine or not any(_directory().glob("*.json")):
        return settings
    path = profile_path(_fingerprint(model_path))
    try:
        profile = Profile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return settings
    except (OSError, ValidationError) as exc:
        _log_ignored(path, str(exc).splitlines()[0])
        return settings
    if reason := _mismatch(profile, settings):
        _log_ignored(path, reason)
        return settings
    return _apply(profile, path, settings)


def _apply(profile: Profile, path: Path, settings: Settings) -> Settings:
    chosen = profile.settings.chosen
    taken = {name: value for name, value in chosen.items() if name not in settings.model_fields_set}
    tuned = settings.model_copy(update=taken)
    try:
        check_together(tuned)
    except ConfigError as exc:
        _log_ignored(path, f"with the other settings: {exc.message}")
        return settings
    overruled = sorted(chosen.keys() - taken.keys())
    logger.info(
        "Tuned settings of %s: %s%s",
        path,
        ", ".join(f"{name}={value}" for name, value in taken.items()) or "none",
        f"; set by you instead: {', '.join(overruled)}" if overruled else "",
        extra={"action": "tuning_used", "tuned": taken, "overruled": overruled},
    )
    return tuned


def _mismatch(profile: Profile, settings: Settings) -> str:
    """Why a profile does not count here; empty: it does."""
    here = this_machine()
    for name in Machine.model_fields:
        found, wanted = getattr(profile.machine, name), getattr(here, name)
        if found != wanted:
            return f"made for {name} {found!r}, this is {wanted!r}"
    for name, wanted in measured_with(settings).items():
        if profile.measured_with.get(name) != wanted:
            return f"measured with {name}={profile.measured_with.get(name)}, now it is {wanted}"
    return ""


def _log_ignored(path: Path, reason: str) -> None:
    logger.warning(
        "The tuning of %s is not used: %s. Run `swarmkv tune` again.",
        *(path, reason),
        extra={"action": "tuning_ignored"},
    )


def _fingerprint(model_path: Path) -> str:
    try:
        return fingerprint(model_path)
    except OSError:
        return "unreadable"  # loading it will say so, with the reason


def _directory() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "swarmkv" / "tuned"
