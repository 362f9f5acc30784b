"""A short round of the fuzzer: broken bytes are refused as what they are, and nothing else happens."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarmkv.protocol.errors import ProtocolError
from tests.fuzz.campaign import Campaign, kept
from tests.fuzz.mutation import MAX_BYTES, MUTATIONS, mutated
from tests.fuzz.targets import Target, targets

NAMES = [
    *("message-PrefixSpec", "message-BranchSpec", "message-BranchResult", "message-RunSpec"),
    *("msgpack", "shape", "events"),
    *("record-run", "record-branch", "record-listing", "record-worker", "record-taken"),
    *("metadata", "snapshot-header", "snapshot-resealed", "snapshot-file", "snapshot-file-resealed"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return {target.name: target for target in targets(tmp_path_factory.mktemp("fuzz"))}


@pytest.mark.parametrize("name", NAMES)
def test_broken_inputs_are_taken_or_refused_and_never_crash_a_reader(found: dict[str, Target], name: str) -> None:
    campaign, random = Campaign(), Random(name)
    campaign.start(found[name])
    for _ in range(400):
        campaign.step(found[name], random)
    assert [(crash.data[:60], repr(crash.error)) for crash in campaign.crashes] == []


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.randoms(use_true_random=False), name=st.sampled_from(NAMES))
def test_hypothesis_finds_no_crash_either(found: dict[str, Target], random: Random, name: str) -> None:
    target = found[name]
    with suppress(*target.refusals):
        target.read(mutated(target.seeds, random))


def test_every_reader_is_tried_and_takes_its_valid_inputs(found: dict[str, Target]) -> None:
    assert list(found) == NAMES
    for target in found.values():
        target.read(target.seeds[0])


def test_the_kept_inputs_are_small_and_belong_to_targets() -> None:
    folder = Path(__file__).parent.parent / "fuzz" / "corpus"
    assert {path.stem for path in folder.iterdir()} <= set(NAMES)
    sizes = [len(data) for name in NAMES for data in kept(name)]
    assert sizes
    assert sum(sizes) < 64 * 1024


def test_a_reader_that_crashes_is_caught_by_the_fuzzer() -> None:
    def read(data: bytes) -> None:
        if len(data) < 8:
            raise IndexError(len(data))
        raise ProtocolError("as it should be")

    campaign, target = Campaign(), Target("fragile", [b"12345678"], read)
    campaign.start(target)
    for number in range(500):
        campaign.step(target, Random(number))
    assert [type(crash.error) for crash in campaign.crashes] == [IndexError]


def test_every_mutation_changes_something_and_none_grows_without_bound() -> None:
    seeds = [bytes(range(200)), b"", b"a"]
    for mutation in MUTATIONS:
        results = set()
        for number in range(50):
            data = bytearray(seeds[0])
            mutation(data, seeds[0], Random(number))
            results.add(bytes(data))
        assert results - {seeds[0]}
    assert all(len(mutated(seeds, Random(number))) <= MAX_BYTES for number in range(200))
