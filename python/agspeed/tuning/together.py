# SPDX-License-Identifier: Apache-2.0
"""Sets up ranks that tune together: the session's greeting to the other ranks, and its copy of the group's tuner."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from agspeed import native, version
from agspeed.backends import CompileOptions
from agspeed.config import Settings
from agspeed.distributed.greetings import Greeting
from agspeed.distributed.meetings import Meetings
from agspeed.distributed.reducers import why_left_alone
from agspeed.distributed.replicas import compare_replicas
from agspeed.distributed.sharded import Sharding
from agspeed.distributed.wrapper import Wrapper, ddp_around, is_awaited, sharded_by, wrapper_of
from agspeed.log import logger
from agspeed.native_files import extension_for
from agspeed.torch_compat import compiler_cache
from agspeed.torch_compat.ddp import is_in_join
from agspeed.torch_compat.modules import unsaved_buffers
from agspeed.tuning.company import num_ranks

_SETTINGS = ("mode", "backends", "dynamic", "numerics", "budget_s", "memory_slack", "disable")
_OPTIONS = (
    "find_unused_parameters",
    "static_graph",
    "gradient_as_bucket_view",
    "bucket_bytes_cap",
    "broadcast_buffers",
)


def are_known(target: object) -> bool:
    """Returns whether `surroundings` can find the wrapper during the current call of the target."""
    return not torch.distributed.is_available() or not is_awaited(getattr(target, "module", None))


def surroundings(
    target: object, settings: Settings, options: CompileOptions, on_news: Callable[[], None]
) -> tuple[Wrapper | None, CompileOptions, Meetings | None]:
    """Returns the environment of a target that is being called: its wrapper, the compile options for that wrapper, and
    the meetings with its other ranks, to which it sends a greeting. The wrapper and the meetings are None if there are
    none. on_news: see `Meetings`.
    """
    if not options.is_replicated and num_ranks() > 1:
        options = dataclasses.replace(options, is_replicated=True)
    module: nn.Module | None = getattr(target, "module", None)
    sharding: Sharding | None = getattr(target, "sharding", None)
    wrapper = sharded_by(sharding) if sharding is not None else wrapper_of(module)
    if wrapper is None:
        return None, options, None
    options = dataclasses.replace(options, stage_bytes=wrapper.stage_bytes)
    if module is None or wrapper.num_ranks == 1:
        return wrapper, options, None
    if sharding is not None:
        return wrapper, options, _meetings(module, sharding, module, settings, options, on_news)
    if (around := ddp_around(module)) is None:
        return wrapper, options, None
    compare_replicas(*around, module, settings)
    return wrapper, options, _meetings(module, *around, settings, options, on_news)


def _meetings(
    module: nn.Module,
    ddp: nn.parallel.DistributedDataParallel | Sharding,
    called: nn.Module,
    settings: Settings,
    options: CompileOptions,
    on_news: Callable[[], None],
) -> Meetings | None:
    if settings.mode == "deterministic" or is_in_join(ddp):
        return None  # deterministic ranks choose alike without measuring; in a join, ranks stop at different steps

    def make_tuner(names: list[str]) -> Any:
        from agspeed.tuning.tuner_config import group_config

        extension: Any = native.load()
        return extension.GroupTuner(group_config(settings, options), names)

    try:
        return Meetings(ddp, called, _greeting(module, ddp, settings), make_tuner, on_news)
    except Exception:  # private parts of torch may have changed
        logger.warning("the ranks tune alone: they cannot greet each other", exc_info=True)
        return None


def _greeting(module: nn.Module, ddp: nn.parallel.DistributedDataParallel | Sharding, settings: Settings) -> Greeting:
    rank = torch.distributed.get_rank(ddp.process_group)
    must_agree = {
        "agspeed": version.__version__,
        "native extension": "present" if extension_for(torch.__version__)[0] else "missing",
        "torch": torch.__version__,
        "model": _structure(module),
        **{f"setting {name}": repr(getattr(settings, name)) for name in _SETTINGS},
        **{f"wrapper option {name}": repr(getattr(ddp, name, None)) for name in _OPTIONS},
        "reason to leave its buckets alone": str(None if isinstance(ddp, Sharding) else why_left_alone(ddp)),
    }
    may_differ = {"threads": str(torch.get_num_threads()), "processor": _processor()}
    host = socket.gethostname()
    # A rank finds the code that another rank has compiled only if all of these agree.
    folders = (str(settings.cache_dir), tempfile.gettempdir(), *sorted(compiler_cache.chosen().items()))
    return Greeting(f"rank {rank} on {host}", must_agree, may_differ, " ".join([host, *map(str, folders)]))


def _structure(module: nn.Module) -> str:
    """Returns a model's class and a digest of the names, shapes and types of its parameters and buffers.

    It does not call `state_dict()`: under `fully_shard`, that frees unsharded parameters, and at this rank alone.
    """
    tensors = itertools.chain(module.named_parameters(), _saved_buffers(module))
    rows = [f"{name} {list(value.shape)} {value.dtype}" for name, value in tensors]
    digest = hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12]
    return f"{type(module).__name__} of {len(rows)} tensors, digest {digest}"


def _saved_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, part in module.named_modules():
        for name, value in part.named_buffers(recurse=False):
            if name not in unsaved_buffers(part):
                yield f"{prefix}.{name}", value


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return os.uname().machine
