"""`swarmkv bench fanout`: which schemes are compared, and with what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmkv.benchmarks.corpus import Corpus, open_corpus
from swarmkv.benchmarks.environment import document, engine_settings
from swarmkv.benchmarks.fanout.case import Scheme
from swarmkv.benchmarks.fanout.compare import BF16, IDEAL, OURS, Comparison, Family, Plan
from swarmkv.benchmarks.fanout.context_per_branch import ContextPerBranch
from swarmkv.benchmarks.fanout.ideal import Ideal
from swarmkv.benchmarks.fanout.llama_cpp_python import SETTINGS, LlamaCppPython
from swarmkv.benchmarks.fanout.llama_server import server_settings
from swarmkv.benchmarks.fanout.marginal import marginal_costs
from swarmkv.benchmarks.fanout.reprefill import Reprefill
from swarmkv.benchmarks.fanout.system import System
from swarmkv.benchmarks.fanout.vllm import Vllm
from swarmkv.benchmarks.ground import Ground
from swarmkv.benchmarks.sizing import Sizing
from swarmkv.benchmarks.weights import bf16_of
from swarmkv.protocol.errors import ConfigError

ALWAYS = ("swarmkv", "ideal", "reprefill", "context_per_branch", "llama_cpp_python")
WITH_A_PATH = ("llama_server", "vllm")
SCHEMES = (*ALWAYS, *WITH_A_PATH)
SPARE_PROMPT_TOKENS = 8  # numbers of more digits than in the prompts that were looked at


@dataclass(frozen=True, slots=True)
class FanoutOptions:
    """What was asked for; `schemes` None: all that can be run. Raises ConfigError."""

    model_path: Path
    plan: Plan
    seed: int = 0
    schemes: tuple[str, ...] | None = None
    llama_server: Path | None = None
    vllm: Path | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.schemes or ()) - set(SCHEMES))
        if unknown:
            raise ConfigError(f"Unknown schemes: {', '.join(unknown)}.", hint=f"Schemes: {', '.join(SCHEMES)}.")
        for name, path in (("llama_server", self.llama_server), ("vllm", self.vllm)):
            if path is None and name in (self.schemes or ()):
                raise ConfigError(
                    f"The scheme {name} needs a program.", hint=f"Give --{name.replace('_', '-')} PATH."
                )
            if path is not None and not path.is_file():
                raise ConfigError(f"There is no program {path}.", hint=f"Check --{name.replace('_', '-')}.")

    @property
    def chosen(self) -> tuple[str, ...]:
        """The schemes that are run, in the order of SCHEMES."""
        wanted = set(self.schemes or SCHEMES)
        if self.llama_server is None:
            wanted.discard("llama_server")
        if self.vllm is None:
            wanted.discard("vllm")
        return tuple(name for name in SCHEMES if name in wanted)

    def as_json(self) -> dict[str, Any]:
        return {
            "doc_tokens": self.plan.document_tokens,
            "branches": list(self.plan.branches),
            "max_tokens": self.plan.max_tokens,
            "rounds": self.plan.rounds,
            "seed": self.seed,
            "schemes": list(self.chosen),
            "llama_server": str(self.llama_server or ""),
            "vllm": str(self.vllm or ""),
        }


def measure(ground: Ground, options: FanoutOptions) -> dict[str, Any]:
    """The document of the results; what a scheme raised stands under `failed`. Raises BenchFailed, ModelError."""
    plan = options.plan
    with open_corpus(options.model_path, ground.sample, options.seed) as corpus:
        longest = max(len(prompt.ids) for prompt in corpus.prompts("sizes", 2 * max(plan.branches)))
        own_tokens = longest + SPARE_PROMPT_TOKENS + plan.max_tokens
        sizing = Sizing(plan.document_tokens, max(plan.branches), own_tokens)
        families = list(_families(ground, options, corpus, sizing))
        comparison = Comparison(plan, families, corpus, ground.say)
        cases: list[dict[str, Any]] = []
        results: dict[str, Any] = {}
        for case in comparison.run():
            cases.append(case)
            facts = {
                "model": corpus.facts(),
                "weights": _weights(options),
                "settings": engine_settings(ground.settings),
                "marginal": marginal_costs(cases, OURS, IDEAL),
                "failed": {name: [exc.message, exc.hint] for name, exc in comparison.failures.items()},
            }
            results = document("fanout", {**options.as_json(), "slots": sizing.slots}, cases, **facts)
            ground.keep(results)
        return results


def _families(ground: Ground, options: FanoutOptions, corpus: Corpus, sizing: Sizing) -> Iterable[Family]:
    chosen, path, settings = options.chosen, options.model_path, ground.settings
    if OURS in chosen:
        yield _alone(_system(ground, path, corpus, sizing))
    if IDEAL in chosen:
        yield _alone(Ideal(path, settings, sizing))
    if "reprefill" in chosen:
        yield _alone(Reprefill(path, settings))
    if "context_per_branch" in chosen:
        yield _alone(ContextPerBranch(path, settings, sizing))
    if "llama_cpp_python" in chosen:
        yield Family("llama_cpp_python", tuple(LlamaCppPython(path, sizing, setting) for setting in SETTINGS))
    if options.llama_server is not None and "llama_server" in chosen:
        yield Family("llama_server", server_settings(ground, options.llama_server, path, sizing))
    if options.vllm is not None and "vllm" in chosen:
        yield from _on_bf16(ground, options, options.vllm, corpus, sizing)


def _on_bf16(
    ground: Ground, options: FanoutOptions, python: Path, corpus: Corpus, sizing: Sizing
) -> Iterable[Family]:
    """vLLM reads no quantised GGUF of this kind: it and we run on BF16 weights of the same shape."""
    path, ours = bf16_of(options.model_path), OURS + BF16
    if OURS in options.chosen:
        yield _alone(_system(ground, path, corpus, sizing, ours), ours)
    if IDEAL in options.chosen:
        yield _alone(Ideal(path, ground.settings, sizing, IDEAL + BF16), ours)
    yield _alone(Vllm(ground, python, path, sizing), ours)


def _system(ground: Ground, path: Path, corpus: Corpus, sizing: Sizing, name: str = OURS) -> System:
    warm_up = corpus.document("warm-up", sizing.document_tokens), corpus.prompts("warm-up", 1)[0]
    return System(ground, path, sizing, warm_up, name)


def _alone(scheme: Scheme, against: str = OURS) -> Family:
    return Family(scheme.name, (scheme,), against)


def _weights(options: FanoutOptions) -> dict[str, str]:
    """What was run on other weights than the model's own."""
    if "vllm" not in options.chosen:
        return {}
    ours = "BF16, made from the model's own"
    return {"vllm": "BF16, random, of the same shape", "swarmkv_bf16": ours, "ideal_bf16": ours}
