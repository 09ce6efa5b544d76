# SPDX-License-Identifier: Apache-2.0
"""Runs a `Joint` as one differentiable function: forward half, backward half, and an eager replay for double backward.

Stock AOTAutograd refuses double backward only after the forward ran, drops hooks of saved tensors it donates and
costs several wrappers a call. Here the backward checks whether a graph of the gradients is wanted; if so the captured
graph is replayed eagerly on the saved inputs (with the random state of the forward) and differentiated by autograd
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from agspeed.backends.base import Runner
from agspeed.backends.joint import Joint, RegionSignature

_RANDOM_TAG = torch.Tag.nondeterministic_seeded


def make_runner(joint: Joint, gm: fx.GraphModule) -> Runner:
    """A differentiable callable over the flat arguments of `gm`.

    Args:
        joint: both compiled halves (or only AOTAutograd's callable, which is returned as it is).
        gm: the captured graph, replayed eagerly when a double backward is asked for. Not changed.
    """
    if joint.inference is not None:
        return joint.inference
    assert joint.forward is not None and joint.backward is not None and joint.signature is not None
    region = _Region(joint, gm)

    def run(*args: Any) -> Sequence[Any]:
        if torch.is_grad_enabled():
            return _RegionFunction.apply(region, *args)  # type: ignore[no-any-return, no-untyped-call]
        outputs, _, _ = region.run_forward(args)
        return outputs

    return run


def draws_random_numbers(graph: fx.GraphModule) -> bool:
    """True when an ATen graph contains an operator that draws from a generator."""
    return any(
        node.op == "call_function" and _RANDOM_TAG in getattr(node.target, "tags", ()) for node in graph.graph.nodes
    )


class _Region:
    """What both directions share. Immutable after construction."""

    def __init__(self, joint: Joint, gm: fx.GraphModule) -> None:
        assert joint.forward is not None and joint.backward is not None and joint.signature is not None
        self.signature: RegionSignature = joint.signature
        self.forward = joint.forward.run
        self.backward = joint.backward.run
        self.replay = gm
        self.is_random = draws_random_numbers(joint.forward.graph)
        num_tangents = sum(joint.signature.output_requires_grad)
        tangents = joint.backward.example_inputs[len(joint.backward.example_inputs) - num_tangents :]
        self.tangent_layouts = [_layout_of(tangent) for tangent in tangents]

    def run_forward(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], list[torch.Tensor], list[int]]:
        """Runs the forward half, applies its input mutations. Returns user outputs, saved tensors, saved integers."""
        signature = self.signature
        with torch._C._DisableAutocast():
            results = list(self.forward([_detached(arg) for arg in args]))
        num_mutated = len(signature.mutated_inputs)
        for index, value in zip(signature.mutated_inputs, results, strict=False):
            args[index].detach().copy_(value)
        first_saved = num_mutated + signature.num_outputs
        last_saved = first_saved + signature.num_saved_tensors
        return tuple(results[num_mutated:first_saved]), results[first_saved:last_saved], results[last_saved:]

    def run_backward(
        self, saved: Sequence[Any], integers: Sequence[int], tangents: Sequence[torch.Tensor]
    ) -> list[Any]:
        laid_out = [layout(tangent) for layout, tangent in zip(self.tangent_layouts, tangents, strict=True)]
        with torch._C._DisableAutocast():
            return list(self.backward([*integers, *saved, *laid_out]))

    def replay_backward(self, args: Sequence[Any], state: torch.Tensor | None, tangents: Sequence[Any]) -> list[Any]:
        """Gradients with a graph of their own: runs the captured graph eagerly and differentiates it."""
        signature = self.signature
        inputs = [arg.clone() if index in signature.mutated_inputs else arg for index, arg in enumerate(args)]
        with torch.random.fork_rng(devices=[], enabled=state is not None), torch.enable_grad():
            if state is not None:
                torch.set_rng_state(state)
            outputs = self.replay(*inputs)
        outputs = [out for out, needed in zip(outputs, signature.output_requires_grad, strict=True) if needed]
        wanted = [index for index, needed in enumerate(signature.input_requires_grad) if needed]
        gradients = torch.autograd.grad(
            outputs, [inputs[index] for index in wanted], list(tangents), create_graph=True, allow_unused=True
        )
        result: list[Any] = [None] * signature.num_inputs
        for index, gradient in zip(wanted, gradients, strict=True):
            result[index] = gradient
        return result


class _RegionFunction(torch.autograd.Function):
    """The autograd node of a region."""

    @staticmethod
    def forward(ctx: Any, region: _Region, *args: Any) -> tuple[Any, ...]:
        ctx.region = region
        ctx.args = args
        ctx.rng_state = torch.get_rng_state() if region.is_random else None
        outputs, saved, integers = region.run_forward(args)
        ctx.integers = integers
        ctx.save_for_backward(*saved)
        flags = region.signature.output_requires_grad
        ctx.mark_non_differentiable(
            *(out for out, needed in zip(outputs, flags, strict=True) if not needed and isinstance(out, torch.Tensor))
        )
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        region: _Region = ctx.region
        flags = region.signature.output_requires_grad
        tangents = [gradient for gradient, needed in zip(gradients, flags, strict=True) if needed]
        if torch.is_grad_enabled():
            return (None, *region.replay_backward(ctx.args, ctx.rng_state, tangents))
        return (None, *region.run_backward(ctx.saved_tensors, ctx.integers, tangents))


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


def _layout_of(tangent: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that gives a gradient the memory layout the backward graph was traced with."""
    order = _stride_order(tangent)
    if order == sorted(order, reverse=True):
        return torch.Tensor.contiguous

    def lay_out(gradient: torch.Tensor) -> torch.Tensor:
        if _stride_order(gradient) == order:
            return gradient
        inverse = sorted(range(len(order)), key=lambda dim: -order[dim])
        dense = gradient.permute(inverse).contiguous()
        return dense.permute([inverse.index(dim) for dim in range(len(order))])

    return lay_out


def _stride_order(tensor: torch.Tensor) -> list[int]:
    """Rank of each dimension's stride, the innermost 0; e.g. contiguous NCHW gives [3, 2, 1, 0]."""
    strides = [_hint(stride) for stride in tensor.stride()]
    by_stride = sorted(range(len(strides)), key=lambda dim: (strides[dim], -dim))
    order = [0] * len(strides)
    for rank, dim in enumerate(by_stride):
        order[dim] = rank
    return order


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)
