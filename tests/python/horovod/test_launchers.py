# SPDX-License-Identifier: Apache-2.0
"""A rank finds its number, its place on the host and the others from the variables of each launcher."""

from __future__ import annotations

import re

import pytest

from agspeed.errors import UserError
from agspeed.horovod import environment

_TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1", "ROLE_RANK": "5",
    "MASTER_ADDR": "node0", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
_HOROVOD = {
    "HOROVOD_RANK": "5", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "4",
    "HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
}  # fmt: skip
_OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_RANK": "5", "PMIX_NAMESPACE": "job-1", "MASTER_ADDR": "node0",
}  # fmt: skip
_INTEL_MPI = {
    "PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4", "PMI_JOBID": "7",
    "MASTER_ADDR": "node0",
}  # fmt: skip
_MVAPICH2 = {
    "MV2_COMM_WORLD_RANK": "5", "MV2_COMM_WORLD_SIZE": "8", "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
}  # fmt: skip
_SRUN = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_NODELIST": "node[0-1]", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0",
}  # fmt: skip
_PYTORCHJOB = {  # in the container: training-operator's own, and no torchrun
    "PYTHONUNBUFFERED": "1", "MASTER_PORT": "23456", "PET_MASTER_PORT": "23456", "MASTER_ADDR": "train-master-0",
    "PET_MASTER_ADDR": "train-master-0", "WORLD_SIZE": "4", "RANK": "2", "PET_NODE_RANK": "2",
    "PET_NPROC_PER_NODE": "1", "PET_NNODES": "4",
}  # fmt: skip
_TRAINJOB = {  # in the container: Trainer's own, and no torchrun
    "PET_NNODES": "4", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "2", "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29500",
}  # fmt: skip
_SEVERAL_PER_POD = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "1", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("variables", "place", "host", "port"),
    [
        (_TORCHRUN, (5, 8, 1, 4, 1, 2), "node0", 29500),
        (_HOROVOD, (5, 8, 1, 4, 1, 2), "node0", 29500),
        (_OPEN_MPI, (5, 8, 1, 4, 1, 2), "node0", None),
        (_INTEL_MPI, (5, 8, 1, 4, 1, 2), "node0", None),
        (_MVAPICH2, (5, 8, 1, 4, 1, 2), "node0", 29500),
        (_SRUN, (5, 8, 1, 4, 1, 2), "node0", None),
        (_SRUN | {"PMIX_RANK": "5"}, (5, 8, 1, 4, 1, 2), "node0", None),
        (_PYTORCHJOB, (2, 4, 0, 1, 2, 4), "train-master-0", 23456),
        (_PYTORCHJOB | {"PET_NPROC_PER_NODE": "auto"}, (2, 4, 0, 1, 2, 4), "train-master-0", 23456),
        (_TRAINJOB, (2, 4, 0, 1, 2, 4), "train-node-0-0.train", 29500),
        # torchrun in a pod, in a task of srun, and in a process of mpirun.
        (_PYTORCHJOB | _SEVERAL_PER_POD | _TORCHRUN, (5, 8, 1, 4, 1, 2), "node0", 29500),
        (_TRAINJOB | _SEVERAL_PER_POD | _TORCHRUN, (5, 8, 1, 4, 1, 2), "node0", 29500),
        (_SRUN | {"SLURM_PROCID": "1"} | _TORCHRUN, (5, 8, 1, 4, 1, 2), "node0", 29500),
        (_OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "3"} | _TORCHRUN, (5, 8, 1, 4, 1, 2), "node0", 29500),
    ],
)
def test_a_rank_finds_its_place_and_the_others(
    variables: dict[str, str], place: tuple[int, ...], host: str, port: int | None
) -> None:
    found = environment.placement(variables)
    where = (found.rank, found.size, found.local_rank, found.local_size, found.cross_rank, found.cross_size)
    assert where == place
    address = environment.rendezvous_address(found, variables)
    assert address[0] == host and (address[1] == port if port else 20000 <= address[1] < 32000)


@pytest.mark.parametrize(
    "variables",
    [
        _OPEN_MPI | {"MASTER_PORT": "29500"},
        _INTEL_MPI,
        _SRUN,
        _SRUN | {"MASTER_PORT": "29500"},
        _SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4,3,1", "SLURM_PROCID": "7", "SLURM_LOCALID": "0", "SLURM_NODEID": "2"},
        _TRAINJOB,
    ],
    ids=str,
)
def test_torch_finds_the_same_rank_in_torchruns_variables(variables: dict[str, str]) -> None:
    where = environment.placement(variables)
    found = environment.torchruns_variables(variables)
    assert (found["RANK"], found["WORLD_SIZE"]) == (str(where.rank), str(where.size))
    assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == (str(where.local_rank), str(where.local_size))
    address = (found["MASTER_ADDR"], int(found["MASTER_PORT"]))
    assert address == environment.rendezvous_address(where, variables)
    assert found["MASTER_PORT"] == variables.get("MASTER_PORT", found["MASTER_PORT"])
    assert environment.placement(variables | found) == where, "Horovod's API finds the same place later"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        _TORCHRUN,
        _PYTORCHJOB,
        _SRUN | {"RANK": "0", "WORLD_SIZE": "2"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"},  # a batch script
    ],
    ids=str,
)
def test_variables_that_torch_reads_itself_stay(variables: dict[str, str]) -> None:
    assert environment.torchruns_variables(variables) == {}


def test_ranks_of_mpirun_in_a_job_of_slurm_need_an_address() -> None:
    """mpirun starts its own ranks on the first host, and a step of one task on each other host starts the rest."""
    ranks = _OPEN_MPI | {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[0-1]"}
    step = {
        "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "node1", "SLURM_STEP_ID": "0",
    }  # fmt: skip
    both = (ranks | {"OMPI_COMM_WORLD_RANK": "0"}, ranks | step)
    assert len({environment.rendezvous_address(environment.placement(each), each) for each in both}) == 1
    for each in both:
        del each["MASTER_ADDR"]
        with pytest.raises(UserError, match=r"rank \d of 8 .* set MASTER_ADDR"):
            environment.rendezvous_address(environment.placement(each), each)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            _OPEN_MPI | {"RANK": "0", "WORLD_SIZE": "8"},
            "RANK=0 and OMPI_COMM_WORLD_RANK=5, both of 8, contradict each other: unset RANK and WORLD_SIZE",
        ),
        (_TORCHRUN | {"LOCAL_RANK": "4"}, "LOCAL_RANK=4 and LOCAL_WORLD_SIZE=4: a local rank is less than"),
        (_TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE=9 and WORLD_SIZE=8: a host has 1 to all"),
        (_TORCHRUN | {"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0 and WORLD_SIZE=8: a host has 1 to all"),
        (_SRUN | {"SLURM_STEP_NUM_TASKS": "6"}, "do not fit SLURM_STEP_TASKS_PER_NODE='4(x2)'"),
        (_PYTORCHJOB | _SEVERAL_PER_POD, "PET_NPROC_PER_NODE=4 is set and LOCAL_RANK is not"),
        (_TRAINJOB | {"PET_NPROC_PER_NODE": "4"}, "PET_NPROC_PER_NODE=4 is set and LOCAL_RANK is not"),
        (_TRAINJOB | {"PET_NNODES": "1:4"}, "PET_NODE_RANK='2' and PET_NNODES='1:4' do not say which rank this is"),
        (_TRAINJOB | {"PET_NODE_RANK": "4"}, "PET_NODE_RANK='4' and PET_NNODES='4' do not say which rank this is"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK=1 is set, and no variable says how many ranks there are"),
    ],
)
def test_variables_that_contradict_each_other_are_one_sentence(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)) as raised:
        environment.placement(variables)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("variables", [{"MV2_COMM_WORLD_RANK": "0"}, {"WORLD_SIZE": "2"}, {"PMI_SIZE": "2"}])
def test_a_rank_without_its_size_is_an_error_that_names_both(variables: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match=r"\w+ is set and \w+ is not: a launcher sets both"):
        environment.placement(variables)
