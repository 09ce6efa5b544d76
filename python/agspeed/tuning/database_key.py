# SPDX-License-Identifier: Apache-2.0
"""Makes the tuning database's key, which finds an earlier process's decision for the same model, data and machine.

The key is made before anything is captured, from the modules' code, the parameters and the shapes of the first batch.
It need not be perfect: a stored decision only suggests which candidate to compile first. That candidate is compiled
from a fresh capture and gated again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import platform
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from agspeed.backends import candidates
from agspeed.config import Settings
from agspeed.devices.accelerator import accelerator_of
from agspeed.devices.placement import CPU, tensors_in
from agspeed.distributed.wrapper import Wrapper
from agspeed.reporting.parts import Json


@dataclass(frozen=True)
class TrainingCall:
    """A training call that is about to happen. Do not store it: it holds the user's batch."""

    target: Callable[..., object]
    args: Any
    kwargs: Any
    wrapper: Wrapper | None = None
    """The wrapper that reduces the target's gradients, if there is one."""
    device: torch.device = CPU
    """The device on which the target computes."""

    def database_key(self, settings: Settings) -> Json:
        """Returns the key in the form that runtime/tune/store/database_format.md specifies."""
        tensors = list(tensors_in((self.args, self.kwargs)))
        owner, accelerator = self._owner(), accelerator_of(self.device)
        devices = {str(t.device) for t in tensors} | {
            str(p.device) for p in (owner.parameters() if owner is not None else ())
        }
        return {
            "graph": structure_hash(self.target),
            "shapes": [list(t.shape) for t in tensors],
            "dtypes": [str(t.dtype) for t in tensors],
            "device": ",".join(sorted(devices)) or "cpu",
            "threads": torch.get_num_threads(),
            "isa": isa(),
            "versions": _versions(),
            "settings": {
                "numerics": settings.numerics,
                "backends": list(settings.backends) if settings.backends is not None else None,
                "dynamic": settings.dynamic,
            },
            **({"group": dataclasses.asdict(self.wrapper)} if self.wrapper is not None else {}),
            **({"gpu": accelerator.identity()} if accelerator is not None else {}),
        }

    def num_modules(self) -> int:
        """Returns the number of modules in the target, as its rough size; 0 for functions."""
        owner = self._owner()
        return sum(1 for _ in owner.modules()) if owner is not None else 0

    def _owner(self) -> nn.Module | None:
        owner = getattr(self.target, "__self__", None)
        return owner if isinstance(owner, nn.Module) else None


@functools.cache
def isa() -> str:
    """Returns the processor capability that generated code depends on, for example "x86_64 AVX512"."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


@functools.cache
def _versions() -> dict[str, str]:
    from agspeed.version import __version__

    versions = {"agspeed": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for name, candidate in candidates().items():
        versions.update({f"{name}.{key}": value for key, value in candidate.fingerprint().items()})
    return versions


def structure_hash(target: Callable[..., object]) -> str:
    """Returns a hash of the modules' code and the parameters' shapes; for a step function, of its code."""
    digest = hashlib.sha256()
    owner = getattr(target, "__self__", None)
    if isinstance(owner, nn.Module):
        for name, module in owner.named_modules():
            digest.update(f"{name}:{type(module).__qualname__}:{module.extra_repr()}:{module.training}\n".encode())
            _add_code(digest, type(module).forward)
        for name, parameter in owner.named_parameters():
            digest.update(f"{name}:{tuple(parameter.shape)}:{parameter.dtype}:{parameter.requires_grad}\n".encode())
    else:
        _add_code(digest, target)
    return digest.hexdigest()[:32]


def _add_code(digest: hashlib._Hash, function: object) -> None:
    code = getattr(function, "__code__", None)
    if isinstance(code, types.CodeType):
        constants = [c for c in code.co_consts if not isinstance(c, types.CodeType)]
        digest.update(code.co_code + repr((code.co_names, constants)).encode())


def shape_class(args: Any, kwargs: Any) -> str:
    """Returns the shapes of a call's tensors as text. Only steps of the same class are compared with each other."""
    return ";".join("x".join(map(str, t.shape)) for t in tensors_in((args, kwargs)))
