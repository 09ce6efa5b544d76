# SPDX-License-Identifier: Apache-2.0
"""The program that ranks run in `test_blocks.py`: `python blocks_program.py DTYPE`, several ranks per host of a bed."""

from __future__ import annotations

import hashlib
import json
import sys

import torch
from torch import distributed as dist

import agspeed  # noqa: F401  registers the backend

NUM_ELEMENTS = 1 << 22


def main(dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("agspeed")
    rank, size = dist.get_rank(), dist.get_world_size()
    values = torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(rank)).to(dtype)
    sums = [values.clone() for _ in range(3)]
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in sums]:
        work.wait()
    own = torch.empty(NUM_ELEMENTS // size, dtype=dtype)
    dist.reduce_scatter_tensor(own, values)
    gathered = torch.empty_like(values)
    dist.all_gather_into_tensor(gathered, own)
    digests = {hashlib.sha256(tensor.view(torch.uint8).numpy()).hexdigest() for tensor in (*sums, gathered)}
    assert len(digests) == 1, "all-reduce is not reduce-scatter and all-gather"
    print(json.dumps({"digest": digests.pop(), "buffer_bytes": values.nbytes}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(getattr(torch, sys.argv[1]))
