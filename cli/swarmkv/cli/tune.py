"""`swarmkv tune`: which settings are fastest with this model on this machine, and by how much."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarmkv.cli import output, render
from swarmkv.cli.children import ChildFailed
from swarmkv.cli.engine import need_engine
from swarmkv.cli.lab import CROWD, Lab, Series, Work
from swarmkv.cli.options import Json
from swarmkv.protocol.errors import ModelError
from swarmkv.protocol.settings import Settings, load_settings
from swarmkv.workers.models import resolve_model
from swarmkv.workers.trials import (
    BRANCHES,
    NEEDED_GAIN,
    Base,
    Candidate,
    Verdict,
    best_of_each_factor,
    candidates,
    judge,
)

if TYPE_CHECKING:
    from swarmkv.workers.engine.facts import ModelFacts
    from swarmkv.workers.tuning import Profile

_THOROUGH = Work(document_tokens=2_000, answer_tokens=16, rounds=5)
_QUICK = Work(document_tokens=512, answer_tokens=8, rounds=3)
_FACTORS = ("flash_attention", "swa_full", "threads", "n_ubatch", "slots", "omp_spin_count")
_DEFAULT = Candidate("default")
_CONTROL = Candidate("default again")


@dataclass(frozen=True, slots=True)
class Row:
    """A candidate with its medians and how it did; `verdict` is None for the default and for what fails."""

    candidate: Candidate
    prefill_tps: float
    decode_tps: dict[int, float]
    crowd_tps: float
    beside_s: float
    verdict: Verdict | None
    failure: str


def tune(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, hf://owner/repo/file.gguf, or demo.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer candidates, less work: a first idea.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what is fastest, and change nothing.")] = False,
    rounds: Annotated[int | None, typer.Option(min=3, max=100, help="Measurements of each candidate.")] = None,
    as_json: Json = False,
) -> None:
    """Measure which settings are fastest here, and write them where workers read them.

    Nothing else should run meanwhile. What you set yourself (SWARMKV_*) is not tried, and always wins. Restart all
    workers of the model afterwards.
    """
    need_engine()
    env = dict(os.environ)
    settings, path = load_settings(), resolve_model(model)
    facts = _facts(path, settings)
    work = _work(facts, quick=quick, rounds=rounds)
    fixed = settings.model_fields_set | ({"omp_spin_count"} if "GOMP_SPINCOUNT" in env else set())
    base = _base(path, settings, facts.kv.window if facts.kv else 0)
    tried = candidates(base, settings, fixed, quick=quick)
    _warn_if_busy(base.cores)
    lab = Lab(path, settings, work, env)
    series = _measure(lab, (_CONTROL, *tried))
    verdicts = {one: _judge(series, one) for one in tried if one not in series.failures}
    taken = _confirm(lab, best_of_each_factor(_only_harmless(series, verdicts)), verdicts)
    profile = _profile(path, settings, taken)
    shown = {_CONTROL: _judge(series, _CONTROL), **verdicts}
    rows = [_row(series, one, shown.get(one)) for one in (_DEFAULT, _CONTROL, *tried)]
    written = None if dry_run else _write(profile)
    if as_json:
        output.print_json(_document(profile, work, rows, taken, written))
        return
    _print(rows, taken)
    _say(profile, written, sorted(fixed & set(_FACTORS)))


def _facts(path: Path, settings: Settings) -> ModelFacts:
    from swarmkv.workers.engine.facts import read_facts
    from swarmkv.workers.opening import engine_config

    facts = read_facts(engine_config("all", path, settings))
    if facts.problem:
        raise ModelError(facts.problem)
    return facts


def _work(facts: ModelFacts, *, quick: bool, rounds: int | None) -> Work:
    """A document must fit what the model was trained on, with its answers."""
    work = _QUICK if quick else _THOROUGH
    document = min(work.document_tokens, facts.n_ctx_train // 2) if facts.n_ctx_train else work.document_tokens
    return replace(work, document_tokens=document, rounds=rounds or work.rounds)


def _base(path: Path, settings: Settings, window: int) -> Base:
    from swarmkv.workers.engine.machine import logical_cores, physical_cores
    from swarmkv.workers.opening import engine_config

    config = engine_config("all", path, settings)
    cores = physical_cores()
    return Base(
        flash_attention=config.flash_attention,
        swa_full=config.swa_full,
        window=window,
        cores=cores,
        logical_cores=logical_cores(),
        threads=config.threads or cores,
        n_ubatch=config.n_ubatch,
        slots=config.slots,
        omp_spin_count=settings.omp_spin_count,
    )


def _warn_if_busy(cores: int) -> None:
    load = os.getloadavg()[0]
    if load > cores / 2:
        output.note(f"This machine is busy (load {load:.1f} on {cores} cores): others take from what is measured.")


def _measure(lab: Lab, tried: Iterable[Candidate]) -> Series:
    try:
        return lab.rounds(_DEFAULT, tried, lambda line: output.note(line, style="dim"))
    except ChildFailed as exc:
        raise ModelError(f"The default settings cannot be measured: {exc.message}") from exc


def _judge(series: Series, candidate: Candidate) -> Verdict:
    scenario = candidate.scenario
    default_s, candidate_s = series.costs_s((_DEFAULT, scenario)), series.costs_s((candidate, scenario))
    return judge(default_s, candidate_s, noise=_noise(series))


def _noise(series: Series) -> float:
    """What the default gains or loses against itself."""
    again = judge(series.costs_s((_DEFAULT, "alone")), series.costs_s((_CONTROL, "alone")))
    return max(abs(again.low), abs(again.high))


def _only_harmless(series: Series, verdicts: dict[Candidate, Verdict]) -> dict[Candidate, Verdict]:
    """Without what helps two workers and makes one that is alone slower."""
    alone_s, noise = series.costs_s((_DEFAULT, "alone")), _noise(series)
    return {
        one: verdict
        for one, verdict in verdicts.items()
        if one.scenario != "beside" or not judge(alone_s, series.costs_s((one, "alone")), noise=noise).is_slower
    }


def _confirm(lab: Lab, best: list[Candidate], verdicts: dict[Candidate, Verdict]) -> list[Candidate]:
    """Those that are as good together as the best of them is by itself; else that one, and what is not `alone`."""
    alone = [one for one in best if one.scenario == "alone"]
    if len(alone) < 2:
        return best
    changes = {name: value for one in alone for name, value in one.changes.items()}
    together = Candidate("together", changes)
    series = _measure(lab, [_CONTROL, together])
    champion = max(alone, key=lambda one: verdicts[one].gain)
    if together not in series.failures and _judge(series, together).gain > verdicts[champion].gain - NEEDED_GAIN:
        return best
    return [champion, *(one for one in best if one.scenario != "alone")]


def _profile(path: Path, settings: Settings, taken: list[Candidate]) -> Profile:
    from swarmkv.workers.engine.fingerprint import fingerprint
    from swarmkv.workers.tuning import Profile, TunedSettings, measured_with, this_machine

    changes = {name: value for one in taken for name, value in one.changes.items()}
    return Profile(
        model=path.name,
        fingerprint=fingerprint(path),
        machine=this_machine(),
        measured_with=measured_with(settings),
        settings=TunedSettings(**changes),
    )


def _write(profile: Profile) -> Path:
    from swarmkv.workers.tuning import write_profile

    return write_profile(profile)


def _row(series: Series, candidate: Candidate, verdict: Verdict | None) -> Row:
    alone = series.middle((candidate, "alone"))
    return Row(
        candidate=candidate,
        prefill_tps=alone.prefill_tps,
        decode_tps=dict(alone.decode_tps),
        crowd_tps=series.middle((candidate, "crowd")).decode_tps.get(CROWD, 0.0),
        beside_s=series.middle((candidate, "beside")).beside_s,
        verdict=verdict,
        failure=series.failures.get(candidate, ""),
    )


def _document(
    profile: Profile, work: Work, rows: list[Row], taken: list[Candidate], written: Path | None
) -> dict[str, Any]:
    return {
        "model": profile.model,
        "fingerprint": profile.fingerprint,
        "machine": profile.machine.model_dump(),
        "document_tokens": work.document_tokens,
        "answer_tokens": work.answer_tokens,
        "rounds": work.rounds,
        "measured": [_row_document(row, is_taken=row.candidate in taken) for row in rows],
        "settings": profile.settings.chosen,
        "profile": None if written is None else str(written),
    }


def _row_document(row: Row, *, is_taken: bool) -> dict[str, Any]:
    return {
        "factor": row.candidate.factor,
        "settings": dict(row.candidate.changes),
        "prefill_tps": row.prefill_tps,
        "decode_tps": {str(count): tps for count, tps in row.decode_tps.items()},
        "crowd_tps": row.crowd_tps,
        "beside_s": row.beside_s,
        "gain": row.verdict.gain if row.verdict else None,
        "gain_low": row.verdict.low if row.verdict else None,
        "gain_high": row.verdict.high if row.verdict else None,
        "taken": is_taken,
        "failure": row.failure or None,
    }


def _print(rows: list[Row], taken: list[Candidate]) -> None:
    """Tokens a second; `beside`: seconds of a prefill worker and a branch worker on the same cores, added."""
    columns = ("setting", "prefill", *map(str, BRANCHES), f"{CROWD} queued", "beside", "gain", "rounds", "verdict")
    cells = (_cells(row, is_taken=row.candidate in taken) for row in rows)
    render.table(output.stdout(), columns, cells)


def _cells(row: Row, *, is_taken: bool) -> list[render.Cell]:
    return [
        row.candidate.label,
        _rate(row.prefill_tps),
        *(_rate(row.decode_tps.get(count, 0.0)) for count in BRANCHES),
        _rate(row.crowd_tps),
        f"{row.beside_s:.2f} s" if row.beside_s else render.NOTHING,
        f"{row.verdict.gain:+.1%}" if row.verdict else render.NOTHING,
        f"{row.verdict.low:+.1%} … {row.verdict.high:+.1%}" if row.verdict else render.NOTHING,
        _word(row, is_taken=is_taken),
    ]


def _word(row: Row, *, is_taken: bool) -> str:
    if row.failure:
        return f"fails: {row.failure}"
    if row.verdict is None:
        return render.NOTHING
    if row.candidate is _CONTROL:
        return "noise"
    return "taken" if is_taken else "slower" if row.verdict.is_slower else "no better"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value else render.NOTHING


def _say(profile: Profile, written: Path | None, fixed: list[str]) -> None:
    chosen = ", ".join(f"{name}={value}" for name, value in profile.settings.chosen.items())
    output.note(f"fastest   {chosen or 'the defaults'}")
    if fixed:
        output.note(f"not tried {', '.join(fixed)}: set by you", style="dim")
    if written is None:
        output.note("written   nothing (--dry-run)", style="dim")
    else:
        output.note(f"written   {written}; restart all workers of this model", style="green")
