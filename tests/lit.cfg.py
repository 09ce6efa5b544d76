# SPDX-License-Identifier: Apache-2.0
# lit: every *.mlir, *.ag and *.ag-cluster file below tests/ that has a RUN line. `make test` runs them all. To run one
# folder: .venv/bin/lit -v tests/passes. The tools come from build/dev, or from the folder in AGSPEED_BUILD_DIR.
# ruff: noqa: F821  (lit defines `config`)
import os
import re

import lit.formats

config.name = "agspeed"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".ag", ".ag-cluster", ".mlir"]
config.excludes = ["Inputs"]
config.test_source_root = os.path.dirname(__file__)

root = os.path.dirname(config.test_source_root)
build = os.path.abspath(os.environ.get("AGSPEED_BUILD_DIR", os.path.join(root, "build", "dev")))
config.test_exec_root = os.path.join(build, "tests")

try:
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as cache:
        found = re.search(r"^LLVM_DIR:\w+=(.*?)(?:/lib)?/cmake(?:/llvm)?$", cache.read(), re.M)
except OSError:
    lit_config.fatal(f"{build} is not configured: run make build")
if found is None:
    lit_config.fatal(f"{build}/CMakeCache.txt names no LLVM_DIR: run cmake --preset dev again")

tools = [os.path.join(build, "compiler", "tools"), os.path.join(found.group(1), "bin")]
config.environment["PATH"] = os.pathsep.join([*tools, os.environ.get("PATH", "")])
