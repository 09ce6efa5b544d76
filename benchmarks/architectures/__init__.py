# SPDX-License-Identifier: Apache-2.0
"""Published architectures of transformers, timm and torchvision in small configurations, with random weights.

They are recipes like the workloads (`benchmarks/workloads`). A workload is chosen for the one thing that it stresses,
the architectures are chosen for breadth. Every recipe is one function of `transformers_models.py`, `timm_models.py` or
`torchvision_models.py`. All train on real data that ships inside packages.
"""

from collections.abc import Callable

from benchmarks.architectures import timm_models, torchvision_models, transformers_models
from benchmarks.workloads.base import Training, Workload

_SOURCES = {"transformers": transformers_models, "timm": timm_models, "torchvision": torchvision_models}


def names() -> list[str]:
    """Names of all architectures, as "library/architecture"."""
    return [f"{library}/{name}" for library, module in _SOURCES.items() for name in module.RECIPES]


def load(name: str) -> Workload:
    """The architecture called `name`. Raises ValueError when there is none."""
    library, _, architecture = name.partition("/")
    recipes: dict[str, Callable[[], Training]] = _SOURCES[library].RECIPES if library in _SOURCES else {}
    if architecture not in recipes:
        raise ValueError(f"unknown architecture {name!r}; known: {', '.join(names())}")
    make = recipes[architecture]
    stresses = (make.__doc__ or "").strip().rstrip(".")
    return Workload(name, stresses, seed=len(name), make=make)
