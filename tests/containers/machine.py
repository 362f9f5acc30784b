"""The machine: programs, a configuration of podman that works as root without systemd, and a clean clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.containers.told import Told

ROOT = Path(__file__).parent.parent.parent
PACKAGES = {  # the program that shows it is there: the packages that bring it
    "podman": ["podman", "netavark", "aardvark-dns", "iptables"],
    "runc": ["runc"],
    "buildah": ["buildah"],
    "debootstrap": ["debootstrap"],
    "/usr/libexec/podman/catatonit": ["catatonit"],
    "git": ["git"],
}
CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""


class Failed(Exception):
    """The machine, a build or the stack did not do what it should; the message says what was seen."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where things are: `work` is kept between runs, `clone` is made anew by each."""

    work: Path

    @property
    def clone(self) -> Path:
        return self.work / "clone"

    @property
    def compose(self) -> Path:
        return self.work / "tools" / "bin" / "podman-compose"

    @property
    def environment(self) -> dict[str, str]:
        """Ours, without what would choose another project, profile or setting."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SWARMKV_", "COMPOSE_"))}
        return kept | {"CONTAINERS_CONF": str(self.work / "containers.conf")}


def prepare(work: Path, told: Told) -> Place:
    """Install what is missing and clone the last commit."""
    told.chapter("the machine")
    place = Place(work.resolve())
    missing = [name for program, names in PACKAGES.items() if not _is_there(program) for name in names]
    if missing:
        with told.timed(f"installed {' '.join(missing)}"):
            run(["apt-get", "update", "-qq"])
            run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing])
    (place.work / "containers.conf").write_text(CONTAINERS_CONF)
    if not place.compose.exists():
        with told.timed("installed podman-compose"):
            run([sys.executable, "-m", "venv", str(place.work / "tools")])
            run([str(place.work / "tools" / "bin" / "pip"), "install", "-q", "podman-compose>=1.6,<2"])
    shutil.rmtree(place.clone, ignore_errors=True)
    run(["git", "clone", "-q", str(ROOT), str(place.clone)])
    told.saw(f"{run(['podman', '--version']).strip()}, a clean clone in {place.clone}")
    return place


def run(argv: list[str], *, env: dict[str, str] | None = None, given: bytes | None = None) -> str:
    """Standard output of a command; raises Failed with the end of what it said when it fails."""
    done = subprocess.run(argv, capture_output=True, env=env, input=given, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-2000:]
        raise Failed(f"{' '.join(argv[:6])} … ended with {done.returncode}:\n{said}")
    return done.stdout.decode(errors="replace")


def _is_there(program: str) -> bool:
    return Path(program).exists() if "/" in program else shutil.which(program) is not None
