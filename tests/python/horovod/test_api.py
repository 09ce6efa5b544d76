# SPDX-License-Identifier: Apache-2.0
"""Names, order of arguments and defaults are the same as in Horovod's torch API."""

from __future__ import annotations

import gc
import inspect
import pickle
import re
import weakref

import pytest
import torch

import agspeed.horovod
import agspeed.horovod.torch as hvd
from agspeed.errors import UserError
from agspeed.horovod import environment
from agspeed.horovod.torch import mpi_ops
from agspeed.horovod.torch.quick import quick_synchronize
from agspeed.transfer import objects

_REDUCE = "op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=GLOBAL"
_SCATTER = "op=0, process_set=GLOBAL, prescale_factor=1.0, postscale_factor=1.0"
SIGNATURES = {
    "add_process_set": "process_set",
    "allgather": "tensor, name=None, process_set=GLOBAL",
    "allgather_async": "tensor, name=None, process_set=GLOBAL",
    "allgather_object": "obj, name=None, process_set=GLOBAL",
    "allreduce": f"tensor, average=None, name=None, compression=NONE, {_REDUCE}",
    "allreduce_": f"tensor, average=None, name=None, {_REDUCE}",
    "allreduce_async": f"tensor, average=None, name=None, {_REDUCE}",
    "allreduce_async_": f"tensor, average=None, name=None, {_REDUCE}",
    "alltoall": "tensor, splits=None, name=None, process_set=GLOBAL",
    "alltoall_async": "tensor, splits=None, name=None, process_set=GLOBAL",
    "barrier": "process_set=GLOBAL",
    "broadcast": "tensor, root_rank, name=None, process_set=GLOBAL",
    "broadcast_": "tensor, root_rank, name=None, process_set=GLOBAL",
    "broadcast_async": "tensor, root_rank, name=None, process_set=GLOBAL",
    "broadcast_async_": "tensor, root_rank, name=None, process_set=GLOBAL",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=GLOBAL",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_parameters": "params, root_rank",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=NONE, backward_passes_per_step=1, op=0, "
    "gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, process_set=GLOBAL",
    "grouped_allgather": "tensors, name=None, process_set=GLOBAL",
    "grouped_allgather_async": "tensors, name=None, process_set=GLOBAL",
    "grouped_allreduce": f"tensors, average=None, name=None, compression=NONE, {_REDUCE}",
    "grouped_allreduce_": f"tensors, average=None, name=None, {_REDUCE}",
    "grouped_allreduce_async": f"tensors, average=None, name=None, {_REDUCE}",
    "grouped_allreduce_async_": f"tensors, average=None, name=None, {_REDUCE}",
    "grouped_reducescatter": f"tensors, name=None, compression=NONE, {_SCATTER}",
    "grouped_reducescatter_async": f"tensors, name=None, {_SCATTER}",
    "init": "comm=None, process_sets=None",
    "join": "device=-1",
    "poll": "handle",
    "ProcessSet": "ranks_or_comm",
    "reducescatter": f"tensor, name=None, compression=NONE, {_SCATTER}",
    "reducescatter_async": f"tensor, name=None, {_SCATTER}",
    "remove_process_set": "process_set",
    "shutdown": "",
    "sparse_allreduce_async": "tensor, name, op, process_set=GLOBAL",
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True",
    "synchronize": "handle",
}
FACTS = [
    # keep-sorted
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "size",
]
NAMES = ["Adasum", "Average", "Compression", "HorovodInternalError", "HostsUpdatedInterrupt", "Max", "Min", "Product"]


def written(function: object) -> str:
    """Returns a callable's parameters as text: "tensor, name=None, ..."."""
    words = []
    for parameter in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        default = parameter.default
        text = {hvd.global_process_set: "GLOBAL", hvd.Compression.none: "NONE"}.get(default) or repr(default)
        words.append(parameter.name if default is inspect.Parameter.empty else f"{parameter.name}={text}")
    return ", ".join(words)


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_horovods(name: str) -> None:
    assert written(getattr(hvd, name)) == SIGNATURES[name]


def test_run_takes_horovods_arguments() -> None:
    assert written(agspeed.horovod.run).startswith("func, args=(), kwargs=None, num_proc=1, min_num_proc=None")
    with pytest.raises(UserError, match="every rank looks the function up by its name"):
        agspeed.horovod.run(lambda: None)


@pytest.mark.parametrize("name", ["allreduce_async_", "synchronize"])
def test_functions_that_are_quick_calls_look_like_functions(name: str) -> None:
    function = getattr(hvd, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert (function.__name__, function.__doc__) == (name, inspect.unwrap(function).__doc__)
    with pytest.raises(TypeError, match=f"{name}\\(\\) missing 1 required positional argument"):
        function()


def test_a_quick_call_that_only_its_function_knows_is_collected() -> None:
    def function(handle: int) -> None:
        raise AssertionError

    function.__dict__["call"] = quick_synchronize(function)
    reference = weakref.ref(function)
    del function
    gc.collect()
    assert reference() is None


def test_every_name_is_there_and_no_other_is_public() -> None:
    assert set(hvd.__all__) == {*SIGNATURES, *FACTS, *NAMES, "Sum", "elastic", "global_process_set"}
    assert all(written(getattr(hvd, name)) == "" for name in FACTS)
    assert callable(mpi_ops.is_homogeneous)


# --- the environment --------------------------------------------------------------------------------------------------


def srun(rank: int, size: int, local_rank_of_node: str, tasks_per_node: str) -> dict[str, str]:
    """Returns the environment variables that srun sets for a task."""
    local_rank, node = local_rank_of_node.split(" of ")
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_LOCALID": local_rank,
        "SLURM_NODEID": node,
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
        "SLURM_STEP_NODELIST": "gnode[08-09,20]",
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
    }


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1, 0, 1, 0, 1)),
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "RANK": "9", "WORLD_SIZE": "10"}, (3, 4, 3, 4, 0, 1)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, (5, 8, 1, 4, 1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2, 1, 2, 0, 1)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2, 0, 2, 0, 1)),
        (srun(3, 4, "1 of 1", "2(x2)"), (3, 4, 1, 2, 1, 2)),
        (srun(5, 6, "0 of 2", "3,2,1"), (5, 6, 0, 1, 2, 3)),
        (srun(2, 6, "2 of 0", "3,2,1"), (2, 6, 2, 3, 0, 1)),
        (srun(5, 6, "0 of 2", "3,2,1") | {"PMI_RANK": "5", "PMI_SIZE": "6"}, (5, 6, 0, 1, 2, 3)),
        (srun(1, 2, "0 of 1", "1(x2)") | {"PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4, 3, 4, 0, 1)),  # a step of mpiexec
        # The environment of a batch script.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, (0, 1, 0, 1, 0, 1)),
    ],
    ids=str,
)
def test_any_launchers_variables_say_which_rank_this_is(variables: dict[str, str], expected: tuple[int, ...]) -> None:
    found = environment.placement(variables)
    where = (found.rank, found.size, found.local_rank, found.local_size, found.cross_rank, found.cross_size)
    assert where == expected


def test_half_a_pair_of_variables_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="HOROVOD_RANK is set and HOROVOD_SIZE is not"):
        environment.placement({"HOROVOD_RANK": "0"})


def test_ranks_of_one_job_meet_where_no_launcher_says_where() -> None:
    where = environment.Placement(0, 2, 0, 2, 0, 1)
    first = environment.rendezvous_address(where, {"PMIX_NAMESPACE": "job-1"})
    assert first == environment.rendezvous_address(where, {"PMIX_NAMESPACE": "job-1"})
    assert first[0] == "127.0.0.1" and 20000 <= first[1] < 32000
    with pytest.raises(UserError, match="set MASTER_ADDR"):
        environment.rendezvous_address(where, {})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gnode[08-11,20],login", "gnode08"),
        ("login,gnode[1-2]", "login"),
        ("rack[1-2]n[03-04]", "rack1n03"),
        ("one", "one"),
    ],
)
def test_ranks_of_srun_meet_at_the_first_of_their_hosts(nodes: str, first: str) -> None:
    addresses = set()
    for rank, task in enumerate(("0 of 0", "0 of 1", "1 of 1")):
        variables = srun(rank, 3, task, "1,2") | {"SLURM_STEP_NODELIST": nodes}
        where = environment.placement(variables)
        addresses.add(environment.rendezvous_address(where, variables))
        assert environment.rendezvous_address(where, variables | {"MASTER_ADDR": "head"})[0] == "head"
    assert [host for host, _ in addresses] == [first]


def test_ranks_that_srun_placed_by_a_list_need_an_address() -> None:
    variables = srun(1, 2, "0 of 1", "1,1") | {"SLURM_DISTRIBUTION": "arbitrary"}
    with pytest.raises(UserError, match=r"rank 1 of 2 .* set MASTER_ADDR"):
        environment.rendezvous_address(environment.placement(variables), variables)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "2(y2)"}, "SLURM_STEP_TASKS_PER_NODE='2(y2)' is not valid"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, "do not fit SLURM_STEP_TASKS_PER_NODE='2'"),
        ({"SLURM_NODEID": "first"}, "SLURM_NODEID='first' is not valid"),
    ],
)
def test_what_srun_does_not_say_is_an_error(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        environment.placement(srun(3, 4, "1 of 1", "2(x2)") | changed)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"HOROVOD_FUSION_THRESHOLD": "64M"}, "HOROVOD_FUSION_THRESHOLD='64M' is not valid"),
        ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "soon"}, "HOROVOD_STALL_CHECK_TIME_SECONDS='soon' is not valid"),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5"}, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=5 must exceed"),
        ({"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_RATIO": "2"}, "LIGHT_TOPK_RATIO='2' is not valid"),
        ({"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "1M"}, "LIGHT_TOPK_THRESHOLD='1M' is not valid"),
    ],
)
def test_settings_that_make_no_sense_say_so(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        environment.options(variables)
        environment.top_k(variables)


def test_variables_that_change_nothing_are_named_with_the_reason() -> None:
    assert (
        environment.without_effect({"HOROVOD_CYCLE_TIME": "0", "HOROVOD_TIMELINE": "DYNAMIC", "HOROVOD_AUTOTUNE": "1"})
        == ""
    )
    variables = {"HOROVOD_CYCLE_TIME": "5", "PERSEUS_ALLREDUCE_DTYPE": "1", "LIGHT_TOPK_RATIO": "0.01"}
    assert environment.without_effect(variables) == (
        "set, but without effect: HOROVOD_CYCLE_TIME (ready operations start at once); PERSEUS_ALLREDUCE_DTYPE "
        "(gradients keep their bits unless compression= says otherwise); LIGHT_TOPK_RATIO (LIGHT_TOPK_ALLREDUCE=1 "
        "switches top-k on)."
    )
    asked = {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_RATIO": "0.01", "LIGHT_INTRA_SIZE": "8"}
    assert environment.without_effect(asked) == ""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"LIGHT_TOPK_RATIO": "0.1"}, None),
        ({"LIGHT_TOPK_ALLREDUCE": "0"}, None),
        ({"LIGHT_TOPK_ALLREDUCE": "1"}, (0.01, 262144)),
        ({"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_RATIO": "0.05", "LIGHT_TOPK_THRESHOLD": "4000"}, (0.05, 1000)),
    ],
)
def test_variables_of_lightcc_ask_for_top_k(variables: dict[str, str], expected: tuple[float, int] | None) -> None:
    assert environment.top_k(variables) == expected


def test_lightcc_s_ranks_on_a_host_count_if_the_launcher_does_not_say() -> None:
    variables = {"RANK": "5", "WORLD_SIZE": "8", "LIGHT_INTRA_SIZE": "4"}
    found = environment.placement(variables)
    assert (found.local_rank, found.local_size, found.cross_rank, found.cross_size) == (1, 4, 1, 2)
    assert environment.placement({**variables, "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}).local_size == 2
    assert environment.placement({**variables, "LIGHT_INTRA_SIZE": "16"}).local_size == 8


# --- objects ----------------------------------------------------------------------------------------------------------

OBJECT = {
    "none": None,
    3: [True, False, 0, -1, 1 << 80, -(1 << 70), 2.5, float("inf")],
    (1, "é"): b"\x00\xff",
    "nested": {"tuple": (torch.Size([2, 3]), torch.bfloat16, [])},
    "sets": [set(), {"a", (1, 2)}, frozenset({3})],
}


def test_objects_come_back_as_they_were() -> None:
    assert objects.decode(objects.encode(OBJECT)) == OBJECT


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)], ids=str)
def test_tensors_come_back_as_they_were(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(3, 2)[: shape[0] if shape else 3].to(dtype)
    tensor = tensor if shape == (3, 2) else torch.ones(shape, dtype=dtype)
    torch.testing.assert_close(objects.decode(objects.encode(tensor)), tensor, rtol=0, atol=0)


@pytest.mark.parametrize(
    "value", [object(), 1j, print, [lambda: 0], type], ids=["object", "complex", "function", "list of lambda", "type"]
)
def test_other_types_are_named(value: object) -> None:
    with pytest.raises(UserError, match="cannot be sent to other ranks"):
        objects.encode(value)


def test_no_bytes_make_more_than_they_hold_or_run_anything() -> None:
    seed = 5
    data = objects.encode({**OBJECT, "tensor": torch.ones(3)})
    generator = torch.Generator().manual_seed(seed)
    for cut in range(len(data)):
        with pytest.raises(UserError):
            objects.decode(data[:cut])
    for round_ in range(500):
        changed = bytearray(data)
        for at in torch.randint(0, len(data), (3,), generator=generator).tolist():
            changed[at] = int(torch.randint(0, 256, (1,), generator=generator))
        try:
            objects.decode(bytes(changed))
        except (UserError, UnicodeDecodeError, TypeError) as error:
            assert "MemoryError" not in repr(error), f"seed {seed}, round {round_}"
