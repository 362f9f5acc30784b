"""`swarmkv model`: what a model file is, and other weight types of it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarmkv.cli import exits, output, render
from swarmkv.cli.children import Child, ChildFailed
from swarmkv.cli.engine import need_engine
from swarmkv.cli.options import Json
from swarmkv.protocol.errors import ConfigError, ModelError
from swarmkv.protocol.messages import Sampling
from swarmkv.protocol.settings import Settings, load_settings
from swarmkv.snapshots import format_bytes
from swarmkv.workers.models import resolve_model

if TYPE_CHECKING:
    from swarmkv.workers.engine.facts import KvFacts, ModelFacts
    from swarmkv.workers.engine.gguf import Tensor

app = typer.Typer(help="Look at a model file, or write it with other weights.")
File = Annotated[str, typer.Argument(metavar="FILE", help="A GGUF file, hf://owner/repo/file.gguf, or demo.")]
_MODULE = "swarmkv.workers.engine.quantize"
_PROMPT_TOKENS = 256  # of a branch, to say what fits; its answer is the default of max_tokens
_SPARE_BYTES = 64 * 1024 * 1024
# Bytes of a block of 32 weights. Embeddings and output stay at 8 bits or so even in a 4-bit file.
_BITS: dict[str, float] = {"bf16": 16.0, "q8_0": 8.5, "q4_0": 4.5}
_SENSITIVE = ("token_embd", "output", "per_layer_token_embd")


class WeightKind(StrEnum):
    """The types that `quantize` writes."""

    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"


@app.command("info")
def info(file: File, as_json: Json = False) -> None:
    """Show what a model is, what its KV cache takes, and what fits; exit code 2 if it cannot be served."""
    need_engine()
    from swarmkv.workers.engine.facts import read_facts
    from swarmkv.workers.opening import engine_config

    settings = load_settings()
    facts = read_facts(engine_config("all", resolve_model(file), settings))
    fits = _fits(facts.kv, facts.n_ctx_train, settings) if facts.kv else None
    if as_json:
        output.print_json(dataclasses.asdict(facts) | {"supported": not facts.problem, "fits": fits})
    else:
        render.table(output.stdout(), ("field", "value"), _fact_rows(facts, fits), left=2)
    if facts.problem:
        raise typer.Exit(exits.USAGE)


@app.command("quantize")
def quantize(
    file: File,
    kind: Annotated[WeightKind, typer.Option("--type", help="The type of the weights.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="OUT", help="Else beside FILE.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT.")] = False,
    as_json: Json = False,
) -> None:
    """Write a model with other weights; what an earlier quantisation lost stays lost."""
    need_engine()
    source = resolve_model(file)
    target = out or source.with_name(f"{source.stem}-{kind.value}.gguf")
    _check_target(source, target, kind, force=force)
    started_s = time.monotonic()
    _write(source, target, kind)
    seconds = time.monotonic() - started_s
    document = {
        "source": str(source),
        "source_bytes": _size(source),
        "target": str(target),
        "target_bytes": target.stat().st_size,
        "type": kind.value,
        "seconds": round(seconds, 3),
    }
    if as_json:
        output.print_json(document)
        return
    sizes = f"{format_bytes(_size(source))} -> {format_bytes(target.stat().st_size)}"
    output.note(f"{target}: {kind.value}, {sizes}, {render.seconds(seconds)}")


def _check_target(source: Path, target: Path, kind: WeightKind, *, force: bool) -> None:
    """Raise ConfigError before anything is written."""
    if target.exists() and target.samefile(source):
        raise ConfigError(f"{target} is the model itself.", hint="Name another file with -o.")
    if target.exists() and (target.is_dir() or not force):
        hint = "Name a file with -o." if target.is_dir() else "Overwrite it with --force, or name another with -o."
        raise ConfigError(f"{target} is there already.", hint=hint)
    if not target.parent.is_dir():
        raise ConfigError(f"There is no directory {target.parent}.", hint="Make it, or name another file with -o.")
    needed, free = _estimate(source, kind) + _SPARE_BYTES, shutil.disk_usage(target.parent).free
    if needed > free:
        raise ConfigError(
            f"{target.parent} has {format_bytes(free)} free; {kind.value} takes about {format_bytes(needed)}.",
            hint="Make room, or name a file on another disk with -o.",
        )


def _write(source: Path, target: Path, kind: WeightKind) -> None:
    """Under a temporary name, then by rename: nobody ever loads half a model. Raises ModelError."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    threads = load_settings().threads
    try:
        with Child(_MODULE, (str(source), str(partial), kind.value, str(threads))) as child:
            child.wait()
        partial.replace(target)
    except ChildFailed as exc:
        raise ModelError(exc.message) from exc
    except OSError as exc:
        raise ConfigError(f"{target} cannot be written: {exc.strerror}.") from exc
    finally:
        partial.unlink(missing_ok=True)


def _size(source: Path) -> int:
    from swarmkv.workers.engine.fingerprint import model_parts

    return sum(part.stat().st_size for part in model_parts(source))


def _estimate(source: Path, kind: WeightKind) -> int:
    """About the bytes of the file that will be written, rather too many. Raises ModelError."""
    from swarmkv.workers.engine.fingerprint import model_parts
    from swarmkv.workers.engine.gguf import read_header
    from swarmkv.workers.engine.model import check_file

    check_file(source)
    tensors = [tensor for part in model_parts(source) for tensor in read_header(part).tensors]
    metadata = _size(source) - sum(tensor.size_bytes for tensor in tensors)
    return metadata + sum(_tensor_bytes(tensor, kind) for tensor in tensors)


def _tensor_bytes(tensor: Tensor, kind: WeightKind) -> int:
    if sum(extent > 1 for extent in tensor.shape) < 2:
        return tensor.elements * 4  # norms and biases stay in F32
    is_sensitive = tensor.name.startswith(_SENSITIVE)
    bits = max(_BITS[kind.value], _BITS["q8_0"]) if is_sensitive else _BITS[kind.value]
    return int(tensor.elements * bits / 8)


def _fits(kv: KvFacts, n_ctx_train: int, settings: Settings) -> dict[str, Any]:
    """What the context of the current settings holds, with prompts of 256 tokens and default answers."""
    branch = _PROMPT_TOKENS + Sampling().max_tokens
    largest = max(0, min(settings.n_ctx, n_ctx_train or settings.n_ctx) - branch)
    beside_all = max(0, min(largest, settings.n_ctx - settings.slots * branch))
    return {
        "n_ctx": settings.n_ctx,
        "branch_tokens": branch,
        "tokens_per_gib": kv.tokens_per_gib,
        "largest_document_tokens": largest,
        "largest_document_tokens_all_slots": beside_all,
        "slots": settings.slots,
        "largest_snapshot_bytes": kv.snapshot_bytes(largest),
        "snapshots_in_store": settings.store_budget_bytes // max(1, kv.snapshot_bytes(largest)),
    }


def _fact_rows(facts: ModelFacts, fits: dict[str, Any] | None) -> list[tuple[str, str]]:
    count = render.count
    heads = f"{facts.heads} heads" + (f", {facts.kv_heads} for K and V" if facts.kv_heads else "")
    parts = f" in {facts.parts} files" if facts.parts > 1 else ""
    rows = [
        ("file", f"{facts.path}, {format_bytes(facts.size_bytes)}{parts}"),
        ("model", f"{facts.name or 'no name'}, {facts.architecture}, {count(facts.parameters)} parameters"),
        (
            "shape",
            f"{facts.layers} layers of {count(facts.embedding)}, feed-forward {count(facts.feed_forward)}, {heads}",
        ),
        ("vocabulary", f"{count(facts.vocabulary)} tokens"),
        ("context", f"{count(facts.n_ctx_train)} tokens as trained"),
        ("prompts", "its own chat template" if facts.has_chat_template else "a base model, no chat template"),
    ]
    rows += [
        (f"weights {one.type}", f"{one.share:6.1%}, {format_bytes(one.size_bytes)} in {one.tensors} tensors")
        for one in facts.weight_types
    ]
    if facts.kv is None or fits is None:
        return [*rows, ("supported", f"no: {facts.problem}")]
    return [*rows, ("supported", "yes"), *_kv_rows(facts.kv), *_fit_rows(fits)]


def _kv_rows(kv: KvFacts) -> list[tuple[str, str]]:
    count = render.count
    types = kv.type_k if kv.type_k == kv.type_v else f"K {kv.type_k}, V {kv.type_v}"
    if not kv.window:
        return [("KV a token", f"{count(kv.bytes_per_token)} bytes ({types}), full attention in every layer")]
    return [
        ("KV a token", f"{count(kv.bytes_per_token)} bytes ({types})"),
        ("KV, global layers", f"{count(kv.global_bytes_per_token)} bytes for every token"),
        ("KV, window layers", f"{count(kv.window_bytes_per_token)} bytes for the last {count(kv.window)} tokens"),
    ]


def _fit_rows(fits: dict[str, Any]) -> list[tuple[str, str]]:
    count = render.count
    per_gib, branch = fits["tokens_per_gib"], count(fits["branch_tokens"])
    all_slots = count(fits["largest_document_tokens_all_slots"])
    snapshot = format_bytes(fits["largest_snapshot_bytes"])
    return [
        ("a GiB of KV", "any number of tokens" if per_gib is None else f"{count(per_gib)} tokens"),
        (
            "largest document",
            f"{count(fits['largest_document_tokens'])} tokens beside a branch of {branch} "
            f"(SWARMKV_N_CTX={fits['n_ctx']}); {all_slots} beside {fits['slots']} of them",
        ),
        ("its snapshot", f"{snapshot}; the store holds {count(fits['snapshots_in_store'])}"),
    ]
