# SPDX-License-Identifier: Apache-2.0
"""RayExecutor runs functions at ranks that are actors of a real Ray, and names a worker that dies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from agspeed import native
from agspeed.errors import UserError
from agspeed.horovod.ray import RayExecutor
from tests.python.horovod.ray import cluster, programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(cluster.WHY_NONE is not None, reason=cluster.WHY_NONE or "-"),
    pytest.mark.skipif(native.load() is None, reason=native.why_missing() or "-"),
]


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[None]:
    with cluster.cluster():
        yield


def executor(**options: Any) -> RayExecutor:
    settings = RayExecutor.create_settings(timeout_s=cluster.START_S, nics={"lo"})
    return RayExecutor(settings, **({"num_workers": 2, "cpus_per_worker": 0.5} | options))


@pytest.fixture(scope="module")
def started(running: None) -> Iterator[RayExecutor]:
    made = executor(use_gpu=True)
    made.start(programs.Counter, [10], {"step": 5}, {"OF_THE_USER": 7})
    yield made
    made.shutdown()


def test_ranks_train_to_the_weights_of_one_process(started: RayExecutor) -> None:
    expected = programs.trained_alone()
    for _ in range(2):  # a worker takes part in one job after another
        for found in started.run(programs.trained_by_horovod):
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))


def test_ranks_know_their_place_and_get_variables_and_all_gpus_of_the_node(started: RayExecutor) -> None:
    names = ("OF_THE_USER", "CUDA_VISIBLE_DEVICES", "AGSPEED_SOCKET_IFNAME")
    first, second = started.run(programs.place, names)
    assert (first["place"], second["place"]) == ((0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1))
    assert [first[name] for name in names] == [second[name] for name in names]
    assert first["OF_THE_USER"] == "7" and first["AGSPEED_SOCKET_IFNAME"] == "=lo"
    assert sorted(first["CUDA_VISIBLE_DEVICES"].split(",")) == ["0", "1"]


def test_connections_have_a_key_that_no_variable_contains(started: RayExecutor) -> None:
    first, second = started.run(programs.place, ["AGSPEED_JOB_KEY", "AGSPEED_JOB_KEY_FILE"])
    for each in (first, second):
        assert each["AGSPEED_JOB_KEY"] is None
        assert re.fullmatch(r"/proc/self/fd/[0-9]+", each["AGSPEED_JOB_KEY_FILE"])


def test_functions_get_the_object_that_start_has_made(started: RayExecutor) -> None:
    assert started.execute(lambda counter: counter.value) == [10, 15]
    assert started.execute_single(lambda counter: counter.value) == 10


def test_results_may_be_fetched_later(started: RayExecutor) -> None:
    import ray

    assert ray.get(started.run_remote(lambda a, b: a + b, [1], {"b": 2})) == [3, 3]


def test_an_exception_of_a_function_keeps_its_type_and_text(started: RayExecutor) -> None:
    with pytest.raises(LookupError, match=r"rank [01] has no data"):
        started.run(programs.fail)


def test_a_second_start_is_refused(started: RayExecutor) -> None:
    with pytest.raises(UserError, match=r"start\(\): the workers run already; call shutdown\(\) before"):
        started.start()


def test_a_cluster_without_room_is_one_sentence() -> None:
    settings = RayExecutor.create_settings(placement_group_timeout_s=0.5)
    made = RayExecutor(settings, num_workers=3, cpus_per_worker=2)
    with pytest.raises(TimeoutError, match=r"not found room for 3 × \{'CPU': 2\} within 0.5 s; it has") as raised:
        made.start()
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match=r"call start\(\) first"):
        made.run(programs.fail)


def test_a_worker_that_dies_while_the_group_forms_is_named() -> None:
    made = executor()
    made.start()
    sentence = r"worker 1 of 2 on node [0-9.]+ \(process [0-9]+\) died during die_before_the_group_forms\(\)"
    with pytest.raises(RuntimeError, match=sentence) as raised:
        made.run(programs.die_before_the_group_forms, [1])
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="also after a worker died"):
        made.run(programs.fail)
