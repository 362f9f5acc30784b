"""The engine as workers see it: one thread owns model and context, others talk to it through a queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from queue import Empty, SimpleQueue
from time import perf_counter

from swarmkv.protocol.errors import BranchTooLong, EngineError, PrefixTooLong
from swarmkv.protocol.identity import digest_fields
from swarmkv.workers.engine.backend import BUILD, cpu_features, has_gpu, llama
from swarmkv.workers.engine.cancel import CancelBoard
from swarmkv.workers.engine.context import Context
from swarmkv.workers.engine.jobs import (
    BranchJob,
    Emit,
    EngineConfig,
    EngineDied,
    EngineInfo,
    EngineLoad,
    JobCancelled,
    PrefillJob,
    Tokens,
)
from swarmkv.workers.engine.loop import Loop
from swarmkv.workers.engine.model import Model
from swarmkv.workers.engine.plan import Job, Limits, Scheduler
from swarmkv.workers.engine.templates import PromptTemplate, template_of
from swarmkv.workers.engine.tokens import Vocab

logger = logging.getLogger(__name__)

THREAD_NAME = "swarmkv-engine"
MAX_TEMPLATES = 64
SHORTEN = "Shorten it, or raise SWARMKV_N_CTX on prefill and branch workers."
MakeContext = Callable[[Model, EngineConfig], Context]


@dataclass(frozen=True, slots=True)
class _Submit:
    job: Job
    taken_s: float


@dataclass(frozen=True, slots=True)
class _Cancel:
    job_id: str


class _Close:
    pass


def open_engine(config: EngineConfig, emit: Emit, *, make_context: MakeContext = Context) -> LlamaEngine:
    """Load the model and start the engine's thread. Raises ModelError; nothing is left behind then.

    The thread that computes also loads, where weights may be repacked in parallel: libgomp keeps a pool for each
    thread that ever used it, and when it knows more threads than cores they hardly spin any more: every step of
    a branch or two then takes half as long again.
    """
    opening: Future[LlamaEngine] = Future()

    def live() -> None:
        try:
            engine = _load(config, emit, make_context)
        except BaseException as exc:
            opening.set_exception(exc)
            return
        opening.set_result(engine)
        engine.run()

    threading.Thread(target=live, name=THREAD_NAME, daemon=True).start()
    return opening.result()


def _load(config: EngineConfig, emit: Emit, make_context: MakeContext) -> LlamaEngine:
    model = Model(config.model_path, n_gpu_layers=config.n_gpu_layers)
    try:
        context = make_context(model, config)
    except BaseException:
        model.close()
        raise
    try:
        return LlamaEngine(model, context, config, emit)
    except BaseException:
        context.close()
        model.close()
        raise


class LlamaEngine:
    """Satisfies `jobs.Engine`. Owns model and context from the start, and frees them in `close`.

    Made on the thread that then calls `run`; everything else is for other threads.
    After `close`, or when the engine died, a new job ends at once as JobCancelled, on the caller's thread.
    """

    info: EngineInfo

    def __init__(self, model: Model, context: Context, config: EngineConfig, emit: Emit) -> None:
        self._model = model
        self._context = context
        self._emit = emit
        self._vocab = Vocab(model.ptr, space_prefix=model.space_prefix)
        self.info = _describe(model, context, config)
        self._commands: SimpleQueue[_Submit | _Cancel | _Close] = SimpleQueue()
        self._cancels = CancelBoard(context.abort)
        scheduler = Scheduler(_limits(model, context, config))
        self._loop = Loop(context, self._vocab, scheduler, self._cancels, emit)
        self._template = lru_cache(MAX_TEMPLATES)(self._make_template)
        self._digest = lru_cache(MAX_TEMPLATES)(self._make_digest)
        self._state_lock = threading.Lock()
        self._is_running = True
        self._text_lock = threading.Lock()  # a vocabulary must not be freed while it is read
        self._is_open = True
        self._thread = threading.current_thread()

    @property
    def load(self) -> EngineLoad:
        """As of the latest step."""
        return self._loop.meter.load

    def prefill(self, job: PrefillJob) -> None:
        """Queue a prefill; its events follow."""
        self._submit(job)

    def branch(self, job: BranchJob) -> None:
        """Queue a branch; it starts when a slot and its cells are free."""
        self._submit(job)

    def cancel(self, job_id: str) -> None:
        """End a job at the next step, or inside a running prefill batch; unknown ids are ignored."""
        self._cancels.ask(job_id)
        self._commands.put(_Cancel(job_id))

    def prefix_tokens(self, system: str | None, document: str, template: str | None) -> Tokens:
        """Token ids of a prefix. Raises InvalidInput, PrefixTooLong, ModelError or, once closed, EngineError."""
        if (reason := self._cannot_fit(document)) is not None:
            raise PrefixTooLong(f"The document {reason}", hint=SHORTEN)
        with self._text_lock:
            return self._open_template(template).prefix_tokens(self._vocab, system, document)

    def suffix_tokens(self, prompt: str, template: str | None) -> Tokens:
        """Token ids of a branch's prompt. Raises BranchTooLong, else as `prefix_tokens`."""
        if (reason := self._cannot_fit(prompt)) is not None:
            raise BranchTooLong(f"The prompt {reason}", hint=SHORTEN)
        with self._text_lock:
            return self._open_template(template).suffix_tokens(self._vocab, prompt)

    def prefix_digest(self, system: str | None, document_digest: str, template: str | None) -> str:
        """Digest of the rendered prefix pieces, the document by its digest. Raises as `prefix_tokens`."""
        return self._digest(system, document_digest, template)

    def default_stop(self, template: str | None) -> tuple[str, ...]:
        """Stop texts of a branch that names none. Raises as `prefix_tokens`."""
        with self._text_lock:
            return self._open_template(template).stop

    def check_model(self) -> None:
        """Raise ModelError when the model's files were overwritten: the weights are mapped, and others now."""
        self._model.check_unchanged()

    def close(self) -> None:
        """Stop the thread and free context and model; jobs still there end as JobCancelled."""
        self._cancels.ask_all()
        self._commands.put(_Close())
        self._thread.join()
        with self._text_lock:
            self._is_open = False
            self._context.close()
            self._model.close()

    def _submit(self, job: Job) -> None:
        with self._state_lock:
            if self._is_running:
                self._commands.put(_Submit(job, perf_counter()))
                return
        self._emit([JobCancelled(job.id)])

    def run(self) -> None:
        """Work until `close`."""
        try:
            while self._take_commands():
                self._loop.step()
            self._stop()
        except Exception as exc:  # whatever it is, the state of the context is unknown
            logger.exception("The engine died", extra={"action": "engine_died"})
            with self._state_lock:
                self._is_running = False
            self._emit([EngineDied(exc)])

    def _stop(self) -> None:
        with self._state_lock:
            self._is_running = False
        self._take_commands()  # jobs that came behind the command to close
        self._loop.cancel_all()
        self._loop.flush()

    def _take_commands(self) -> bool:
        """Everything that waits in the queue; sleeps while there is nothing to do. False: close."""
        may_sleep = self._is_running and not self._loop.has_work
        while True:
            try:
                command = self._commands.get(block=may_sleep)
            except Empty:
                return True
            may_sleep = False
            match command:
                case _Submit(job, taken_s):
                    self._loop.submit(job, taken_s)
                case _Cancel(job_id):
                    self._loop.cancel(job_id)
                case _Close():
                    return False

    def _open_template(self, override: str | None) -> PromptTemplate:
        if not self._is_open:
            raise EngineError("The engine is closed.")
        return self._template(override)

    def _make_digest(self, system: str | None, document_digest: str, template: str | None) -> str:
        with self._text_lock:
            return self._open_template(template).prefix_digest(system, document_digest)

    def _cannot_fit(self, text: str) -> str | None:
        """Why a text needs more tokens than the context has, seen without tokenising it.

        Some vocabularies take time that grows with the square of a text's length: minutes for a megabyte.
        """
        n_ctx, longest = self.info.n_ctx, self._vocab.longest_piece_bytes
        if len(text) <= n_ctx * longest:
            return None
        needs = len(text) // longest
        return f"has {len(text):,} characters, at least {needs:,} tokens; the context holds {n_ctx:,}."

    def _make_template(self, override: str | None) -> PromptTemplate:
        vocab = self._vocab
        eos = llama.llama_vocab_eos(vocab.ptr)
        return template_of(self._model.chat_template, vocab.text(vocab.bos), override, vocab.text(eos))


def _limits(model: Model, context: Context, config: EngineConfig) -> Limits:
    return Limits(
        n_ctx=context.n_ctx,
        n_positions=min(context.n_ctx, model.n_ctx_train),
        n_batch=context.n_batch,
        n_ubatch=config.n_ubatch,
        slots=config.slots,
        residents=config.residents,
        can_prefill=config.can_prefill,
    )


def _device(n_gpu_layers: int) -> str:
    if not n_gpu_layers or not has_gpu():
        return "CPU"
    return "GPU" if n_gpu_layers < 0 else f"GPU ({n_gpu_layers} layers)"


def _describe(model: Model, context: Context, config: EngineConfig) -> EngineInfo:
    layout: dict[str, str | int | bool] = {
        "build": BUILD,
        "fingerprint": model.fingerprint,
        "flash_attention": context.flash_attention,
        "kv_type_k": config.kv_type_k,
        "kv_type_v": config.kv_type_v,
        "swa_full": config.swa_full or not model.window,  # no window: the setting means nothing
    }
    logger.info(
        "Loaded %s on %s",
        *(model.path, cpu_features()),
        extra={"action": "model_loaded", "n_ctx": context.n_ctx, "fingerprint": model.fingerprint},
    )
    per_token = context.measure_bytes_per_token()
    keeps_window = bool(model.window) and not config.swa_full
    in_window = context.measure_bytes_per_token(context.window_export_size) if keeps_window else 0
    longest = min(context.n_ctx, model.n_ctx_train)
    return EngineInfo(
        identity=digest_fields("kv_layout", **layout),
        fingerprint=model.fingerprint,
        layout=layout,
        architecture=model.architecture,
        n_ctx=context.n_ctx,
        n_ctx_train=model.n_ctx_train,
        kv_bytes_per_token=per_token,
        full_snapshot_bytes=longest * (per_token - in_window) + min(longest, model.window) * in_window,
        device=_device(config.n_gpu_layers),
    )
