# SPDX-License-Identifier: Apache-2.0
"""Sets up ranks that tune together: this rank's announcement to the others, and its copy of the group's tuner."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import socket
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from agspeed import native, version
from agspeed.backends import CompileOptions
from agspeed.config import Settings
from agspeed.distributed.announcements import Announcement
from agspeed.distributed.rank_group import RankGroup, group_around
from agspeed.distributed.rank_sync import RankSync
from agspeed.distributed.replicas import compare_replicas
from agspeed.distributed.sharded import Sharding
from agspeed.distributed.stragglers import watch_ranks
from agspeed.distributed.wrapper import Wrapper, ddp_around, is_awaited, sharded_by, wrapper_of
from agspeed.log import logger
from agspeed.native_files import extension_for
from agspeed.reporting import environment
from agspeed.torch_compat import compiler_cache
from agspeed.torch_compat.ddp import is_in_join
from agspeed.torch_compat.modules import unsaved_buffers
from agspeed.tuning.company import num_ranks

if TYPE_CHECKING:
    from agspeed._native import GroupTuner

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
    target: object,
    settings: Settings,
    options: CompileOptions,
    on_news: Callable[[], None],
    is_tuning: Callable[[], bool],
) -> tuple[Wrapper | None, CompileOptions, RankSync | None]:
    """Returns the environment of a target that is being called: its wrapper, the compile options for that wrapper, and
    the `RankSync` with its other ranks, to which it announces this rank. Wrapper and `RankSync` are None if there is no
    other rank. on_news: see `RankSync`. is_tuning: a method, see `stragglers.watch_ranks`.
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
        return wrapper, options, _rank_sync(module, sharding, module, settings, options, on_news)
    if (around := ddp_around(module)) is None:
        return wrapper, options, None
    ddp, called = around
    group = group_around(ddp)
    compare_replicas(group, called, module, settings)
    if is_in_join(ddp):
        return wrapper, options, None  # ranks stop at different steps
    if called is ddp:
        watch_ranks(group, ddp, module, settings, is_tuning)
    return wrapper, options, _rank_sync(module, group, called, settings, options, on_news)


def _rank_sync(
    module: nn.Module,
    group: RankGroup,
    called: nn.Module,
    settings: Settings,
    options: CompileOptions,
    on_news: Callable[[], None],
) -> RankSync | None:
    if settings.mode == "deterministic":
        return None  # such ranks choose alike without measuring

    def make_tuner(names: list[str]) -> GroupTuner:
        from agspeed.tuning.tuner_config import group_config

        extension = native.load()
        assert extension is not None  # the ranks have compared that, too
        tuner: GroupTuner = extension.GroupTuner(group_config(settings, options), names)
        return tuner

    try:
        return RankSync(group, called, _announcement(module, group, settings), make_tuner, on_news)
    except Exception:  # private parts of torch may have changed
        logger.warning("each rank tunes alone: this rank could not announce itself", exc_info=True)
        return None


def _announcement(module: nn.Module, group: RankGroup, settings: Settings) -> Announcement:
    must_agree = {
        "agspeed": version.__version__,
        "native extension": "present" if extension_for(torch.__version__)[0] else "missing",
        "torch": torch.__version__,
        "model": _structure(module),
        **{f"setting {name}": repr(getattr(settings, name)) for name in _SETTINGS},
        **{f"wrapper option {name}": repr(group.option(name)) for name in _OPTIONS},
        "reason to leave its buckets alone": str(group.why_layouts_stay()),
    }
    may_differ = {"threads": str(torch.get_num_threads()), "processor": environment.cpu_name()}
    host = socket.gethostname()
    # A rank finds the code that another rank has compiled only if all of these agree.
    folders = (str(settings.cache_dir), tempfile.gettempdir(), *sorted(compiler_cache.chosen().items()))
    return Announcement(f"rank {group.rank} on {host}", must_agree, may_differ, " ".join([host, *map(str, folders)]))


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
