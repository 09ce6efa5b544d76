# SPDX-License-Identifier: Apache-2.0
"""The operations that can be differentiated, each with the gradient of its input.

allreduce      reduces the gradient in the same way
allgather      averages the gradient over the ranks; each rank takes its own rows
broadcast      averages the gradient over the ranks; the root takes it, other ranks get zeros
alltoall       sends the gradient's rows back to the ranks that they came from
reducescatter  gathers the gradients, multiplied by both factors, and by the number of ranks for sums
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function

from agspeed.horovod.torch import async_ops as ops
from agspeed.horovod.torch.arguments import Average, Sum, reduction_of
from agspeed.horovod.torch.handles import synchronize

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "GroupedAllGather",
    "GroupedAllReduce",
    "ReduceScatter",
    "apply",
]


def apply(function: type[Function], *arguments: Any) -> Any:
    """Calls an autograd function, so that gradients flow back through it."""
    return function.apply(*arguments)


# torch passes the context as the first argument; a backward returns one gradient for each other argument.


class AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, average: Any, name: Any, op: Any, *rest: Any) -> Any:
        ctx.op, ctx.rest = reduction_of(op, average), rest
        return synchronize(ops.allreduce_async(tensor, None, name, ctx.op, *rest))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        reduced = apply(AllReduce, gradients[0].contiguous(), None, None, ctx.op, *ctx.rest)
        return reduced, *[None] * (3 + len(ctx.rest))


class GroupedAllReduce(Function):
    @staticmethod
    def forward(
        ctx: Any, average: Any, name: Any, op: Any, pre: Any, post: Any, process_set: Any, *tensors: Any
    ) -> Any:
        ctx.op, ctx.rest = reduction_of(op, average), (pre, post, process_set)
        return tuple(synchronize(ops.grouped_allreduce_async(tensors, None, name, ctx.op, *ctx.rest)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        dense = [gradient.contiguous() for gradient in gradients]
        return *[None] * 6, *apply(GroupedAllReduce, None, None, ctx.op, *ctx.rest, *dense)


class AllGather(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Any, process_set: Any) -> Any:
        ctx.rows, ctx.process_set = tensor.shape[0] if tensor.dim() else 0, process_set
        return synchronize(ops.allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _own_rows(gradients[0], ctx.rows, ctx.process_set), None, None


class GroupedAllGather(Function):
    @staticmethod
    def forward(ctx: Any, name: Any, process_set: Any, *tensors: Any) -> Any:
        ctx.rows, ctx.process_set = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors], process_set
        return tuple(synchronize(ops.grouped_allgather_async(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        own = [_own_rows(each, rows, ctx.process_set) for each, rows in zip(gradients, ctx.rows, strict=True)]
        return None, None, *own


class Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: Any, process_set: Any) -> Any:
        ctx.root, ctx.process_set = root_rank, process_set
        return synchronize(ops.broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = synchronize(_average(gradients[0], ctx.process_set))
        is_root = ctx.process_set.rank() == ctx.process_set.place_of(ctx.root)
        return gradient if is_root else torch.zeros_like(gradient), None, None, None


class AllToAll(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: Any, process_set: Any) -> Any:
        ctx.process_set = process_set
        rows, ctx.received = synchronize(ops.alltoall_async(tensor, splits, name, process_set))
        if splits is None:
            return rows
        ctx.mark_non_differentiable(ctx.received)
        return rows, ctx.received

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        sent, _ = synchronize(ops.alltoall_async(gradients[0].contiguous(), ctx.received, None, ctx.process_set))
        return sent, None, None, None


class ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, name: Any, op: int, process_set: Any, pre: float, post: float, *tensors: Any) -> Any:
        ctx.process_set = process_set
        ctx.factor = pre * post * (process_set.size() if op == Sum else 1)
        return tuple(synchronize(ops.grouped_reducescatter_async(tensors, name, op, process_set, pre, post)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        scaled = [(gradient * ctx.factor).contiguous() for gradient in gradients]
        return *[None] * 5, *synchronize(ops.grouped_allgather_async(scaled, None, ctx.process_set))


def _average(gradient: torch.Tensor, process_set: Any) -> int:
    return ops.allreduce_async(gradient.contiguous(), name=None, op=Average, process_set=process_set)


def _own_rows(gradient: torch.Tensor, rows: int, process_set: Any) -> torch.Tensor:
    averaged = _average(gradient, process_set)
    counts = synchronize(ops.allgather_async(torch.tensor([rows], device="cpu"), None, process_set)).tolist()
    before = sum(counts[: process_set.rank()])
    whole: torch.Tensor = synchronize(averaged)
    return whole[before : before + rows]
