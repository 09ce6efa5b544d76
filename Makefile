# SPDX-License-Identifier: Apache-2.0
# The usual calls. `make setup` prepares the machine; every other target runs it first and finds nothing to do.
#
# TORCH=2.11 does the same with that torch, in an environment and a build folder of its own (.ci/bootstrap.sh). The
# wheel's targets take several: TORCH="2.11 2.15".
NEWEST_TORCH := $(shell tail -n 1 .ci/torch-versions.txt | cut -d' ' -f1)
ONE_TORCH := $(if $(filter 1,$(words $(TORCH))),$(filter-out $(NEWEST_TORCH),$(TORCH)))
BUILD := build/$(if $(ONE_TORCH),torch$(ONE_TORCH),dev)
python_with = .venv$(addprefix -torch,$(filter-out $(NEWEST_TORCH),$(1)))/bin/python
PY := $(call python_with,$(ONE_TORCH))
JOBS ?= $(shell nproc)
export PYTHONPATH := $(CURDIR)/python
export AGSPEED_BUILD_DIR := $(CURDIR)/$(BUILD)
FORMATTED_CPP := git ls-files -- '*.h' '*.cpp'

.PHONY: help setup setup-slurm build demo test test-fast test-smoke format lint docs wheel wheel-check gpu-archive clean

help:
	@echo "make setup      system packages, .venv, configured build (idempotent)"
	@echo "make setup-slurm  Slurm's daemons, for tests under a real srun"
	@echo "make build      the compiler, the runtime and the _native extension"
	@echo "make demo       four acts in some minutes: the gain, the second start, two ranks, the report"
	@echo "make test       every C++, lit and Python test; with TORCH=2.11 under that torch"
	@echo "make test-fast  the tests that finish within a minute"
	@echo "make test-smoke the main paths, for TORCH=2.12 and the like"
	@echo "make lint       layers, sizes, formatting, types, sorted lists"
	@echo "make format     formats C++ and Python in place"
	@echo "make docs       build/docs: the documentation site; broken links fail"
	@echo "make wheel      dist/*.whl with LLVM and MLIR inside, for the installed torch or for TORCH=\"2.11 2.15\""
	@echo "make wheel-check  the wheel, tried under the oldest and the newest of its torches"
	@echo "make gpu-archive  dist/gpu-check.tar.gz: what benchmarks.gpu_check needs on a machine with a GPU"
	@echo "make clean      removes build products, keeps .venv"

setup:
	@TORCH=$(ONE_TORCH) .ci/bootstrap.sh

setup-slurm: setup
	@TORCH=$(ONE_TORCH) .ci/bootstrap.sh .ci/apt-packages-slurm.txt

build: setup
	@cmake --build $(BUILD) --parallel $(JOBS)

demo: build
	@$(PY) -m benchmarks.demo

test: build
	@$(PY) .ci/run_tests.py

test-fast: build
	@$(PY) .ci/run_tests.py --fast

# The main paths under one torch, without the C++ tests: what must work on every release.
test-smoke: setup
	@cmake --build $(BUILD) --parallel $(JOBS) --target _native ag_nccl_net
	@$(PY) .ci/run_tests.py --smoke

lint: setup
	@$(PY) -m pytest -q tests/lint

format: setup
	@$(FORMATTED_CPP) | xargs -r .venv/bin/clang-format -i
	@$(PY) .ci/generate_settings.py
	@.venv/bin/ruff format --quiet python tests benchmarks .ci
	@.venv/bin/ruff check --quiet --fix python tests benchmarks .ci

# The search works if a server delivers the site: python -m http.server --directory build/docs
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --config-file python/docs/mkdocs.yml

wheel: setup
	@$(PY) .ci/build_wheel.py dist $(TORCH)
	@ls -l dist/*.whl

# Under the oldest and the newest torch of the wheel.
wheel-check: wheel $(addprefix wheel-check-,$(firstword $(sort $(TORCH))) $(lastword $(sort $(TORCH) $(if $(TORCH),,$(NEWEST_TORCH)))))

wheel-check-%: wheel
	@TORCH=$* .ci/bootstrap.sh
	@$(call python_with,$*) .ci/check_wheel.py dist

# The machine with a GPU that the archive is tried on has torch 2.11.
gpu-archive: setup
	@$(PY) .ci/build_wheel.py dist 2.11
	@$(PY) .ci/gpu_archive.py dist

clean:
	@rm -rf build dist python/agspeed/_native*.so
