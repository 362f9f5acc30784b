"""Room for llama.cpp's BPE pre-tokenizers, which recurse once for every character of a long word.

Several of them (gpt-4o, tekken, deepseek, falcon) run on std::regex: 320 bytes of stack a character, so that 30,000
times one letter overflows a thread's usual 8 MiB and ends the process. Texts with such a stretch are tokenised on
a thread whose stack was measured for it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from swarmkv.protocol.errors import InvalidInput

SAFE_RUN = 2_000  # characters that any thread's own stack has room for
MAX_RUN = 1_000_000
_BYTES_PER_CHARACTER = 1024  # measured: 320, with GCC on x86-64
_PAGE_ROUNDING = 1 << 20
_BREAKS = r"\s!-/:-@\[-`{-~\u3000-\u303f\uff01-\uff0f\uff1a-\uff20"
_LONG_RUN = re.compile(rf"(?<![^{_BREAKS}])[^{_BREAKS}]{{{SAFE_RUN},}}|(?<![{_BREAKS}])[{_BREAKS}]{{{SAFE_RUN},}}")

_start_lock = threading.Lock()
T = TypeVar("T")


def longest_run(text: str) -> int:
    """Characters of the longest stretch of only spaces and punctuation, or of none; 0 if all are short."""
    return max((len(match[0]) for match in _LONG_RUN.finditer(text)), default=0)


def call_with_room(run: int, call: Callable[[], T]) -> T:
    """`call()` on a thread with stack for a stretch of `run` characters, waiting for it.

    Raises InvalidInput for a longer stretch than MAX_RUN, and what `call` raises.
    """
    if run > MAX_RUN:
        raise InvalidInput(
            f"The text has {run} characters without a space or punctuation (or of nothing else);"
            f" the tokenizer takes {MAX_RUN}.",
            hint="Is it text? Break it up.",
        )
    result: Future[T] = Future()
    thread = threading.Thread(target=_settle, args=(result, call), name="swarmkv-tokenize")
    _start(thread, run * _BYTES_PER_CHARACTER)
    return result.result()


def _settle(result: Future[T], call: Callable[[], T]) -> None:
    try:
        result.set_result(call())
    except BaseException as exc:
        result.set_exception(exc)


def _start(thread: threading.Thread, stack_bytes: int) -> None:
    """Python sets the stack size for all threads that start next: one at a time, and set back."""
    rounded = -(-stack_bytes // _PAGE_ROUNDING) * _PAGE_ROUNDING
    with _start_lock:
        usual = threading.stack_size(rounded)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
