"""Bad input is refused by the producer, with words that say where and how to mend it, before Redis is touched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from swarmkv.producer import BranchSpec, Producer, Sampling
from swarmkv.protocol.errors import BrokerError, InvalidBranch, InvalidDocument, InvalidInput, SwarmkvError
from swarmkv.protocol.settings import Settings

NOBODY_LISTENS = "redis://127.0.0.1:1/0"
GOOD = "A document."
UNCHECKED = BranchSpec.model_construct(**dict.fromkeys(("name", "prompt"), cast(Any, 7)))


@pytest.fixture
async def producer() -> AsyncIterator[Producer]:
    """A producer whose broker cannot be reached: whatever it refuses, it refuses by itself."""
    settings = Settings(_env_file=None, redis_url=NOBODY_LISTENS, max_document_bytes=1000)
    async with Producer(settings=settings) as producer:
        yield producer


async def refused(producer: Producer, document: Any, branches: Any, **options: Any) -> SwarmkvError:
    with pytest.raises(InvalidInput) as caught:
        await producer.submit(document, branches, **options)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "empty"),
        (b"", "empty"),
        (" \n\t ", "nothing but white space (4 bytes)"),
        ("\u2003\u00a0\u3000", "nothing but white space"),
        ("\u200b\ufeff", "nothing but white space"),
        (None, "a NoneType"),
        (7, "a int"),
        (b"PDF \xff\xfe", "byte 0xff at offset 4"),
        ("café".encode("latin-1"), "byte 0xe9 at offset 3"),
        ("naïve"[:2].encode() + "ï".encode()[:1], "offset 2"),
        ("a\0b", "NUL byte at offset 1"),
        (b"\0", "NUL byte at offset 0"),
        ("half \ud83d", "lone surrogate (U+D83D) at character 5"),
        ("x" * 1001, "1,001 bytes; the limit is 1,000"),
    ],
)
async def test_a_bad_document_is_refused_saying_where(producer: Producer, document: Any, words: str) -> None:
    error = await refused(producer, document, ["What?"])
    assert isinstance(error, InvalidDocument)
    assert words in error.message


@pytest.mark.parametrize(
    ("branches", "words"),
    [
        ([], "no branches"),
        ("What?", "one string"),
        ([""], "prompt of branch 'branch-1' is empty"),
        (["What?", " \n"], "prompt of branch 'branch-2' is empty"),
        (["\u2003"], "is empty"),
        ({"a": "What?"}, "The branches are a dict"),
        (7, "The branches are a int"),
        ([UNCHECKED], "name=7"),
        ([BranchSpec(name="a", prompt="b", sampling=Sampling.model_construct(temperature=-1))], "temperature"),
        ([{"prompt": "What?", "sampling": {"top_k": 10**20}}], "sampling.top_k"),
        ([{"prompt": "What?", "sampling": {"logit_bias": {10**25: 1.0}}}], "sampling.logit_bias"),
        (["a\0"], "NUL byte at offset 1"),
        (["\udc00"], "lone surrogate"),
        ([("../etc", "What?")], "'../etc' is not allowed"),
        ([("two words", "What?")], "'two words' is not allowed"),
        ([("x" * 300, "What?")], "(300 characters)"),
        ([("", "What?")], "'' is not allowed"),
        ([("same", "What?"), ("other", "Why?"), ("same", "Who?")], "Branches 1 and 3 have the same name 'same'"),
        (["What?"] * 1001, "1,001 branches; the limit is 1,000"),
        ([7], "Branch 1 is a int"),
        ([{"name": "a"}], "Branch 1 is not valid: prompt"),
        ([{"prompt": "What?", "promt": "typo"}], "promt=(str): Extra inputs"),
        ([{"prompt": "What?", "sampling": {"temperature": -1}}], "sampling.temperature=-1"),
        ([{"prompt": "What?", "sampling": {"max_tokens": 0}}], "sampling.max_tokens=0"),
        ([{"prompt": "What?", "sampling": {"top_p": float("nan")}}], "sampling.top_p=nan"),
    ],
)
async def test_a_bad_branch_is_refused_naming_it(producer: Producer, branches: object, words: str) -> None:
    error = await refused(producer, GOOD, branches)
    assert isinstance(error, InvalidBranch)
    assert words in error.message


@pytest.mark.parametrize(
    "options",
    [
        {"deadline_s": 0},
        {"deadline_s": float("nan")},
        {"deadline_s": "5"},
        {"model": "../x"},
        {"model": None},
        {"name": 7},
        {"template": "{prompt} {document}"},
        {"template": "{document}"},
        {"name": "n" * 201},
        {"system": "a\0"},
        {"template": "\ud800"},
    ],
)
async def test_a_bad_option_is_refused(producer: Producer, options: dict[str, Any]) -> None:
    await refused(producer, GOOD, ["What?"], **options)


async def test_branches_may_come_from_a_generator(producer: Producer) -> None:
    with pytest.raises(BrokerError):
        await producer.submit(GOOD, (text for text in ["What?"]))  # type: ignore[arg-type]


async def test_seeds_are_drawn_once_so_that_a_retry_draws_the_same_tokens() -> None:
    from swarmkv.producer.validate import checked_branches

    settings = Settings(_env_file=None)
    given = BranchSpec(name="given", prompt="What?", sampling=Sampling(seed=7))
    drawn, kept = checked_branches(["What?", given], None, settings)
    assert drawn.sampling.seed is not None
    assert kept.sampling.seed == 7
    other, _ = checked_branches(["What?", given], None, settings)
    assert other.sampling.seed != drawn.sampling.seed
