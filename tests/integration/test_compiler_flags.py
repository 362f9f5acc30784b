"""The flags that llama.cpp is compiled with keep the stores to what an instruction of AMX reads."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX", "c++")

# As in amxtileintrin.h of g++ 12: the operand says 8 bytes, the instruction reads 64. This one copies them, so that
# it runs without AMX.
SOURCE = """
#include <cstdio>
struct alignas(64) Tiles { unsigned char palette = 0, start = 0, unused[14] = {}; unsigned short bytes[16] = {};
                           unsigned char rows[16] = {}; };
static unsigned char seen[64];
__attribute__((noinline)) void configure() {
    Tiles tiles;
    tiles.palette = 1;
    for (int i = 0; i < 8; ++i) { tiles.bytes[i] = 64; tiles.rows[i] = 16; }
    asm volatile("lea %0, %%rsi\\n\\tlea %1, %%rdi\\n\\tmov $64, %%ecx\\n\\trep movsb"
                 : : "m"(*(const void **)&tiles), "m"(seen) : "rsi", "rdi", "rcx");
}
int main() { configure(); for (unsigned char byte : seen) printf("%02x", byte); }
"""
WANTED = (bytes([1]) + bytes(15) + bytes([64, 0]) * 8 + bytes(16) + bytes([16]) * 8 + bytes(8)).hex()


def _flags(compiler: str) -> list[str]:
    script = ROOT / "deploy" / "compiler-flags"
    shown = subprocess.run([script], env=os.environ | {"CXX": compiler}, capture_output=True, text=True, check=True)
    return shown.stdout.split()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is x86's")
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C++ compiler here")
def test_what_a_tile_configuration_reads_is_stored(tmp_path: Path) -> None:
    flags = _flags(COMPILER)
    if not flags:
        pytest.skip("the compiler is not g++: it has none of the flags, and not the fault")
    (tmp_path / "tiles.cpp").write_text(SOURCE)
    subprocess.run(
        [COMPILER, "-O3", "-march=x86-64-v3", *flags, "tiles.cpp", "-o", "tiles"], cwd=tmp_path, check=True
    )

    shown = subprocess.run([tmp_path / "tiles"], capture_output=True, text=True, check=True)

    assert shown.stdout == WANTED


def test_a_compiler_without_the_flags_gets_none(tmp_path: Path) -> None:
    clang = tmp_path / "clang++"
    clang.write_text("#!/bin/sh\nexit 1\n")
    clang.chmod(0o700)

    assert _flags(str(clang)) == []
