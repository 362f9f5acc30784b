"""Every family of attention either comes back from a snapshot bit for bit, or is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from swarmkv.protocol.errors import ModelError
from swarmkv.workers.engine.model import Model
from tests.decode_probe import logits_in_a_new_process, probing
from tests.engine_driver import driven, engine_config, random_tokens
from tests.tiny_families import FAMILIES, tiny_hybrid

PREFIX, PROMPT = random_tokens(300, seed=1), random_tokens(20, seed=2)
every_family = pytest.mark.parametrize("family", FAMILIES)
every_setting = pytest.mark.parametrize(
    ("flash_attention", "kv_type"), [(False, "f32"), (True, "f32"), (False, "f16"), (True, "f16")]
)


@every_family
def test_another_first_half_of_the_document_gives_clearly_other_logits(tmp_path: Path, family: str) -> None:
    # Or the tests below would pass on a model that ignores its prefix.
    other = np.concatenate([random_tokens(150, seed=3), PREFIX[150:]])
    with probing(engine_config(FAMILIES[family](tmp_path / "model.gguf"))) as probe:
        difference = probe.logits_cold(PREFIX, PROMPT) - probe.logits_cold(other, PROMPT)
    assert np.abs(difference).max() > 0.1


@every_family
@every_setting
def test_a_branch_restored_in_another_process_is_bit_equal_to_a_cold_run(
    tmp_path: Path, family: str, flash_attention: bool, kv_type: str
) -> None:
    changes = {"flash_attention": flash_attention, "kv_type_k": kv_type, "kv_type_v": kv_type}
    config = engine_config(FAMILIES[family](tmp_path / "model.gguf"), **changes)
    with probing(config) as probe:
        payload = probe.export(PREFIX)
        cold = probe.logits_cold(PREFIX, PROMPT)
    restored = logits_in_a_new_process(tmp_path, config, {"a": (payload, len(PREFIX), PROMPT)})
    np.testing.assert_array_equal(restored["a"], cold)


@every_family
def test_branches_of_every_family_answer_together_as_they_do_alone(tmp_path: Path, family: str) -> None:
    prompts = {f"b{number}": random_tokens(5 + 9 * number, seed=number) for number in range(8)}
    with driven(FAMILIES[family](tmp_path / "model.gguf")) as driver:
        payload = driver.prefill(PREFIX)
        alone = {name: driver.answer(f"{name}-alone", payload, 300, prompt) for name, prompt in prompts.items()}
        for name, prompt in prompts.items():
            driver.start(name, payload, 300, prompt)
        assert {name: driver.text(name) for name in prompts} == alone


def test_a_hybrid_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is a hybrid model \(lfm2\)"):
        Model(tiny_hybrid(tmp_path / "hybrid.gguf"))
