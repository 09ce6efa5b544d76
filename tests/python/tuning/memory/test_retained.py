# SPDX-License-Identifier: Apache-2.0
"""Retained memory: steps without page faults, bounds, and tensors that live on after agspeed has stopped."""

from __future__ import annotations

import gc
import random
import resource
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import agspeed
from agspeed import config, native
from agspeed.frontend import live_sessions
from agspeed.reporting import environment
from agspeed.tuning.memory.retained import RetainedMemory, limits

_native: Any = native.load()
pytestmark = pytest.mark.skipif(_native is None, reason="the native extension is not built")
MIB = 1 << 20
LARGE = 34 * MIB
"""The C library always maps blocks of this size anew: its limit adapts to 32 MiB at most."""


class User:
    """Something that reserves the memory."""


@pytest.fixture
def memory() -> Iterator[RetainedMemory]:
    """Memory that is retained for the test's own user."""
    if reason := _native.why_memory_is_not_retained():
        pytest.skip(reason)
    memory, user = RetainedMemory(), User()
    memory.reserve(user, config.resolve({}))
    memory.want(user, True)
    assert memory.describe()["is_on"]
    yield memory
    memory.leave(user)


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def faults_per_step(num_steps: int = 6) -> float:
    """The median page faults of a training step whose tensors are large, after the first steps."""
    weight = torch.ones(LARGE // 4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    counts: list[int] = []
    for _ in range(num_steps):
        before = page_faults()
        optimizer.zero_grad()
        weight.mul(0.5).sigmoid().sum().backward()
        optimizer.step()
        counts.append(page_faults() - before)
    return statistics.median(counts[2:])


def bytes_of(value: int, count: int = 4 * MIB) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.uint8)


def make_and_free(num_tensors: int = 1) -> None:
    """Makes tensors of 4 MiB, and frees all of them afterwards."""
    tensors = [bytes_of(1) for _ in range(num_tensors)]
    tensors.clear()


def test_settled_steps_have_hardly_any_page_faults(memory: RetainedMemory) -> None:
    memory.set_paused(True)
    before = faults_per_step()
    memory.set_paused(False)
    after = faults_per_step()
    counts = f"{before} page faults a step without, {after} with the allocator"
    assert before >= 64, f"the step must map its tensors anew without the allocator: {counts}"
    assert after <= max(before / 20, 16), counts


def test_blocks_are_aligned_as_torch_aligns_them(memory: RetainedMemory) -> None:
    for count in (MIB, 3 * MIB + 5, LARGE):
        assert bytes_of(1, count).data_ptr() % 64 == 0, count


def test_pauses_give_the_memory_back(memory: RetainedMemory) -> None:
    make_and_free()
    assert _native.retained_memory()["idle_bytes"] >= 4 * MIB
    memory.set_paused(True)
    assert _native.retained_memory()["idle_bytes"] == 0
    memory.set_paused(False)
    assert memory.describe()["is_on"]


def test_tensors_outlive_the_allocator(memory: RetainedMemory) -> None:
    kept = [bytes_of(value) for value in range(5)]
    array, view = kept[1].numpy(), kept[2][100:200]
    memory.set_paused(True)
    kept[3].resize_(8 * MIB)
    kept[4].share_memory_()
    for value, tensor in enumerate(kept):
        assert bool((tensor[: 4 * MIB] == value).all()), value
    del kept, tensor
    assert int(array.min()) == int(array.max()) == 1
    assert bool((view == 2).all())
    del array, view
    memory.set_paused(False)


def test_numpys_memory_stays_numpys(memory: RetainedMemory) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros(4 * MIB, dtype=numpy.uint8)
    used = _native.retained_memory()["used_bytes"]
    tensor = torch.from_numpy(array)
    tensor[:] = 3
    del tensor
    assert _native.retained_memory()["used_bytes"] == used
    assert int(array.min()) == 3


def test_idle_blocks_stay_within_the_setting(memory: RetainedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGSPEED_RETAINED_MEMORY_MIB", "8")
    memory.set_paused(True)
    user, small = User(), RetainedMemory()
    small.reserve(user, config.resolve({}))
    small.want(user, True)
    make_and_free(num_tensors=6)
    assert _native.retained_memory()["idle_bytes"] == 8 * MIB
    small.leave(user)


def test_threads_never_share_a_block(memory: RetainedMemory) -> None:
    seed = random.randrange(1 << 30)
    wrong: list[str] = []
    passed: list[tuple[int, torch.Tensor]] = []  # tensors that another thread checks and frees

    def work(number: int) -> None:
        rng = random.Random(seed + number)
        for step in range(60):
            value = rng.randrange(256)
            passed.append((value, bytes_of(value, rng.randrange(MIB, 3 * MIB))))
            if len(passed) > 8:
                expected, tensor = passed.pop(rng.randrange(4))
                if not bool((tensor == expected).all()):
                    wrong.append(f"thread {number}, step {step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"seed {seed}: {wrong}"
    assert all(bool((tensor == value).all()) for value, tensor in passed), f"seed {seed}"


class Rows(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.rows = torch.arange(4 * MIB).reshape(4, MIB)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index] * 2


def test_workers_of_a_data_loader_get_and_make_tensors(memory: RetainedMemory) -> None:
    rows = Rows()
    for _ in range(2):
        loaded = list(DataLoader(rows, batch_size=2, num_workers=2, multiprocessing_context="fork"))
        assert torch.equal(torch.cat(loaded), rows.rows * 2)


def test_new_tensors_are_filled_if_torch_is_asked_to(memory: RetainedMemory) -> None:
    make_and_free()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert bool(torch.empty(MIB).isnan().all())
    finally:
        torch.use_deterministic_algorithms(False)


def test_only_one_user_decides() -> None:
    memory, settings = RetainedMemory(), config.resolve({})
    first, second = User(), User()
    if (reason := memory.why_not(first, settings)) is not None:
        pytest.skip(reason)
    memory.reserve(first, settings)
    assert memory.why_not(first, settings) is None
    assert memory.why_not(second, settings) == "another model of this process decides about it"
    memory.want(second, True)
    assert not memory.describe()["is_on"]
    memory.want(first, True)
    assert memory.is_on_for(first) and not memory.is_on_for(second)
    assert memory.sentence().startswith("freed tensors keep their memory for the next step: ")
    del first
    gc.collect()
    assert not memory.describe()["is_on"], "its user was freed"
    assert memory.why_not(second, settings) is None
    assert memory.sentence() == ""


def test_a_setting_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGSPEED_RETAINED_MEMORY_MIB", "0")
    assert RetainedMemory().why_not(User(), config.resolve({})) == "the setting retained_memory_mib is 0"


def test_the_default_limits_follow_from_the_memory_that_is_left() -> None:
    memory = environment.memory_bytes()
    idle, slack = limits(None)
    assert idle == memory // 2
    assert 0 <= slack < memory // 2
    assert limits(3)[0] == 3 * MIB


def test_pausing_agspeed_pauses_it(memory: RetainedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_sessions, "RETAINED", memory)
    with agspeed.paused():
        assert not _native.retained_memory()["is_on"]
    assert _native.retained_memory()["is_on"]


MALLOC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
void *malloc(size_t size) {
  static void *(*next)(size_t);
  if (!next) next = dlsym(RTLD_NEXT, "malloc");
  return next(size);
}
"""
ASK = "import torch; from agspeed import native; print(native.load().why_memory_is_not_retained())"


def test_it_stays_away_from_another_malloc(tmp_path: Path) -> None:
    library = tmp_path / "libother.so"
    (tmp_path / "other.c").write_text(MALLOC, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "other.c"], check=True)
    asked = subprocess.run(
        ["env", f"LD_PRELOAD={library}", sys.executable, "-c", ASK], capture_output=True, text=True, check=True
    )
    assert asked.stdout.strip().startswith("this process has another malloc (") and "libother.so" in asked.stdout


EXHAUST = """
import resource, torch
from agspeed import config, native
from agspeed.tuning.memory.retained import RetainedMemory
memory, module = RetainedMemory(), native.load()
memory.reserve(module, config.resolve({}))
memory.want(module, True)
blocks = [torch.empty(1 << 20, dtype=torch.uint8) for _ in range(512)]
blocks.clear()
assert module.retained_memory()["idle_bytes"] == 512 << 20
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20), resource.RLIM_INFINITY))
large = torch.empty(540 << 20, dtype=torch.uint8)
assert module.retained_memory()["idle_bytes"] == 0
try:
    torch.empty(1 << 30, dtype=torch.uint8)
except RuntimeError as error:
    print(error)
"""


def test_without_memory_left_idle_blocks_go_first_and_then_torch_raises() -> None:
    done = subprocess.run([sys.executable, "-c", EXHAUST], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "can't allocate memory: you tried to allocate 1073741824 bytes" in done.stdout


def test_training_gives_the_same_weights(memory: RetainedMemory) -> None:
    def trained() -> list[torch.Tensor]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(600, 512)).square().mean().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    memory.set_paused(True)
    expected = trained()
    memory.set_paused(False)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(trained(), expected, strict=True))
