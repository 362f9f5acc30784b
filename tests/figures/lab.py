"""What every measurement starts from: the real model, and whole installations with a broker of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from swarmkv.producer import Producer, RunReport, Sampling
from swarmkv.protocol.settings import Settings
from tests.conftest import server_binary, start_server, stop_server
from tests.processes import Fleet, fleet_of
from tests.real_texts import RealText, real_text

DOCUMENT_TOKENS = 3_500
ANSWER = Sampling(temperature=0, max_tokens=32, ignore_eos=True)
PROMPTS = [f"What does section {number} of the specification say?" for number in range(1, 17)]
SHARED_MEMORY = Path("/dev/shm")
PATIENCE_S = 600


@dataclass(frozen=True)
class Installation:
    """Running workers and a producer."""

    settings: Settings
    fleet: Fleet
    producer: Producer

    async def run(self, document: str, prompts: Sequence[str], sampling: Sampling = ANSWER) -> RunReport:
        """Submit and wait; every branch must have ended well."""
        report = await (await self.producer.submit(document, prompts, sampling=sampling)).results(PATIENCE_S)
        assert report.state == "done", report
        return report

    async def timed(self, document: str, prompts: Sequence[str], sampling: Sampling = ANSWER) -> float:
        """Seconds from before the submission until the results are here."""
        started_s = perf_counter()
        await self.run(document, prompts, sampling)
        return perf_counter() - started_s


@dataclass(frozen=True)
class Lab:
    """The real model, its texts, and a directory for logs and files that is gone afterwards."""

    model_path: Path
    text: RealText
    directory: Path

    def document(self, title: str, tokens: int = DOCUMENT_TOKENS) -> str:
        """A document that no other title shares a snapshot with."""
        return self.text.document(tokens, title=title)

    @asynccontextmanager
    async def installation(self, *roles: str, **changes: Any) -> AsyncIterator[Installation]:
        """A new broker, an empty store in shared memory, and one warm worker for each role."""
        home = Path(tempfile.mkdtemp(dir=self.directory))
        store = Path(tempfile.mkdtemp(prefix="swarmkv-figures-", dir=SHARED_MEMORY))
        binary = server_binary("valkey")
        assert binary is not None
        server = start_server(binary, home, "valkey")
        settings = Settings(_env_file=None, redis_url=server.url, store_dir=store, **changes)
        try:
            with fleet_of(settings, home / "logs") as fleet:
                async with Producer(settings=settings) as producer:
                    for role in roles:
                        fleet.start(role, self.model_path)
                    await fleet.ready(producer, len(roles))
                    installation = Installation(settings, fleet, producer)
                    await installation.run(self.document("Warm up", 600), PROMPTS[:2])
                    yield installation
        finally:
            stop_server(server)
            shutil.rmtree(store, ignore_errors=True)


@contextmanager
def open_lab(model_path: Path) -> Iterator[Lab]:
    """A lab over one model file; its workers have the default settings, whatever was tuned for this machine."""
    with tempfile.TemporaryDirectory(prefix="swarmkv-figures-") as directory, real_text(model_path) as text:
        os.environ["XDG_CONFIG_HOME"] = directory
        yield Lab(model_path, text, Path(directory))
