"""What all pages share while the monitor runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from arq.connections import ArqRedis
from starlette.requests import Request

from swarmkv.monitor.web.access import Access
from swarmkv.monitor.web.live import Hub
from swarmkv.monitor.web.reader import OverviewReader
from swarmkv.monitor.web.throttle import Throttle
from swarmkv.producer import Producer
from swarmkv.protocol.ledger import AuditEntry, Ledger
from swarmkv.protocol.settings import Settings

FORM_BYTES = 64 * 1024  # the fields of a form beside its texts


@dataclass(frozen=True, slots=True)
class Site:
    """One monitor: its settings, its connections, who may enter, and who looks on."""

    settings: Settings
    access: Access
    redis: ArqRedis
    ledger: Ledger
    producer: Producer
    reader: OverviewReader
    hub: Hub = field(default_factory=Hub)
    throttle: Throttle = field(default_factory=Throttle)

    @property
    def max_body_bytes(self) -> int:
        """A document with its prompts and system text."""
        return self.settings.max_document_bytes + 4 * self.settings.max_prompt_bytes + FORM_BYTES

    async def record(self, request: Request, action: str, target: str, outcome: str) -> None:
        """A line in the audit log. Raises BrokerError."""
        principal = request.state.principal
        who = principal.name if principal else "nobody"
        address = request.client.host if request.client else "unknown"
        await self.ledger.audit.record(AuditEntry(who, address, action, target, outcome))


def site_of(request: Request) -> Site:
    """The monitor that a request has reached."""
    site: Site = request.state.site
    return site
