"""`swarmkv doctor`: what is wrong here, and what to do about it."""

from __future__ import annotations

import asyncio
import dataclasses

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from swarmkv.cli import checks, exits, output, render
from swarmkv.cli.checks import Finding
from swarmkv.cli.models import parse_model
from swarmkv.cli.options import Json, ServedModel
from swarmkv.cli.text import clean_line
from swarmkv.protocol.settings import load_settings

_SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


def doctor(
    model: ServedModel = None,
    as_json: Json = False,
) -> None:
    """Check this host and its Redis; exit code 1 on a problem."""
    settings = load_settings()
    findings = [finding for check in checks.LOCAL_CHECKS for finding in check()]
    findings += checks.check_model(parse_model(model or settings.model).ref)
    findings += checks.check_store(settings)
    findings += asyncio.run(checks.check_redis(settings))
    if as_json:
        output.print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        _print(output.stdout(), findings)
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(exits.FAILED)


def _print(console: Console, findings: list[Finding]) -> None:
    grid = Table.grid(padding=(0, 2))
    for finding in findings:
        sign, style = _SIGNS[finding.verdict]
        text = Text(clean_line(finding.message), style="" if finding.verdict == "ok" else style)
        if finding.remedy:
            text.append("\n" + clean_line(finding.remedy), style="dim")
        word = Text(sign if console.is_terminal else finding.verdict, style=style)
        grid.add_row(word, Text(finding.subject, style="bold"), text)
    render.put(console, grid)
