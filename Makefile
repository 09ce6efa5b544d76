# SPDX-License-Identifier: Apache-2.0
# The usual calls. `make setup` prepares the machine; every other target runs it first and finds nothing to do.
#
# TORCH=2.11 does the same with that torch, in an environment and a build folder of its own (.ci/bootstrap.sh). The
# wheel's targets take several: TORCH="2.11 2.15".
NEWEST_TORCH := $(shell tail -n 1 .ci/torch-versions.txt | cut -d' ' -f1)
ALL_TORCHES := $(shell grep -v '^\#' .ci/torch-versions.txt | cut -d' ' -f1)
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' python/agspeed/version.py)
ONE_TORCH := $(if $(filter 1,$(words $(TORCH))),$(filter-out $(NEWEST_TORCH),$(TORCH)))
BUILD := build/$(if $(ONE_TORCH),torch$(ONE_TORCH),dev)
python_with = .venv$(addprefix -torch,$(filter-out $(NEWEST_TORCH),$(1)))/bin/python
PY := $(call python_with,$(ONE_TORCH))
RAY_VENV := $(PY:.venv%/bin/python=.venv-ray%)
JOBS ?= $(shell nproc)
export PYTHONPATH := $(CURDIR)/python
export AGSPEED_BUILD_DIR := $(CURDIR)/$(BUILD)
FORMATTED_CPP := git ls-files -- '*.h' '*.cpp'

.PHONY: help setup setup-cluster setup-ray kube-testbed build build-product demo test test-fast test-smoke \
        test-cluster test-container test-kube test-ray format lint docs pictures results sdist wheel wheel-check release gpu-archive clean

help:
	@echo "make setup      system packages, .venv, configured build (idempotent)"
	@echo "make setup-cluster  sshd, Slurm and Open MPI, for make test-cluster"
	@echo "make kube-testbed  builds a kube-apiserver, for make test-kube, within some minutes"
	@echo "make setup-ray  Ray, in .venv-ray, for make test-ray"
	@echo "make build      the compiler, the runtime, the _native extension and the C++ tests"
	@echo "make build-product  the same without the tests"
	@echo "make demo       five acts in some minutes: gain, second start, two ranks, a killed process, the report"
	@echo "make test       every C++, lit and Python test; with TORCH=2.11 under that torch"
	@echo "make test-fast  the tests that finish within a minute"
	@echo "make test-smoke the main paths, for TORCH=2.12 and the like"
	@echo "make test-cluster  the tests with a real sshd, Slurm and Open MPI; with AG_TEST_THOROUGH=1 more of them"
	@echo "make test-container  the image of agspeed cluster render container, built by podman within some minutes"
	@echo "make test-kube  the manifests of agspeed cluster render, judged by a real kube-apiserver"
	@echo "make test-ray   the tests under a real Ray"
	@echo "make lint       layers, sizes, formatting, types, sorted lists"
	@echo "make format     formats C++ and Python in place"
	@echo "make docs       build/docs: the documentation site; broken links fail"
	@echo "make pictures   python/docs/pages/pictures: a report as pictures; needs chromium"
	@echo "make results    benchmarks/RESULTS*.md, from the kept results in benchmarks/results"
	@echo "make wheel      dist/*.whl with LLVM and MLIR inside, for the installed torch or for TORCH=\"2.11 2.15\""
	@echo "make wheel-check  the wheel, tried under the oldest and the newest of its torches"
	@echo "make sdist      dist/*.tar.gz: the sources"
	@echo "make release    the sdist and the wheel for all releases of torch, checked by twine; uploads nothing"
	@echo "make gpu-archive  dist/gpu-check.tar.gz: what benchmarks.gpu_check needs on a machine with a GPU"
	@echo "make clean      removes build products, keeps .venv"

setup:
	@TORCH=$(ONE_TORCH) .ci/bootstrap.sh

setup-cluster: setup
	@TORCH=$(ONE_TORCH) .ci/bootstrap.sh .ci/apt-packages-cluster.txt

# Only the tests of manifests need it. The script has nothing to do if the server is there.
kube-testbed: setup
	@TORCH=$(ONE_TORCH) .ci/bootstrap.sh .ci/apt-packages-kube.txt
	@JOBS=$(JOBS) .ci/kube_testbed.sh

setup-ray: $(RAY_VENV)/.agspeed-requirements

# Ray has an environment of its own, because only its tests need it. It sees the packages of the usual one.
$(RAY_VENV)/.agspeed-requirements: .ci/requirements-ray.txt | setup
	@$(PY) -m venv $(RAY_VENV)
	@$(PY) -c 'import sys, sysconfig; print(sysconfig.get_path("purelib"), file=open(sys.argv[1], "w"))' \
	  "$$($(RAY_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/usual.pth"
	@$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@cp $< $@

build: setup
	@cmake --build $(BUILD) --parallel $(JOBS)

# What Python loads: the extension with its libraries, and the NCCL plug-in.
build-product: setup
	@cmake --build $(BUILD) --parallel $(JOBS) --target _native ag_nccl_net

demo: build-product
	@$(PY) -m benchmarks.demo

test: build
	@$(PY) .ci/run_tests.py

test-fast: build
	@$(PY) .ci/run_tests.py --fast

# The main paths under one torch, without the C++ tests: what must work on every release.
test-smoke: build-product
	@$(PY) .ci/run_tests.py --smoke

# One after another, because each test has hosts of its own.
test-cluster: build-product setup-cluster
	@$(PY) -m pytest -q -m cluster tests/python

# The image is removed afterwards. It needs 3 GB of disk meanwhile.
test-container: setup
	@TORCH=$(ONE_TORCH) .ci/bootstrap.sh .ci/apt-packages-container.txt
	@$(PY) -m pytest -q -m container tests/python/cluster/container

# One process, because all tests use one server. They need neither the extension nor a cluster.
test-kube: kube-testbed
	@$(PY) -m pytest -q -m kube tests/python/cluster/kube

test-ray: build-product setup-ray
	@$(RAY_VENV)/bin/python -m pytest -q tests/python/horovod/ray

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

# `python -m tests.python.docs.render_report --take FILE` replaces the report.
pictures: setup
	@$(PY) -m tests.python.docs.render_report

results: setup
	@$(PY) -m benchmarks.results

sdist: setup
	@$(PY) -c "from scikit_build_core.build import build_sdist; build_sdist('dist')"

wheel: setup
	@$(PY) .ci/build_wheel.py dist $(TORCH)
	@ls -l dist/*.whl

# Under the oldest and the newest torch of the wheel.
wheel-check: wheel $(addprefix wheel-check-,$(firstword $(sort $(TORCH))) $(lastword $(sort $(TORCH) $(if $(TORCH),,$(NEWEST_TORCH)))))

wheel-check-%: wheel
	@TORCH=$* .ci/bootstrap.sh
	@$(call python_with,$*) .ci/check_wheel.py dist

# TORCH="2.11 2.15" builds a wheel for fewer releases of torch.
release: TORCH = $(ALL_TORCHES)
release: sdist wheel .venv-release/.agspeed-requirements
	@.venv-release/bin/python -m twine check --strict dist/agspeed-$(VERSION).tar.gz dist/agspeed-$(VERSION)-*.whl

# Twine has an environment of its own, because only a release needs it.
.venv-release/.agspeed-requirements: .ci/requirements-release.txt | setup
	@$(PY) -m venv .venv-release
	@.venv-release/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@cp $< $@

# The machine with a GPU that the archive is tried on has torch 2.11.
gpu-archive: setup
	@$(PY) .ci/build_wheel.py dist 2.11
	@$(PY) .ci/gpu_archive.py dist

clean:
	@rm -rf build dist python/agspeed/_native*.so
