# SPDX-License-Identifier: Apache-2.0
"""The training workloads, one file each. A file here that defines `WORKLOAD` is found by its file name."""

import importlib
import pkgutil

from benchmarks.workloads.base import Workload

_HELPERS = {"base", "data", "layers"}


def names() -> list[str]:
    """Names of all workloads, without importing any of them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _HELPERS)


def load(name: str) -> Workload:
    """The workload called `name`; "library/architecture" is one of benchmarks/architectures.

    Raises ValueError when there is none.
    """
    if "/" in name:
        from benchmarks import architectures

        return architectures.load(name)
    if name not in names():
        raise ValueError(f"unknown workload {name!r}; known: {', '.join(names())}")
    workload = importlib.import_module(f"{__name__}.{name}").WORKLOAD
    assert isinstance(workload, Workload) and workload.name == name
    return workload
