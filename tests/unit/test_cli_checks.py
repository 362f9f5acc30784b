"""What `swarmkv doctor` concludes from what it sees."""

from __future__ import annotations

import errno
import importlib.util
import os
from pathlib import Path

import pytest

from swarmkv.cli import checks, probe
from swarmkv.protocol.settings import MIB, Settings
from swarmkv.snapshots import SnapshotStore

FLAGS = frozenset({"pni", "ssse3", "avx", "avx2", "f16c", "fma", "bmi2"})
BUILT = frozenset({"SSE3", "SSSE3", "AVX", "AVX2", "F16C", "FMA", "BMI2", "OPENMP"})


def test_features_are_read_from_the_line_of_llama_cpp() -> None:
    line = "CPU : SSE3 = 1 | AVX = 0 | AVX2 = 1 | OPENMP = 1"
    assert checks.parse_features(line) == {"SSE3", "AVX2", "OPENMP"}


def test_the_flags_of_a_cpu_are_read_from_cpuinfo(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\nprocessor\t: 1\nflags\t\t: other\n")
    assert checks.cpu_flags(path) == {"fpu", "avx2", "fma"}
    assert checks.cpu_flags(tmp_path / "absent") == frozenset()


def test_a_build_that_suits_the_cpu_is_fine() -> None:
    assert checks.compare_cpu(BUILT, FLAGS).verdict == "ok"


def test_a_build_for_a_better_cpu_is_a_problem_naming_what_is_lacking() -> None:
    finding = checks.compare_cpu(BUILT | {"AVX512"}, FLAGS)
    assert (finding.verdict, "AVX512" in finding.message) == ("problem", True)
    assert "Rebuild" in finding.remedy


def test_a_build_that_leaves_out_what_the_cpu_has_is_a_warning() -> None:
    finding = checks.compare_cpu(BUILT - {"AVX2"}, FLAGS)
    assert (finding.verdict, "AVX2" in finding.message) == ("warning", True)


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("avx512f", "AVX512"),
        ("avx512vbmi", "AVX512_VBMI"),
        ("avx512_vnni", "AVX512_VNNI"),
        ("avx512_bf16", "AVX512_BF16"),
        ("avx_vnni", "AVX_VNNI"),
        ("amx_int8", "AMX_INT8"),
        ("asimddp", "DOTPROD"),
        ("i8mm", "MATMUL_INT8"),
        ("sve", "SVE"),
    ],
)
def test_every_vector_unit_that_a_build_leaves_out_is_named(flag: str, name: str) -> None:
    finding = checks.compare_cpu(BUILT, FLAGS | {flag})
    assert (finding.verdict, finding.message) == ("warning", f"the build leaves out {name}")
    assert "Rebuild" in finding.remedy
    assert checks.compare_cpu(BUILT | {name}, FLAGS | {flag}).verdict == "ok"


def test_llama_cpp_knows_its_features_by_these_names() -> None:
    package = importlib.util.find_spec("llama_cpp")
    assert package is not None
    assert package.origin is not None
    libraries = (Path(package.origin).parent / "lib").glob("libggml-cpu*")
    code = b"".join(path.read_bytes() for path in libraries if not path.is_symlink())
    assert [name for name in checks._CPU_FLAGS if name.encode() + b"\0" not in code] == []


def test_a_cpu_that_says_nothing_gives_no_verdict() -> None:
    assert checks.compare_cpu(BUILT, frozenset()).verdict == "ok"


@pytest.mark.parametrize(
    ("info", "verdicts"),
    [
        ({"maxmemory_policy": "noeviction", "aof_enabled": 1}, ["ok", "ok"]),
        ({"maxmemory_policy": "allkeys-lru", "aof_enabled": 1}, ["problem", "ok"]),
        ({"maxmemory_policy": "noeviction", "aof_enabled": 0}, ["ok", "warning"]),
    ],
)
def test_a_redis_that_may_lose_work_is_told(info: dict[str, object], verdicts: list[str]) -> None:
    findings = [*checks._redis_memory(info), checks._redis_persistence(info)]
    assert [finding.verdict for finding in findings] == verdicts
    assert all(finding.remedy for finding in findings if finding.verdict != "ok")


def test_a_redis_that_is_too_old_is_a_problem() -> None:
    assert checks._redis_version({"redis_version": "5.0.7"}, "redis://h:1").verdict == "problem"
    found = checks._redis_version(
        {"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.0.0"}, "redis://u:pw@h:1"
    )
    assert found.verdict == "ok"
    assert "valkey 9.0.0" in found.message
    assert "pw" not in found.message


async def test_a_redis_that_is_down_is_a_problem_with_a_remedy(tmp_path: Path) -> None:
    settings = Settings(_env_file=None, redis_url=f"unix://{tmp_path}/nobody.sock")
    [finding] = await checks.check_redis(settings)
    assert (finding.verdict, bool(finding.remedy)) == ("problem", True)


def test_another_process_sees_the_store_and_a_store_too_small_is_a_warning(tmp_path: Path) -> None:
    settings = Settings(_env_file=None, store_dir=tmp_path / "store", store_budget_bytes=1 << 60)
    room, sharing = checks.check_store(settings)
    assert (room.verdict, sharing.verdict) == ("warning", "ok")


def test_a_store_that_another_process_does_not_see_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = probe.ask

    def ask(question: str, _directory: str, handshake: str) -> dict[str, object]:
        return elsewhere(question, str(tmp_path / "another"), handshake)

    monkeypatch.setattr(probe, "ask", ask)
    settings = Settings(_env_file=None, store_dir=tmp_path / "store", store_budget_bytes=MIB)
    assert checks.check_store(settings)[1].verdict == "problem"


def test_a_store_directory_that_cannot_be_made_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(_env_file=None, store_dir=tmp_path / "file" / "store")
    [finding] = checks.check_store(settings)
    assert finding.verdict == "problem"


def test_a_full_file_system_is_a_problem_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(store: SnapshotStore) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(SnapshotStore, "handshake", full)
    [finding] = checks.check_store(Settings(_env_file=None, store_dir=tmp_path / "store"))
    assert finding.message == f"{tmp_path / 'store'} cannot be written: No space left on device"
    assert "Make room there" in finding.remedy


def test_an_engine_that_kills_its_process_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(question: str, *arguments: str) -> dict[str, object]:
        raise probe.ProbeFailed("SIGILL.")

    monkeypatch.setattr(probe, "ask", dies)
    monkeypatch.setattr(checks, "_has_engine", lambda: True)
    [finding] = checks.check_engine()
    assert (finding.verdict, "SIGILL" in finding.message) == ("problem", True)


def test_a_probe_that_fails_says_how(tmp_path: Path) -> None:
    with pytest.raises(probe.ProbeFailed, match=r"exit 1: .*KeyError"):
        probe.ask("no such question")


def test_a_file_that_is_no_model_is_a_problem_naming_it(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"text")
    [finding] = checks.check_model(str(path))
    assert finding.verdict == "problem"
    assert str(path) in finding.message


def test_a_model_that_loads_is_described(tiny_bpe_chat_path: Path) -> None:
    [finding] = checks.check_model(str(tiny_bpe_chat_path))
    assert finding.verdict == "ok"
    assert "llama, 8,192 tokens, its own chat template" in finding.message


def test_a_llama_cpp_that_dies_over_the_model_is_a_problem_with_how_to_rebuild_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads every model, and dies at its first step: only another process can tell."""
    dying = tmp_path / "swarmkv_dies.py"
    dying.write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.setattr(probe, "_MODULE", "swarmkv_dies")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    (finding,) = checks.check_model(str(model))
    assert (finding.verdict, "SIGILL" in finding.message) == ("problem", True)
    assert "--no-binary" in finding.remedy
