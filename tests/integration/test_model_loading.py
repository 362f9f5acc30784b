"""A file that is no model we can serve is refused with its reason, and the next good one loads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from swarmkv.protocol.errors import ModelError
from swarmkv.workers.engine.backend import has_gpu, physical_cores
from swarmkv.workers.engine.fingerprint import fingerprint
from swarmkv.workers.engine.jobs import EngineInfo
from swarmkv.workers.engine.model import Model
from tests import tiny_models
from tests.engine_driver import driven


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def info_of(path: Path, **changes: Any) -> EngineInfo:
    with driven(path, **changes) as driver:
        return driver.engine.info


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model file .*absent\.gguf"):
        Model(tmp_path / "absent.gguf")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a directory"):
        Model(tmp_path)


def test_a_file_that_is_no_gguf_is_refused_with_what_it_begins_with(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(ModelError, match=r"no GGUF file: it begins with b'PK"):
        Model(path)


@pytest.mark.parametrize("share", [0.001, 0.2, 0.6, 0.99])
def test_a_truncated_file_is_refused_with_the_loaders_reason(
    tiny_llama_path: Path, tmp_path: Path, share: float
) -> None:
    data = tiny_llama_path.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelError, match=r"cannot load .*: .*(fail|error|corrupted|invalid)"):
        Model(path)
    Model(tiny_llama_path).close()


def test_an_encoder_is_refused_by_name(tiny_encoder_path: Path) -> None:
    with pytest.raises(ModelError, match=r"encoder or embedding model \(bert\)"):
        Model(tiny_encoder_path)


@pytest.mark.parametrize(
    ("function", "kind"),
    [("llama_model_is_recurrent", "recurrent"), ("llama_model_is_hybrid", "hybrid")],
)
def test_models_whose_state_has_no_positions_are_refused_by_name(
    tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, kind: str
) -> None:
    monkeypatch.setattr(f"swarmkv.workers.engine.model.llama.{function}", lambda _: True)
    with pytest.raises(ModelError, match=rf"{kind} model \(llama\)"):
        Model(tiny_llama_path)


@pytest.mark.skipif(has_gpu(), reason="this build of llama.cpp has a GPU")
def test_layers_for_a_gpu_that_is_not_there_are_refused(tiny_llama_path: Path) -> None:
    with pytest.raises(ModelError, match="99 layers are to run on a GPU"):
        Model(tiny_llama_path, n_gpu_layers=99)


def test_a_refused_context_leaves_no_model_behind_and_says_why(tiny_llama_path: Path) -> None:
    with (
        pytest.raises(ModelError, match="quantized V cache requires flash_attn"),
        driven(tiny_llama_path, kv_type_v="q8_0", flash_attention=False),
    ):
        pass


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16"])
def test_every_float_kv_type_answers(tiny_llama_path: Path, kv_type: str) -> None:
    with driven(tiny_llama_path, kv_type_k=kv_type, kv_type_v=kv_type) as driver:
        tokens = driver.engine.prefix_tokens(None, "a document of some length " * 8, None)
        payload = driver.prefill(tokens)
        assert driver.answer("a", payload, len(tokens), driver.engine.suffix_tokens("what?", None))


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"])
def test_a_kv_type_whose_blocks_do_not_fit_the_heads_is_refused(tiny_llama_path: Path, kv_type: str) -> None:
    changes: dict[str, Any] = {"kv_type_k": kv_type, "kv_type_v": kv_type, "flash_attention": True}
    with pytest.raises(ModelError, match="block size 32 does not divide"), driven(tiny_llama_path, **changes):
        pass


def test_more_sequences_than_llama_cpp_has_are_refused(tiny_llama_path: Path) -> None:
    with (
        pytest.raises(ModelError, match="250 slots and 6 residents need 257 sequences"),
        driven(tiny_llama_path, slots=250, residents=6),
    ):
        pass


def test_identity_changes_with_everything_that_decides_a_states_layout(
    tiny_llama_path: Path, tiny_gemma3_path: Path, tmp_path: Path
) -> None:
    base = info_of(tiny_llama_path)
    other_weights = tiny_models.tiny_llama(tmp_path / "other.gguf", seed=1)
    others = [
        info_of(other_weights),
        info_of(tiny_llama_path, flash_attention=True),
        info_of(tiny_llama_path, kv_type_k="f16"),
        info_of(tiny_llama_path, kv_type_v="f16"),
        info_of(tiny_gemma3_path),
        info_of(tiny_gemma3_path, swa_full=True),
    ]
    assert len({info.identity for info in (base, *others)}) == 7
    assert base.identity == info_of(tiny_llama_path, n_ctx=512, n_ubatch=32, slots=2, swa_full=True).identity
    assert {key for key, value in base.layout.items() if value != others[1].layout[key]} == {"flash_attention"}


def test_a_fingerprint_is_of_all_bytes_and_cached_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(1000) + b"a")
    first = fingerprint(path)
    with monkeypatch.context() as patch:
        patch.setattr("swarmkv.workers.engine.fingerprint._digest_file", lambda _: "read again")
        assert fingerprint(path) == first
    stat = path.stat()
    path.write_bytes(b"GGUF" + bytes(1000) + b"b")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as cp -p does
    assert fingerprint(path) != first


def test_a_cache_that_cannot_be_written_does_not_stop_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    assert len(fingerprint(path)) == 32


def test_a_split_model_is_fingerprinted_over_all_its_parts(tmp_path: Path) -> None:
    parts = [tmp_path / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF" + part.name.encode())
    before = fingerprint(parts[0])
    parts[1].write_bytes(b"GGUF changed")
    assert fingerprint(parts[0]) != before


def test_information_about_the_model_is_its_own(tiny_llama_path: Path) -> None:
    info = info_of(tiny_llama_path, n_ctx=1000)
    assert (info.architecture, info.n_ctx_train) == ("llama", tiny_models.CONTEXT)
    assert info.n_ctx >= 1000
    # Two layers of two KV heads, K and V, in F32, and a cell's position and sequence.
    cells = 2 * tiny_models.KV_HEADS * tiny_models.HEAD_DIM * 2 * 4
    assert cells <= info.kv_bytes_per_token <= cells + 16


def test_cores_are_counted_within_what_this_process_may_use() -> None:
    assert 1 <= physical_cores() <= len(os.sched_getaffinity(0))
