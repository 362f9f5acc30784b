# swarmkv: `make help` lists what there is. Everything is installed into .venv, nothing elsewhere.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCKS := requirements/pip.txt requirements/dev.txt
READY := $(VENV)/.ready
PYTEST_ARGS ?=
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
LOCKED := $(PIP) --require-hashes

# Without these flags of g++, llama.cpp dies on CPUs with AMX (g++ 12 and older), and prefills slower on others (docs/decisions/0010-llama-cpp-is-seen-to-compute.md).
export CMAKE_ARGS := "-DCMAKE_CXX_FLAGS=$(shell deploy/compiler-flags)" $(CMAKE_ARGS)

.DEFAULT_GOAL := help
.PHONY: help setup demo test faults check format format-check lint types imports figures containers fuzz audit lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(READY)  ## make .venv with everything, locked by hash (llama.cpp is compiled once: minutes)

$(READY): $(LOCKS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "swarmkv needs Python 3.11 or newer; try make PYTHON=python3.12")'
	@command -v $${CXX:-c++} >/dev/null || { echo "swarmkv needs a C++ compiler to build llama.cpp (Debian: apt install g++)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV); the first time llama.cpp is compiled, which takes some minutes."
	@$(LOCKED) -r requirements/pip.txt
	@$(LOCKED) -r requirements/dev.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@{ $(COMPUTES); } 2>/dev/null || { $(REBUILD); $(COMPUTES); }
	@touch $@

# pip gives what it compiled before, be it for another CPU: seen to compute here, or compiled anew.
COMPUTES = $(BIN)/python -P -m swarmkv.cli.probe model demo >/dev/null
REBUILD = echo "The llama.cpp in pip's cache does not run here: compiling it for this machine."; \
	$(BIN)/python -m pip cache remove -q 'llama_cpp_python*'; \
	sed -n '/^llama-cpp-python==/,/[^\\]$$/p' requirements/dev.txt | $(LOCKED) --no-deps --force-reinstall -r /dev/stdin

demo: setup  ## prefill a sample document once and answer eight prompts from it
	@$(BIN)/swarmkv demo

# Half of the tests wait for processes, leases and browsers most of the time: files run in two processes, in their
# order, in which those of few and long tests come first.
TEST_PROCESSES ?= 2

test: setup  ## run all tests (TEST_PROCESSES=2)
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

faults: setup  ## kill, cut, fill and break for longer than the tests do, and measure the recovery (20 minutes)
	@FAULTS=long $(BIN)/python -m pytest tests/faults tests/integration/test_engine_answers.py $(PYTEST_ARGS)
	@$(BIN)/python -m tests.figures --only recovery

check: format-check lint types imports test  ## what CI runs: format, lint, types, import directions, tests

format: setup  ## reformat the sources
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

format-check: setup
	@$(BIN)/ruff format --check .

lint: setup  ## lint the sources
	@$(BIN)/ruff check .

types: setup  ## type-check the sources
	@$(BIN)/mypy

imports: setup  ## check that the parts only point down
	@$(BIN)/lint-imports

figures: setup  ## measure the figures of docs/performance.md with the real model (minutes)
	@$(BIN)/python -m tests.figures

containers:  ## run docker-compose.yml for real, and break it: podman, root, a Debian for tests (15 minutes)
	@deploy/test-compose

FUZZ_MINUTES ?= 10

fuzz: setup  ## feed broken bytes to everything that decodes them (FUZZ_MINUTES=10)
	@$(BIN)/python -m tests.fuzz --minutes $(FUZZ_MINUTES)

# Not a part of `check`: it asks a service for what became known since yesterday, so that the same commit would pass
# today and fail tomorrow, or without a network. --strict: a package that the service does not know is no success.
audit:  ## look for known vulnerabilities in what is locked (needs PyPI's or OSV's service)
	@test -x .venv-audit/bin/pip-audit || { $(PYTHON) -m venv .venv-audit && \
		.venv-audit/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements/audit.txt; }
	@.venv-audit/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off \
		-r requirements/dev.txt -r requirements/pip.txt

lock:  ## write the hashed requirement files anew (needs uv)
	@uv pip compile pyproject.toml --extra worker --extra embedded --extra demo --extra bench --extra hf --extra monitor --extra otel --group dev \
		--generate-hashes --universal --python-version 3.11 --no-annotate \
		--custom-compile-command "make lock" -q -o requirements/dev.txt
	@uv pip compile pyproject.toml --extra worker --extra hf --extra monitor --extra otel -c requirements/dev.txt \
		--generate-hashes --universal --python-version 3.11 --no-annotate \
		--custom-compile-command "make lock" -q -o requirements/image.txt
	@uv pip compile --group pyproject.toml:audit --generate-hashes --universal --python-version 3.11 --no-annotate \
		--custom-compile-command "make lock" -q -o requirements/audit.txt

clean:  ## remove .venv and caches
	@rm -rf $(VENV) .venv-audit .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
