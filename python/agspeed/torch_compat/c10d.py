# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's core: how groups are created, their backends and stores, and torch's own transports.

Only ranks use it: a torch that was built without torch.distributed has none of it. Without this part, ranks do not
tune, and agspeed cannot replace Gloo. All needs exist since torch 2.11. Threads: as for torch.distributed itself.
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


# --- the backends and the store of a group ----------------------------------------------------------------------------


def backends_of(group: Any) -> list[Any]:
    """The backends of a group, one for each device type; an empty list for anything that is not a group of torch."""
    return [group._get_backend(device) for device in getattr(group, "_device_types", ())]


def backend_for(group: Any, device: Any) -> Any:
    """The group's backend for tensors on a device. Raises: RuntimeError if it has none."""
    return group._get_backend(device)


def num_collectives(group: Any, device: Any) -> int:
    """How many collectives the group's backend for a device has begun."""
    return int(group._get_backend(device)._get_sequence_number_for_group())


def timeout_of(group: Any) -> datetime.timedelta:
    """The timeout of the group's collectives; torch's default if the backend does not reveal it."""
    import torch

    for device in ("cpu", "cuda"):
        try:
            timeout: datetime.timedelta = group._get_backend(torch.device(device)).options._timeout
            return timeout
        except Exception:  # no such device, or a backend that does not reveal its timeout
            continue
    return torch.distributed.constants.default_pg_timeout


def store_of(group: Any) -> Any:
    """The store that a group was created with."""
    from torch.distributed import distributed_c10d as core

    return core._world.pg_map[group][1]


def default_store() -> Any:
    """The store of the default group."""
    from torch.distributed import distributed_c10d as core

    return core._get_default_store()


def room_in(store: Any, name: str) -> Any:
    """A part of a store with its own name space of keys."""
    from torch._C._distributed_c10d import PrefixStore

    return PrefixStore(name, store)


# --- transports without a group ---------------------------------------------------------------------------------------


def gloo(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """Creates a Gloo backend that belongs to no group. Raises: ImportError if this torch has no Gloo."""
    from torch._C._distributed_c10d import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timeout)


def backend_options(store: Any, rank: int, ranks: list[int], timeout: datetime.timedelta, name: str) -> Any:
    """Creates the options that torch passes to a backend when it creates a group."""
    from torch._C._distributed_c10d import _DistributedBackendOptions

    options: Any = _DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, rank, len(ranks)
    options.timeout, options.group_id = timeout, name
    options.global_ranks_in_group = ranks
    return options


def all_gather(backend: Any, output: Any, mine: Any, timeout: datetime.timedelta) -> None:
    """Gathers the tensors of all ranks into `output`, in the order of the ranks; blocks until it is done."""
    from torch._C._distributed_c10d import AllgatherOptions

    options = AllgatherOptions()
    options.timeout = timeout
    backend._allgather_base(output, mine, options).wait()


# --- creating groups --------------------------------------------------------------------------------------------------


def maker() -> Callable[..., Any] | None:
    """The function that creates every group, or None if this torch creates groups in another way."""
    from torch.distributed import distributed_c10d as core

    return getattr(core, "_new_process_group_helper", None)


def set_maker(make: Callable[..., Any]) -> None:
    """Makes torch create every group with `make`."""
    from torch.distributed import distributed_c10d as core

    core._new_process_group_helper = make


def enter(group: Any, backend: Any, store: Any) -> None:
    """Changes torch's records to say that a group was created with this backend and store."""
    from torch.distributed import distributed_c10d as core

    core._world.pg_map[group] = (backend, store)
    core._world.pg_backend_config[group] = str(core.BackendConfig(backend))


def backends_by_device(backend: Any) -> dict[str, Any]:
    """The backends by device for a text like "cpu:gloo,cuda:nccl" or "gloo". Raises: torch's errors for other texts."""
    from torch.distributed import distributed_c10d as core

    return dict(core.BackendConfig(backend).get_device_backend_map())


def backend_named(name: str) -> Any:
    """Converts a backend's name to torch's type for such names."""
    from torch.distributed import distributed_c10d as core

    return core.Backend(name)


# --- functions that serve torch's own backends only -------------------------------------------------------------------


def wrap_timeout_setter(wrap: Callable[[Any], Any]) -> None:
    """Replaces `_set_pg_timeout` by `wrap` of it, before torch 2.14. There the function reaches only Gloo and NCCL."""
    from torch.distributed import distributed_c10d as core

    if minor() < (2, 14) and hasattr(core, "_set_pg_timeout"):
        core._set_pg_timeout = wrap(core._set_pg_timeout)


def wrap_coalescing(wrap: Callable[[Any], Any]) -> None:
    """Replaces the coalescing manager by `wrap` of it. torch's own does not end its scope if an exception is raised."""
    from torch import distributed
    from torch.distributed import distributed_c10d as core

    if hasattr(core, "_coalescing_manager"):
        core._coalescing_manager = wrap(core._coalescing_manager)
        private: Any = distributed
        private._coalescing_manager = core._coalescing_manager


def end_coalescing(group: Any, device: Any) -> None:
    """Ends the scope that the coalescing manager has opened for a group (None: the default group).

    device: the device whose backend also ends it; None: only torch's records change. Started operations continue.
    """
    from torch.distributed import distributed_c10d as core

    whole = group or core._get_default_group()
    core._world.pg_coalesce_state.pop(whole, None)
    if device:
        whole._end_coalescing(device)
