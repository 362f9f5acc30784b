"""The images: Debian from its packages, a stand-in for the broker's, and our own from the Dockerfile."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tests.containers.machine import Failed, Place, run
from tests.containers.told import Told

OURS = "localhost/swarmkv:local"
# As the slim variants of Debian's images leave out.
_SLIM = """\
path-exclude /usr/share/doc/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
"""
_EMPTIED = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
)
_BROKER = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/* \\
    && ln -s redis-server /usr/bin/valkey-server && ln -s redis-cli /usr/bin/valkey-cli \\
    && install -d -o redis -g redis /data
VOLUME /data
WORKDIR /data
USER redis
CMD ["valkey-server", "--bind", "*"]
"""


def build(place: Place, told: Told) -> None:
    """Everything that docker-compose.yml names without a profile."""
    told.chapter("the images")
    base = _base_name(place)
    if not _exists(place, base):
        with told.timed(f"made {base} with debootstrap"):
            _make_base(place, base)
    broker = _broker_name(place)
    if not _exists(place, broker):
        with told.timed(f"made a stand-in for {broker}: Redis of Debian"):
            _make_broker(place, base, broker)
    with told.timed(f"built {OURS} from the Dockerfile"):
        _build_ours(place)
    size = int(run(["podman", "image", "inspect", "-f", "{{.Size}}", OURS], env=place.environment))
    base_size = int(run(["podman", "image", "inspect", "-f", "{{.Size}}", _full(base)], env=place.environment))
    told.saw(f"image {size / 1e6:.0f} MB, of these Debian {base_size / 1e6:.0f} MB and the demo's model 253 MB")


def _base_name(place: Place) -> str:
    return _only(r"^ARG BASE=(\S+)$", (place.clone / "Dockerfile").read_text("utf-8"))


def _broker_name(place: Place) -> str:
    return _only(r"^    image: (valkey/\S+)$", (place.clone / "docker-compose.yml").read_text("utf-8"))


def _only(pattern: str, text: str) -> str:
    found = re.findall(pattern, text, flags=re.MULTILINE)
    if len(found) != 1:
        raise Failed(f"{pattern} is there {len(found)} times")
    return str(found[0])


def _full(name: str) -> str:
    return f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"


def _exists(place: Place, name: str) -> bool:
    try:
        run(["podman", "image", "exists", _full(name)], env=place.environment)
    except Failed:
        return False
    return True


def _make_base(place: Place, name: str) -> None:
    suite, root = name.partition(":")[2].partition("-")[0], place.work / "base"
    shutil.rmtree(root, ignore_errors=True)
    run(["debootstrap", "--variant=minbase", suite, str(root)])
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(_SLIM)
    # A clock that is behind must not refuse packages.
    (root / "etc/apt/apt.conf.d/dates").write_text('Acquire::Check-Date "false";\n')
    for folder in _EMPTIED:
        shutil.rmtree(root / folder)
        (root / folder).mkdir()
    archive = place.work / "base.tar"
    run(["tar", "-C", str(root), "-cf", str(archive), "."])
    run(["podman", "import", "-q", "-c", 'CMD ["bash"]', str(archive), _full(name)], env=place.environment)
    shutil.rmtree(root)
    archive.unlink()


def _make_broker(place: Place, base: str, name: str) -> None:
    recipe = place.work / "Dockerfile.broker"
    recipe.write_text(_BROKER.format(base=base))
    run([*_bud(place), "-t", _full(name), "-f", str(recipe), str(place.work)], env=place.environment)


def _build_ours(place: Place) -> None:
    run([*_bud(place), "-t", OURS, str(place.clone)], env=place.environment)


def _bud(place: Place) -> list[str]:
    """Packages are fetched as this machine fetches them: its authorities, and what pip's variables say."""
    options = {
        name.removeprefix("PIP_").lower(): value for name, value in os.environ.items() if name == "PIP_INDEX_URL"
    }
    mounts: list[str] = []
    authorities = os.environ.get("SSL_CERT_FILE", "")
    if authorities and Path(authorities).is_file():
        mounts += ["-v", f"{authorities}:/run/authorities.crt:ro"]
        options["cert"] = "/run/authorities.crt"
    config = place.work / "pip.conf"
    lines = [f"{key.replace('_', '-')} = {value}" for key, value in options.items()]
    config.write_text("\n".join(["[global]", *lines, ""]))
    mounts += ["-v", f"{config}:/etc/pip.conf:ro"]
    return ["buildah", "bud", "--isolation", "chroot", "--layers", "--pull-never", *mounts]
