# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's core: how groups are made, what stands behind one, and the transports of torch's own.

For ranks only: a torch that was built without torch.distributed has none of it. Without this part ranks do not tune,
and agspeed does not take Gloo's place. All of it is there since torch 2.11. Threads: as torch.distributed's own.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from agspeed.torch_compat.part import Part
from agspeed.torch_compat.release import minor

_CORE = "torch.distributed.distributed_c10d"
PART = Part(
    "c10d",
    __name__,
    needs=(
        "torch._C._distributed_c10d.AllgatherOptions.timeout",
        "torch._C._distributed_c10d.Backend._allgather_base",
        "torch._C._distributed_c10d.Backend._get_sequence_number_for_group",
        "torch._C._distributed_c10d.PrefixStore",
        "torch._C._distributed_c10d.ProcessGroup._device_types",
        "torch._C._distributed_c10d.ProcessGroup._end_coalescing",
        "torch._C._distributed_c10d.ProcessGroup._get_backend",
        "torch._C._distributed_c10d.ProcessGroupGloo",
        "torch._C._distributed_c10d._DistributedBackendOptions.global_ranks_in_group",
        f"{_CORE}.Backend",
        f"{_CORE}.BackendConfig.get_device_backend_map",
        f"{_CORE}._coalescing_manager",
        f"{_CORE}._get_default_group",
        f"{_CORE}._get_default_store",
        f"{_CORE}._new_process_group_helper",
        f"{_CORE}._set_pg_timeout",
        f"{_CORE}._world.pg_backend_config",
        f"{_CORE}._world.pg_coalesce_state.pop",
        f"{_CORE}._world.pg_map",
        "torch.distributed._coalescing_manager",
    ),
    lost="nothing is tuned on several ranks, models train eagerly there",
)


# --- what stands behind a group ---------------------------------------------------------------------------------------


def backends_of(group: Any) -> list[Any]:
    """The backends of a group, by device; none of what is no group of torch's."""
    return [group._get_backend(device) for device in getattr(group, "_device_types", ())]


def backend_for(group: Any, device: Any) -> Any:
    """The group's backend for tensors on a device. Raises: RuntimeError where it has none."""
    return group._get_backend(device)


def num_collectives(group: Any, device: Any) -> int:
    """How many collectives the group's backend for a device has begun."""
    return int(group._get_backend(device)._get_sequence_number_for_group())


def timeout_of(group: Any) -> datetime.timedelta:
    """The timeout of the group's collectives; torch's default where the backend gives none."""
    import torch

    for device in ("cpu", "cuda"):
        try:
            return group._get_backend(torch.device(device)).options._timeout  # type: ignore[no-any-return]
        except Exception:  # no such device, or a backend that keeps its time to itself
            continue
    return torch.distributed.constants.default_pg_timeout


def store_of(group: Any) -> Any:
    """The store that a group was made with."""
    from torch.distributed import distributed_c10d as core

    return core._world.pg_map[group][1]


def default_store() -> Any:
    """The store of the default group."""
    from torch.distributed import distributed_c10d as core

    return core._get_default_store()


def room_in(store: Any, name: str) -> Any:
    """A part of a store, in which keys are its own."""
    from torch._C._distributed_c10d import PrefixStore

    return PrefixStore(name, store)


# --- transports beside torch's groups ---------------------------------------------------------------------------------


def gloo(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """A backend of Gloo's that belongs to no group. Raises: ImportError where this torch has no Gloo."""
    from torch._C._distributed_c10d import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timeout)


def backend_options(store: Any, rank: int, ranks: list[int], timeout: datetime.timedelta, name: str) -> Any:
    """The options that torch hands to a backend that makes a group."""
    from torch._C._distributed_c10d import _DistributedBackendOptions

    options: Any = _DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, rank, len(ranks)
    options.timeout, options.group_id = timeout, name
    options.global_ranks_in_group = ranks
    return options


def all_gather(backend: Any, output: Any, mine: Any, timeout: datetime.timedelta) -> None:
    """Puts the tensors of all ranks into `output`, one behind the other; returns when it is done."""
    from torch._C._distributed_c10d import AllgatherOptions

    options = AllgatherOptions()
    options.timeout = timeout
    backend._allgather_base(output, mine, options).wait()


# --- how groups are made ----------------------------------------------------------------------------------------------


def maker() -> Callable[..., Any] | None:
    """The one function that makes every group, or None where torch makes them in another way."""
    from torch.distributed import distributed_c10d as core

    return getattr(core, "_new_process_group_helper", None)


def set_maker(make: Callable[..., Any]) -> None:
    """Has `make` make every group."""
    from torch.distributed import distributed_c10d as core

    core._new_process_group_helper = make


def enter(group: Any, backend: Any, store: Any) -> None:
    """Has torch's books say that a group was made with that backend."""
    from torch.distributed import distributed_c10d as core

    core._world.pg_map[group] = (backend, store)
    core._world.pg_backend_config[group] = str(core.BackendConfig(backend))


def backends_by_device(backend: Any) -> dict[str, Any]:
    """What "cpu:gloo,cuda:nccl" or "gloo" stands for on this machine. Raises: what torch raises for others."""
    from torch.distributed import distributed_c10d as core

    return dict(core.BackendConfig(backend).get_device_backend_map())


def backend_named(name: str) -> Any:
    """A backend's name as torch's type for those."""
    from torch.distributed import distributed_c10d as core

    return core.Backend(name)


# --- functions that know torch's own backends only --------------------------------------------------------------------


def wrap_timeout_setter(wrap: Callable[[Any], Any]) -> None:
    """Puts `wrap` of `_set_pg_timeout` in its place, where it reaches Gloo and NCCL alone: before torch 2.14."""
    from torch.distributed import distributed_c10d as core

    if minor() < (2, 14) and hasattr(core, "_set_pg_timeout"):
        core._set_pg_timeout = wrap(core._set_pg_timeout)


def wrap_coalescing(wrap: Callable[[Any], Any]) -> None:
    """Puts `wrap` of the coalescing manager in its place. It ends what it began only where nothing is raised in it."""
    from torch import distributed
    from torch.distributed import distributed_c10d as core

    if hasattr(core, "_coalescing_manager"):
        core._coalescing_manager = wrap(core._coalescing_manager)
        distributed._coalescing_manager = core._coalescing_manager  # type: ignore[attr-defined]


def end_coalescing(group: Any, device: Any) -> None:
    """Ends what the coalescing manager has begun for a group (None: the default one) and a device (None: in torch's
    books alone). What was started goes on by itself."""
    from torch.distributed import distributed_c10d as core

    whole = group or core._get_default_group()
    core._world.pg_coalesce_state.pop(whole, None)
    if device:
        whole._end_coalescing(device)
