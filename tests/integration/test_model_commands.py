"""`swarmkv model`: what a file is, and other weight types of it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from swarmkv.cli import exits, model
from swarmkv.cli.children import Child
from swarmkv.protocol.errors import ConfigError, ModelError
from swarmkv.workers.engine import gguf
from swarmkv.workers.engine.facts import KvFacts, read_facts
from tests import tiny_models
from tests.command import Home, all_gone, descendants
from tests.engine_driver import driven, engine_config
from tests.waiting import wait_until

CELL_BYTES = 12  # position and sequences of a cell, in a state


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).with_settings(threads=1, n_ctx=2048, slots=2)


@pytest.fixture
def copy(tiny_llama_path: Path, tmp_path: Path) -> Path:
    """A model in a directory of its own."""
    path = tmp_path / "mine" / "tiny.gguf"
    path.parent.mkdir()
    path.write_bytes(tiny_llama_path.read_bytes())
    return path


def test_info_says_what_a_model_is_and_what_fits(home: Home, tiny_llama_path: Path) -> None:
    found = home.run("model", "info", str(tiny_llama_path), "--json").json
    assert (found["architecture"], found["layers"], found["embedding"]) == ("llama", 2, tiny_models.EMBED)
    assert (found["heads"], found["kv_heads"], found["vocabulary"]) == (4, 2, 260)
    assert found["n_ctx_train"] == tiny_models.CONTEXT
    assert (found["supported"], found["problem"], found["has_chat_template"]) == (True, "", False)
    assert [one["type"] for one in found["weight_types"]] == ["f32"]
    assert found["parameters"] * 4 == found["weight_types"][0]["size_bytes"]
    assert found["fits"]["largest_document_tokens"] == 2048 - 512
    assert found["fits"]["largest_document_tokens_all_slots"] == 2048 - 2 * 512


def test_info_of_a_chat_model_names_its_template(home: Home, tiny_bpe_chat_path: Path) -> None:
    assert "its own chat template" in home.run("model", "info", str(tiny_bpe_chat_path)).stdout


def test_info_of_a_model_that_cannot_be_served_says_why(home: Home, tiny_encoder_path: Path) -> None:
    done = home.run("model", "info", str(tiny_encoder_path), "--json")
    assert done.code == exits.USAGE
    assert (done.json["supported"], done.json["fits"], done.json["kv"]) == (False, None, None)
    assert "encoder or embedding model" in done.json["problem"]
    assert done.json["architecture"] == "bert"


def test_info_of_what_is_no_model_is_an_error(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("text")
    done = home.run("model", "info", str(path), "--json")
    assert (done.code, done.json["error"]["code"]) == (exits.USAGE, "model")


def test_info_of_a_truncated_model_is_an_error_with_the_readers_reason(home: Home, copy: Path) -> None:
    copy.write_bytes(copy.read_bytes()[:5000])
    done = home.run("model", "info", str(copy))
    assert (done.code, "header" in done.stderr) == (exits.USAGE, True)


def test_kv_bytes_are_those_of_every_layer(tiny_llama_path: Path) -> None:
    kv = read_facts(engine_config(tiny_llama_path)).kv
    assert kv is not None
    assert (kv.window, kv.window_bytes_per_token) == (0, 0)
    layers = 2 * tiny_models.KV_HEADS * tiny_models.HEAD_DIM * 2 * 4
    assert kv.bytes_per_token == kv.global_bytes_per_token == layers + CELL_BYTES


def test_kv_bytes_of_window_layers_are_apart_and_a_snapshot_is_as_large_as_they_say(
    tiny_gemma3_path: Path,
) -> None:
    kv = read_facts(engine_config(tiny_gemma3_path)).kv
    assert kv is not None
    layer = tiny_models.KV_HEADS * tiny_models.HEAD_DIM * 2 * 4
    assert (kv.global_bytes_per_token, kv.window_bytes_per_token) == (layer + CELL_BYTES, 5 * layer + CELL_BYTES)
    with driven(tiny_gemma3_path) as driver:
        tokens = driver.engine.prefix_tokens(None, "a document " * 60, None)
        state = driver.prefill(tokens)
    assert len(tokens) > 3 * kv.window
    assert kv.snapshot_bytes(len(tokens)) == pytest.approx(len(state), rel=0.02)


def test_tokens_of_a_gib_are_told_by_the_layers_that_grow() -> None:
    full = KvFacts("f16", "f16", 1024, 1024, 0, 0)
    assert full.tokens_per_gib == 1024 * 1024
    ringed = KvFacts("f16", "f16", 3072, 1024, 2048, 512)
    assert ringed.tokens_per_gib == 1024 * 1024 - 2 * 512
    assert KvFacts("f16", "f16", 1024, 0, 1024, 512).tokens_per_gib is None


@pytest.mark.parametrize(("kind", "share"), [("bf16", 0.5), ("q8_0", 0.28), ("q4_0", 0.25)])
def test_a_quantised_model_is_smaller_and_answers(
    home: Home, copy: Path, tmp_path: Path, kind: str, share: float
) -> None:
    target = tmp_path / f"{kind}.gguf"
    done = home.run("model", "quantize", str(copy), "--type", kind, "-o", str(target), "--json")
    assert done.code == exits.DONE, done.stderr
    assert done.json["target_bytes"] == target.stat().st_size < copy.stat().st_size * (share + 0.05)
    assert kind in {tensor.type for tensor in gguf.read_header(target).tensors}
    with driven(target) as driver:
        tokens = driver.engine.prefix_tokens(None, "a document", None)
        payload = driver.prefill(tokens)
        assert driver.answer("a", payload, len(tokens), driver.engine.suffix_tokens("what?", None))


def test_a_quantised_model_lies_beside_its_source_and_can_be_quantised_again(home: Home, copy: Path) -> None:
    assert home.run("model", "quantize", str(copy), "--type", "q8_0").code == exits.DONE
    again = home.run("model", "quantize", str(copy.with_name("tiny-q8_0.gguf")), "--type", "bf16")
    assert again.code == exits.DONE, again.stderr
    names = ["tiny-q8_0-bf16.gguf", "tiny-q8_0.gguf", "tiny.gguf"]
    assert sorted(path.name for path in copy.parent.iterdir()) == names


def test_nothing_is_overwritten_unless_told(home: Home, copy: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    arguments = ("model", "quantize", str(copy), "--type", "q8_0", "-o", str(target))
    done = home.run(*arguments)
    assert (done.code, "--force" in done.stderr, target.read_text()) == (exits.USAGE, True, "precious")
    assert home.run(*arguments, "--force").code == exits.DONE
    assert target.read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_model_never_overwrites_itself(home: Home, copy: Path, force: tuple[str, ...]) -> None:
    link = copy.with_name("link.gguf")
    link.symlink_to(copy)
    done = home.run("model", "quantize", str(copy), "--type", "q8_0", "-o", str(link), *force)
    assert (done.code, "is the model itself" in done.stderr) == (exits.USAGE, True)
    assert link.is_symlink()


def test_a_target_in_no_directory_is_refused(home: Home, copy: Path, tmp_path: Path) -> None:
    done = home.run("model", "quantize", str(copy), "--type", "q8_0", "-o", str(tmp_path / "no" / "x.gguf"))
    assert (done.code, "no directory" in done.stderr) == (exits.USAGE, True)


def test_a_disk_without_room_is_named_before_anything_is_written(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    with pytest.raises(ConfigError, match=r"1\.0 MiB free; q8_0 takes about"):
        model.quantize(str(copy), model.WeightKind.Q8_0)
    assert [path.name for path in copy.parent.iterdir()] == ["tiny.gguf"]


@pytest.mark.parametrize("kind", list(model.WeightKind))
def test_the_room_that_is_asked_for_is_never_too_little(copy: Path, tmp_path: Path, kind: model.WeightKind) -> None:
    target = tmp_path / "out.gguf"
    model.quantize(str(copy), kind, target)
    assert target.stat().st_size <= model._estimate(copy, kind) + 4096


def test_what_llama_cpp_refuses_leaves_nothing_behind(home: Home, copy: Path) -> None:
    data = copy.read_bytes()
    copy.write_bytes(data[: len(data) - 50_000])
    done = home.run("model", "quantize", str(copy), "--type", "q8_0")
    assert done.code == exits.USAGE
    assert "cannot" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in copy.parent.iterdir()] == ["tiny.gguf"]


def test_a_child_that_dies_halfway_leaves_nothing_behind(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class DiesHalfway(Child):
        def __init__(self, module: str, arguments: Sequence[str]) -> None:
            _, partial, *_ = arguments
            half = f"open({partial!r}, 'wb').write(b'GGUF'); raise SystemExit('half a model')"
            super().__init__("timeit", ("-n1", "-r1", half))

    monkeypatch.setattr(model, "Child", DiesHalfway)
    with pytest.raises(ModelError, match="half a model"):
        model.quantize(str(copy), model.WeightKind.Q8_0)
    assert [path.name for path in copy.parent.iterdir()] == ["tiny.gguf"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_quantisation_ends_with_its_child(home: Home, copy: Path, signum: int) -> None:
    with home.started("model", "quantize", str(copy), "--type", "q8_0") as process:
        wait_until(lambda: bool(descendants(process.pid)) or process.poll() is not None)
        family = descendants(process.pid)
        os.kill(process.pid, signum)
        process.wait(timeout=20)
        wait_until(lambda: all_gone(family))
    if signum == signal.SIGINT:
        assert not list(copy.parent.glob("*.part"))
