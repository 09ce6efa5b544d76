# SPDX-License-Identifier: Apache-2.0
# The usual calls. `make setup` prepares the machine; every other target runs it first and finds nothing to do.
PY := .venv/bin/python
BUILD := build/dev
JOBS ?= $(shell nproc)
export PYTHONPATH := $(CURDIR)/python
FORMATTED_CPP := git ls-files -- '*.h' '*.cpp'

.PHONY: help setup setup-slurm build demo test test-fast format lint wheel wheel-check gpu-archive clean

help:
	@echo "make setup      system packages, .venv, configured build (idempotent)"
	@echo "make setup-slurm  Slurm's daemons, for tests under a real srun"
	@echo "make build      the compiler, the runtime and the _native extension"
	@echo "make demo       four acts in some minutes: the gain, the second start, two ranks, the report"
	@echo "make test       every C++, lit and Python test"
	@echo "make test-fast  the tests that finish within a minute"
	@echo "make lint       layers, sizes, formatting, types, sorted lists"
	@echo "make format     formats C++ and Python in place"
	@echo "make wheel      dist/*.whl with LLVM and MLIR inside; make wheel-check tries it out"
	@echo "make gpu-archive  dist/gpu-check.tar.gz: what benchmarks.gpu_check needs on a machine with a GPU"
	@echo "make clean      removes build products, keeps .venv"

setup:
	@.ci/bootstrap.sh

setup-slurm: setup
	@.ci/bootstrap.sh .ci/apt-packages-slurm.txt

build: setup
	@cmake --build $(BUILD) --parallel $(JOBS)

demo: build
	@$(PY) -m benchmarks.demo

test: build
	@$(PY) .ci/run_tests.py

test-fast: build
	@$(PY) .ci/run_tests.py --fast

lint: setup
	@$(PY) -m pytest -q tests/lint

format: setup
	@$(FORMATTED_CPP) | xargs -r .venv/bin/clang-format -i
	@$(PY) .ci/generate_settings.py
	@.venv/bin/ruff format --quiet python tests benchmarks .ci
	@.venv/bin/ruff check --quiet --fix python tests benchmarks .ci

wheel: setup
	@$(PY) -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .
	@ls -l dist/*.whl

wheel-check: wheel
	@$(PY) .ci/check_wheel.py dist

gpu-archive: wheel
	@$(PY) .ci/gpu_archive.py dist

clean:
	@rm -rf build dist python/agspeed/_native*.so
