"""`swarmkv monitor`: the page on which to watch runs, workers and snapshots."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from swarmkv.cli import exits, output
from swarmkv.cli.logs import Say, notes_as_records, set_up_logs
from swarmkv.cli.options import LogFormatOption
from swarmkv.cli.token_file import kept_token
from swarmkv.protocol.broker import shown
from swarmkv.protocol.extras import needing
from swarmkv.protocol.place import redis_url
from swarmkv.protocol.settings import Settings, load_settings


def monitor(
    host: Annotated[str | None, typer.Option(help="Where to listen. [default: SWARMKV_MONITOR_HOST]")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="0: any that is free. [default: SWARMKV_MONITOR_PORT]")
    ] = None,
    log_format: LogFormatOption = None,
) -> None:
    """Serve a web page that shows runs, workers and snapshots, until Ctrl-C.

    On 127.0.0.1 unless told otherwise; another address needs SWARMKV_MONITOR_TOKEN or SWARMKV_MONITOR_TOKEN_FILE.
    """
    settings = load_settings(monitor_host=host, monitor_port=port, log_format=log_format)
    as_json = settings.log_format == "json"
    set_up_logs(as_json=as_json, verbose=False)
    say = notes_as_records if as_json else output.note
    url = redis_url(settings)
    serve = _import_serve()
    kept = _kept_token(settings)
    serve(
        settings.model_copy(update=kept), url, lambda address: _say(settings.monitor_url or address, url, kept, say)
    )
    raise typer.Exit(exits.DONE)


def _kept_token(settings: Settings) -> dict[str, str]:
    """The administrators' token out of its file, unless it is given as such. Raises ConfigError."""
    if settings.monitor_token or settings.monitor_token_file is None:
        return {}
    return {"monitor_token": kept_token(settings.monitor_token_file)}


def _say(address: str, url: str, kept: dict[str, str], say: Say) -> None:
    say(f"monitor   {address} shows {shown(url)}; Ctrl-C stops it")
    for token in kept.values():
        say(f"token     {token}")


def _import_serve() -> Any:
    """The server; imported late, for a plain installation has none."""
    with needing("The monitor", "monitor"):
        from swarmkv.monitor.web.serve import serve
    return serve
