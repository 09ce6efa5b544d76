# SPDX-License-Identifier: Apache-2.0
"""RayExecutor refuses what it cannot start, before it starts anything, and places ranks. These tests need no Ray."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from agspeed.errors import UserError
from agspeed.horovod.ray import RayExecutor
from agspeed.horovod.ray.worker import Seat
from agspeed.horovod.ray.workers import rank_variables

_SETTINGS = RayExecutor.create_settings()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"min_workers": 1, "max_workers": 3}, "RayExecutor(min_workers, max_workers): jobs on Ray keep their number"),
        ({"num_workers": 2, "reset_limit": 1}, "RayExecutor(reset_limit): jobs on Ray keep their number"),
        ({}, "RayExecutor(num_workers=None, num_hosts=None): pass one of them"),
        ({"num_workers": 2, "num_hosts": 1}, "RayExecutor(num_workers=2, num_hosts=1): pass one of them"),
        ({"num_workers": 0}, "RayExecutor(num_workers=0): write a number, 1 or more"),
        ({"num_hosts": 1, "num_workers_per_host": 1.5}, "RayExecutor(num_workers_per_host=1.5): write a number"),
        ({"num_workers": 2, "cpus_per_worker": 0}, "RayExecutor(cpus_per_worker=0): write a number, more than 0"),
        ({"num_workers": 2, "gpus_per_worker": 1}, "gpus_per_worker is set, but use_gpu is False"),
        ({"num_workers": 2, "use_gpu": True, "gpus_per_worker": -1}, "RayExecutor(gpus_per_worker=-1): write a number"),
        ({"settings": {"timeout_s": 3}, "num_workers": 2}, "RayExecutor(settings=dict): pass the result of"),
    ],
)
def test_jobs_that_cannot_be_started_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)) as raised:
        RayExecutor(**({"settings": _SETTINGS} | options))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"timeout_s": 0}, "create_settings(timeout_s=0): write a number of seconds"),
        ({"placement_group_timeout_s": "9"}, "create_settings(placement_group_timeout_s='9'): write a number"),
        ({"nics": "eth0"}, "create_settings(nics='eth0'): write a set of names, as in {'eth0'}"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        RayExecutor.create_settings(**options)


def test_an_executor_without_ray_says_how_to_install_it() -> None:
    program = (
        "import sys; sys.modules['ray'] = None\n"
        "from agspeed.horovod.ray import RayExecutor\n"
        "RayExecutor(RayExecutor.create_settings(), num_workers=2)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("agspeed.errors.UserError: agspeed.horovod.ray needs Ray")
    assert last.endswith("pip install 'agspeed[ray]'.")


def test_horovod_ray_is_found_under_its_own_name() -> None:
    program = (
        "import agspeed.horovod; agspeed.horovod.install_alias()\n"
        "from horovod.ray import RayExecutor; print(RayExecutor.__module__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "agspeed.horovod.ray.executor\n", done.stderr


def test_ranks_of_two_nodes_know_their_places_and_the_gpus_of_their_node() -> None:
    seats = [
        Seat("a", "10.0.0.1", 100, 7000, ("1",)),
        Seat("a", "10.0.0.1", 101, 7001, ("0",)),
        Seat("b", "10.0.0.2", 100, 7002, ("3",)),
    ]
    ranks = rank_variables(seats)
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    places = [tuple(int(each[f"HOROVOD_{name}"]) for name in names) for each in ranks]
    assert places == [(0, 3, 0, 2, 0, 2), (1, 3, 1, 2, 0, 1), (2, 3, 0, 1, 1, 2)]
    assert {(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in ranks} == {("10.0.0.1", "7000")}
    assert [each["CUDA_VISIBLE_DEVICES"] for each in ranks] == ["1,0", "1,0", "3"]


def test_ranks_without_gpus_keep_the_devices_that_they_see() -> None:
    (alone,) = rank_variables([Seat("a", "10.0.0.1", 100, 7000, ())])
    assert "CUDA_VISIBLE_DEVICES" not in alone
