# SPDX-License-Identifier: Apache-2.0
"""Functions that ranks run in `test_reconfigure.py`, each in a group without members."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Collection

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d

from agspeed.distributed import counters, flight_record

_LONG = datetime.timedelta(seconds=60)
_SHORT = datetime.timedelta(seconds=1)


def _begin(folder: str) -> dist.Store:
    """Makes the default group anew, without members. Returns: its store."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    store = dist.FileStore(os.path.join(folder, "store"))
    dist.init_process_group("agspeed", store=store, rank=rank, world_size=size, timeout=_LONG, enable_reconfigure=True)
    return store


def _handles(store: dist.Store, size: int, name: str) -> list[str]:
    """Returns the handles of all processes. They all wait here for each other."""
    store.set(f"{name}/{_number()}", dist._get_reconfigure_handle())
    return [store.get(f"{name}/{number}").decode() for number in range(size)]


def _number() -> int:
    """Returns the number of this process, which stays."""
    return int(os.environ["TEST_RANK"])


def _regroup(uuid: int, handles: Collection[str], timeout: datetime.timedelta = _LONG) -> None:
    dist._reconfigure(uuid, handles, timeout=timeout).wait()


def _sum() -> float:
    """Returns the sum of 1, 2, 4 ... of the processes in the group."""
    value = torch.full((100,), 2.0 ** _number())
    dist.all_reduce(value)
    return float(value[0])


def _error(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def sums_of_groups(folder: str) -> list[tuple[int, int, float]]:
    """Returns rank, size and sum in some groups, one after another."""
    os.environ["TEST_RANK"], size = str(dist.get_rank()), dist.get_world_size()
    store, found = _begin(folder), []
    handles = _handles(store, size, "first")

    def note() -> None:
        found.append((dist.get_rank(), dist.get_world_size(), _sum()))

    _regroup(10 + _number(), handles[_number() : _number() + 1])
    note()
    _regroup(1, handles[::-1])
    note()
    _handles(store, size, "second")
    if _number() > 0:
        _regroup(2, handles[1:])
        note()
    _handles(store, size, "third")
    _regroup(3, set(handles))
    note()
    assert len(flight_record()["groups"]) == 1
    assert counters()["world_size"] == size
    return found


def part_of_a_new_group(folder: str) -> list[float]:
    """Returns the sums in a part, made by `new_group`, of the first group and of the second."""
    os.environ["TEST_RANK"], size = str(dist.get_rank()), dist.get_world_size()
    store, found = _begin(folder), []
    for uuid in (1, 2):
        _regroup(uuid, _handles(store, size, str(uuid)))
        part = dist.new_group([0, 1])
        value = torch.ones(10)
        if dist.get_rank() < 2:
            dist.all_reduce(value, group=part)
        found.append(float(value[0]))
    return found


def errors(folder: str) -> dict[str, str]:
    """Returns errors by what is wrong. The group is usable after each one."""
    os.environ["TEST_RANK"], size = str(dist.get_rank()), dist.get_world_size()
    found = {
        "fixed": _error(dist._get_reconfigure_handle),
        "fixed reconfigured": _error(lambda: _regroup(1, ["a"])),
        "fixed supports": str(dist._supports_reconfigure()),
    }
    store = _begin(folder)
    found["supports"] = str(dist._supports_reconfigure())
    found["without members"] = _error(_sum)
    found["record without members"] = _error(flight_record)
    handles = _handles(store, size, "first")
    _regroup(1, handles)
    found["none"] = _error(lambda: _regroup(2, []))
    found["repeated"] = _error(lambda: _regroup(2, [*handles, handles[0]]))
    found["others'"] = _error(lambda: _regroup(2, [each for each in handles if each != handles[_number()]]))
    found["gloo's"] = _error(lambda: _regroup(2, [*handles, "gloo:0:-1:host:1"]))
    found["used"] = _error(lambda: _regroup(1, handles))
    found["used otherwise"] = _error(lambda: _regroup(1, handles[::-1]))
    options = distributed_c10d.ReconfigureOptions()
    options.uuid, options.handles, options.hints = 2, handles, {"color": "red"}
    found["hint"] = _error(lambda: dist.group.WORLD.reconfigure(options))  # type: ignore[union-attr]
    assert _sum() == 2.0**size - 1
    return found


def a_member_does_not_come(folder: str) -> dict[str, str]:
    """Returns the errors at the ranks that wait for the last one, and the sum of the next group."""
    os.environ["TEST_RANK"], size = str(dist.get_rank()), dist.get_world_size()
    store = _begin(folder)
    handles = _handles(store, size, "first")
    found = {}
    if _number() < size - 1:
        found["missing"] = _error(lambda: _regroup(1, handles, _SHORT))
        found["afterwards"] = _error(_sum)
    _handles(store, size, "second")
    _regroup(2, handles)
    return found | {"sum": str(_sum())}


def after_abort(folder: str) -> dict[str, str]:
    """Returns what a group says that one of its ranks has aborted, and the sum of the next group."""
    os.environ["TEST_RANK"], size = str(dist.get_rank()), dist.get_world_size()
    store = _begin(folder)
    handles = _handles(store, size, "first")
    _regroup(1, handles)
    assert _sum() == 2.0**size - 1
    _handles(store, size, "second")
    dist.get_backend_impl(dist.group.WORLD, torch.device("cpu")).abort()
    found = {"aborted": _error(_sum)}
    _handles(store, size, "third")
    _regroup(2, handles)
    return found | {"sum": str(_sum())}
