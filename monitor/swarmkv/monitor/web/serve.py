"""Serving the page until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from swarmkv.monitor.web.app import create_app
from swarmkv.protocol.errors import ConfigError
from swarmkv.protocol.probes import listen
from swarmkv.protocol.settings import Settings

GRACE_S = 3  # for answers that are being sent when it is told to stop


class _Server(uvicorn.Server):
    """Ends live pages when it is told to stop: they would never end by themselves. A second Ctrl-C does not wait.

    It does not raise the signal again when all has ended, as uvicorn's own does: being told to stop is no failure.
    """

    def __init__(self, config: uvicorn.Config, stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as it is called
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self._stopping()


def serve(settings: Settings, redis_url: str, ready: Callable[[str], None]) -> None:
    """Serve on the settings' host and port; `ready` is told the address once it listens.

    Raises ConfigError when it may not, or cannot, listen there.
    """
    host = settings.monitor_host
    app = create_app(
        settings, redis_url, host, listen(settings.metrics_address) if settings.metrics_address else None
    )
    listener = _listen(host, settings.monitor_port)
    config = uvicorn.Config(
        app,
        log_config=None,  # its records go where ours do
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=64 * 1024,
    )
    ready(_address(host, listener.getsockname()[1]))
    with listener:
        _Server(config, app.state.site.hub.stop).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=256)
    except (OSError, OverflowError) as exc:
        why = getattr(exc, "strerror", None) or str(exc)
        raise ConfigError(
            f"The monitor cannot listen on {host}, port {port}: {why}.",
            hint="Choose others with --host and --port, or SWARMKV_MONITOR_HOST and SWARMKV_MONITOR_PORT.",
        ) from exc


def _address(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/"
