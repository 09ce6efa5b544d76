# SPDX-License-Identifier: Apache-2.0
"""PowerSGD: sends matrices as products of two narrow ones. It is torch's own hook, behind the interface of codecs.

torch keeps errors and factors by the number of a bucket. This codec forgets what torch kept for a bucket whose
parameters have changed. torch's hook starts collectives from callbacks, whose order may differ between ranks if several
buckets are in flight. So each bucket ends before the next one begins.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from agspeed.distributed.codecs.codec import Bucket, Codec, Steps, Wire
from agspeed.errors import UserError

__all__ = ["PowerSGD"]

_BY_BUCKET = ("error_dict", "p_memory_dict", "q_memory_dict")


class PowerSGD(Codec):
    """Sends a matrix of n x m values as `rank` * (n + m) values, with error feedback.

    rank: of the approximation. start_step: gradients are sent densely until then, 2 at least. Small matrices and
    vectors are sent densely, too. Raises: UserError for options out of range.
    """

    name = "powersgd"

    def __init__(self, rank: int = 1, start_step: int = 1000) -> None:
        if rank < 1:
            raise UserError(f"rank={rank} is not valid: write a number of columns, from 1.")
        if start_step < 2:
            raise UserError(
                f"start_step={start_step} is not valid: write 2 or more, because DistributedDataParallel changes its "
                "buckets after the first step."
            )
        self.rank, self.start_step = rank, start_step
        self._state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=start_step)
        self._names: dict[int, tuple[str, ...]] = {}

    def describe(self) -> str:
        return f"{self.name}(rank={self.rank}, start_step={self.start_step})"

    def __getstate__(self) -> dict[str, Any]:
        return {"rank": self.rank, "start_step": self.start_step, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        PowerSGD.__init__(self, state["rank"], state["start_step"])
        self.load_state_dict(state["state"])

    def state_dict(self) -> dict[str, Any]:
        """Returns what `torch.load` reads without `weights_only=False`. So the generator's state is a tensor."""
        fields = {name: getattr(self._state, name) for name in self._state.__slots__ if name != "process_group"}
        _, words, *rest = self._state.rng.get_state()
        fields["rng"] = [torch.from_numpy(words.astype("int64")), *rest]
        return {"names": dict(self._names), "torch": copy.deepcopy(fields)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"names", "torch"}:
            raise UserError(
                f"this is no state of {self.name} (it has {sorted(state)}): load what state_dict() returned."
            )
        try:
            names, fields = dict(state["names"]), copy.deepcopy(dict(state["torch"]))
            words, *rest = fields.pop("rng")
            known = set(self._state.__slots__) - {"process_group", "rng"}
            if fields.keys() != known:
                raise ValueError(f"it has {sorted(fields)}")
            self._state.rng.set_state(("MT19937", words.numpy().astype("uint32"), *rest))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"this state of {self.name} cannot be read ({error}): load what state_dict() returned under this torch."
            ) from None
        self._names = names
        for name, value in fields.items():
            setattr(self._state, name, value)

    def steps(self, bucket: Bucket, wire: Wire) -> Steps:
        if bucket.origin is None:
            raise UserError(
                "powersgd works under DistributedDataParallel only: use topk or int8 with Horovod's interface."
            )
        self._forget_if_changed(bucket)
        self._state.process_group = getattr(wire, "group", None)  # None: the default group
        average = powerSGD_hook.powerSGD_hook(self._state, bucket.origin).wait()
        if average.data_ptr() != bucket.values.data_ptr():
            bucket.values.copy_(average)
        yield from ()

    def _forget_if_changed(self, bucket: Bucket) -> None:
        index = bucket.origin.index()
        if self._names.get(index) != bucket.names:
            for each in _BY_BUCKET:
                getattr(self._state, each).pop(index, None)
            self._names[index] = bucket.names
