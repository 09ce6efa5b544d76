# SPDX-License-Identifier: Apache-2.0
"""Codecs compute what their models in NumPy compute, keep what they do not send, and never spread NaN or infinity."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from agspeed.distributed.codecs import codec as codecs
from agspeed.distributed.codecs import kernels
from agspeed.distributed.codecs.cast import BFloat16, Float16
from agspeed.distributed.codecs.catalog import CODECS
from agspeed.distributed.codecs.codec import Codec
from agspeed.distributed.codecs.int8 import Int8
from agspeed.distributed.codecs.memory import Memory
from agspeed.distributed.codecs.powersgd import PowerSGD
from agspeed.distributed.codecs.topk import TopK
from agspeed.errors import UserError
from tests.python.distributed.codecs import numpy_models
from tests.python.distributed.codecs.local_group import LocalGroup, LocalWire, averaged, bucket, gradients

SEED = 20261129
SIZES = [1, 2, 3, 5]
SUMS: dict[str, Callable[[], Codec]] = {"int8": Int8, "topk": lambda: TopK(density=0.02)}


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    both = [
        each.contiguous().flatten().view(torch.int16 if each.itemsize == 2 else torch.int32)
        for each in (found, expected)
    ]
    return found.dtype == expected.dtype and torch.equal(*both)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Other tests run at the same time, and short operations would wait for threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["native", "torch"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both implementations of the kernels."""
    if request.param == "torch":
        monkeypatch.setattr(kernels, "_native_for", lambda values: None)
    elif kernels._native_for(torch.zeros(1)) is None:
        pytest.skip("the native extension is missing")
    return str(request.param)


# --- int8 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [4096, 5000, 20001])
def test_int8_averages_as_its_model_does(implementation: str, size: int, count: int) -> None:
    given = gradients(SEED, size, count)
    expected = torch.from_numpy(numpy_models.average_int8([each.numpy() for each in given]))
    for found in averaged([Int8() for _ in range(size)], given):
        assert same_bits(found, expected), f"seed {SEED}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_int8_of_half_precision_is_that_of_float32_rounded(dtype: torch.dtype) -> None:
    given = gradients(SEED, 3, 6000, dtype)
    expected = torch.from_numpy(numpy_models.average_int8([each.float().numpy() for each in given])).to(dtype)
    for found in averaged([Int8() for _ in given], given):
        assert same_bits(found, expected), f"seed {SEED}"


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_int8_codes_of_every_length_decode(implementation: str, count: int) -> None:
    values = gradients(SEED, 1, count)[0]
    code = torch.zeros(kernels.int8_bytes(count), dtype=torch.uint8)
    assert kernels.encode_int8(code, values)
    found, added = torch.full((count,), 9.0), torch.full((count,), 0.5)
    kernels.decode_int8(found, code)
    kernels.decode_int8(added, code, 0.25, adds=True)
    expected = numpy_models.coded_int8(values.numpy())
    assert same_bits(found, torch.from_numpy(numpy_models.decoded_int8(expected)))
    assert same_bits(added, 0.5 + torch.from_numpy(numpy_models.decoded_int8(expected, 0.25)))


def test_int8_of_tiny_values_is_zero(implementation: str) -> None:
    values = torch.full((5000,), 1e-36)
    assert all(not each.any() for each in averaged([Int8(), Int8()], [values, values]))


# --- top-k ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("momentum", "warmup_steps"), [(0.0, 0), (0.5, 4)])
def test_top_k_averages_as_its_model_does(size: int, momentum: float, warmup_steps: int) -> None:
    count = 6000
    model = numpy_models.TopK(size, count, 0.02, momentum, warmup_steps)
    own = [TopK(0.02, momentum, warmup_steps) for _ in range(size)]
    for step in range(8):
        given = gradients(SEED + step, size, count)
        expected = torch.from_numpy(model.average([each.numpy() for each in given]))
        for found in averaged(own, given):
            assert same_bits(found + 0.0, expected + 0.0), f"seed {SEED}, step {step}"
    for rank, each in enumerate(own):
        assert np.array_equal(each.state_dict()["residuals"]["weight"].numpy(), model.residuals[rank])


def test_top_k_selects_the_largest(implementation: str) -> None:
    values = torch.randperm(5000, generator=torch.Generator().manual_seed(SEED)).float() - 2500
    indices = torch.empty(50, dtype=torch.int32)
    assert kernels.select_largest(indices, values)
    assert torch.equal(indices.long(), values.abs().topk(50).indices.sort().values)
    for wrong in (math.nan, math.inf, -math.inf):
        values[77] = wrong
        assert not kernels.select_largest(indices, values)


def test_sent_values_and_the_residual_add_up_to_the_gradients() -> None:
    size, count = 3, 8000
    own = [TopK(density=0.01) for _ in range(size)]
    sums, sent = [torch.zeros(count, dtype=torch.float64) for _ in range(size)], torch.zeros(count, dtype=torch.float64)
    for step in range(30):
        given = gradients(SEED + step, size, count)
        for total, each in zip(sums, given, strict=True):
            total += each
        found = averaged(own, given)[0]
        assert int((found != 0).sum()) <= count // 100 + size
        sent += found
    residuals = torch.stack([each.state_dict()["residuals"]["weight"].double() for each in own])
    torch.testing.assert_close(sent + residuals.mean(0), torch.stack(sums).mean(0), rtol=1e-5, atol=1e-5)


def test_dense_steps_with_momentum_are_those_of_sgd() -> None:
    own = [TopK(density=1.0, momentum=0.9) for _ in range(2)]
    velocity = torch.zeros(5000)
    for step in range(5):
        given = gradients(SEED + step, 2, 5000)
        velocity = 0.9 * velocity + torch.stack(given).mean(0)
        torch.testing.assert_close(averaged(own, given)[0], velocity, rtol=1e-5, atol=1e-6)


def test_a_warm_up_sends_less_in_each_step() -> None:
    own = TopK(density=0.001, warmup_steps=3)
    assert [own.density_at(step) for step in range(5)] == pytest.approx([1, 0.1, 0.01, 0.001, 0.001])


def test_residuals_follow_their_parameters_into_other_buckets() -> None:
    first, second = TopK(density=0.02), TopK(density=0.02)
    given = torch.cat([gradients(SEED, 1, 5000)[0], gradients(SEED + 1, 1, 7000)[0]])
    averaged([first], [given], {"a": 5000, "b": 7000})
    kept = first.state_dict()["residuals"]
    zeros = torch.zeros(7000)
    averaged([first], [torch.cat([zeros, torch.zeros(6000)])], {"b": 7000, "c": 6000})
    second.load_state_dict({"steps": {"b": 1}, "residuals": {"b": kept["b"]}, "velocities": {}})
    averaged([second], [torch.cat([zeros, torch.zeros(6000)])], {"b": 7000, "c": 6000})
    found, expected = first.state_dict(), second.state_dict()
    assert same_bits(found["residuals"]["a"], kept["a"])
    assert same_bits(found["residuals"]["b"], expected["residuals"]["b"])
    assert found["steps"] == {"a": 1, "b": 2, "c": 2}


def test_a_state_of_another_model_is_refused() -> None:
    own = TopK()
    own.load_state_dict({"steps": {"weight": 1}, "residuals": {"weight": torch.zeros(7)}, "velocities": {}})
    with pytest.raises(UserError, match="7 values for weight, and the parameter has 5000"):
        next(own.steps(bucket(torch.ones(5000)), LocalWire(LocalGroup(1), 0)))
    for wrong in ({}, {"steps": 3, "residuals": {}, "velocities": {}}):
        with pytest.raises(UserError, match="no state of a sparse codec"):
            Memory().load_state_dict(wrong)


# --- all codecs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_bucket_with_nan_or_infinity_is_sent_densely(implementation: str, name: str, wrong: float) -> None:
    own = [SUMS[name]() for _ in range(3)]
    averaged(own, gradients(SEED, 3, 6000))
    states = [each.state_dict() for each in own]
    given = gradients(SEED + 1, 3, 6000)
    given[1][4321] = wrong
    expected = torch.stack([each / 3 for each in given]).sum(0)
    for found in averaged(own, given):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)
        assert not math.isfinite(found[4321])
        assert torch.isfinite(found).sum() == 5999
    for each, before in zip(own, states, strict=True):
        assert each.num_refused == 1
        after = each.state_dict()
        assert after.get("residuals", {}).keys() == before.get("residuals", {}).keys()
        for key, value in before.get("residuals", {}).items():
            assert same_bits(after["residuals"][key], value)


def test_infinity_in_a_dense_step_with_momentum_changes_no_velocity() -> None:
    own = [TopK(density=1.0, momentum=0.9) for _ in range(2)]
    averaged(own, gradients(SEED, 2, 5000))
    before = [each.state_dict()["velocities"]["weight"] for each in own]
    given = gradients(SEED + 1, 2, 5000)
    given[0][3] = math.inf
    averaged(own, given)
    for each, velocity in zip(own, before, strict=True):
        assert each.num_refused == 1
        assert same_bits(each.state_dict()["velocities"]["weight"], velocity)


@pytest.mark.parametrize(("made", "dtype"), [(Float16, torch.float16), (BFloat16, torch.bfloat16)])
def test_casts_average_in_the_narrow_type(made: type[Codec], dtype: torch.dtype) -> None:
    given = gradients(SEED, 2, 5000)
    expected = ((given[0] / 2).to(dtype) + (given[1] / 2).to(dtype)).float()
    for found in averaged([made(), made()], given):
        assert same_bits(found, expected)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("values", [torch.ones(100), torch.ones(5000, dtype=torch.float64)], ids=["small", "float64"])
def test_small_buckets_and_float64_are_sent_densely(name: str, values: torch.Tensor) -> None:
    group = LocalGroup(2)
    buckets = [bucket(values * rank) for rank in range(2)]
    own = [SUMS[name](), SUMS[name]()]
    assert group.run(lambda wire: own[wire.rank].steps(buckets[wire.rank], wire)) == [None, None]
    assert group.started == ["all_reduce"]
    assert all(torch.equal(each.values, values / 2) for each in buckets)


@pytest.mark.parametrize("with_pickle", [False, True])
def test_a_saved_codec_continues_as_if_never_saved(with_pickle: bool) -> None:
    options = {"density": 0.02, "momentum": 0.5, "warmup_steps": 3}
    own = [TopK(**options) for _ in range(2)]
    for step in range(4):
        averaged(own, gradients(SEED + step, 2, 6000))
    if with_pickle:
        again = [pickle.loads(pickle.dumps(each)) for each in own]
    else:
        again = [TopK(**options) for _ in range(2)]
        for each, before in zip(again, own, strict=True):
            each.load_state_dict(before.state_dict())
    for step in range(4, 8):
        given = gradients(SEED + step, 2, 6000)
        assert same_bits(averaged(own, given)[0], averaged(again, given)[0])


def test_every_codec_can_be_pickled_and_keeps_its_options() -> None:
    for made in (*(each() for each in CODECS.values()), PowerSGD(rank=4, start_step=7), Int8(dense_below=9)):
        again = pickle.loads(pickle.dumps(made))
        assert again.describe() == made.describe()
        again.load_state_dict(made.state_dict())


def test_codecs_without_memory_refuse_a_state() -> None:
    with pytest.raises(UserError, match="keeps no state"):
        Int8().load_state_dict({"steps": {}})
    with pytest.raises(UserError, match="no state of powersgd"):
        PowerSGD().load_state_dict({"steps": {}})


@pytest.mark.parametrize("wrong", [{"rng": 7}, {"rng": None}, {"another": 1}])
def test_a_damaged_state_of_powersgd_changes_nothing(wrong: dict[str, object]) -> None:
    codec, state = PowerSGD(rank=2), PowerSGD(rank=3).state_dict()
    before = codec.state_dict()
    with pytest.raises(UserError, match="this state of powersgd cannot be read"):
        codec.load_state_dict({"names": {0: ("w",)}, "torch": state["torch"] | wrong})
    after = codec.state_dict()
    assert after["names"] == before["names"]
    assert after["torch"]["matrix_approximation_rank"] == before["torch"]["matrix_approximation_rank"]


def test_codecs_that_differ_are_named_at_every_rank() -> None:
    own = [TopK(0.01), TopK(0.02), TopK(0.01)]
    device, sentence = torch.device("cpu"), "they differ ({}): choose one."
    errors = LocalGroup(3).run(lambda wire: codecs.agree(own[wire.rank].describe(), wire, device, sentence))
    for error in errors:
        assert isinstance(error, UserError)
        assert str(error).endswith("): choose one.")
        assert "rank 0: topk(density=0.01" in str(error)
        assert "rank 1: topk(density=0.02" in str(error)
    assert LocalGroup(3).run(lambda wire: codecs.agree("int8", wire, device, sentence)) == [None] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopK(density=0),
        lambda: TopK(density=1.5),
        lambda: TopK(momentum=1),
        lambda: TopK(warmup_steps=-1),
        lambda: PowerSGD(rank=0),
        lambda: PowerSGD(start_step=1),
    ],
)
def test_options_out_of_range_are_refused(make: Callable[[], Codec]) -> None:
    with pytest.raises(UserError, match="write"):
        make()
