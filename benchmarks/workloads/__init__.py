# SPDX-License-Identifier: Apache-2.0
"""The training workloads, one file each. A file here that defines `WORKLOAD` is found by its file name."""

import importlib.util
import itertools
import pkgutil
import sys
from pathlib import Path

from benchmarks.workloads.base import Workload

_HELPERS = {"base", "data", "layers"}
_numbers = itertools.count(1)


def names() -> list[str]:
    """Names of all workloads, without importing any of them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _HELPERS)


def load(name: str) -> Workload:
    """Returns the workload called `name`. A name "library/architecture" means one of benchmarks/architectures.

    Each call defines a workload's classes anew, so that sessions of one process share no code. Otherwise Dynamo would
    remember by code object what it gave up on, for ``torch.compile`` and agspeed alike. Raises ValueError if there is
    none.
    """
    if "/" in name:
        from benchmarks import architectures

        return architectures.load(name)
    if name not in names():
        raise ValueError(f"unknown workload {name!r}; known: {', '.join(names())}")
    path = Path(__path__[0]) / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}_{next(_numbers)}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    workload = module.WORKLOAD
    assert isinstance(workload, Workload) and workload.name == name
    return workload
