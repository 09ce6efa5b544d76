# SPDX-License-Identifier: Apache-2.0
"""Trains like a script of this folder, but with DistributedDataParallel: torchrun by_ddp.py SCRIPT --save WEIGHTS."""

import inspect
import runpy
import sys

import torch
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import agspeed.horovod

agspeed.horovod.install_alias()
script = runpy.run_path(sys.argv[1])
dist.init_process_group("agspeed")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(42 + rank)
model = DistributedDataParallel(script["make_model"](), broadcast_buffers=False)
if script.get("IS_FP16"):
    model.register_comm_hook(None, fp16_compress_hook)
options = {"has_hooks": False} if "has_hooks" in inspect.signature(script["train"]).parameters else {}
script["train"](model, script["make_optimizer"](model, size), script["make_loader"](rank, size), **options)
if rank == 0:
    torch.save(model.module.state_dict(), sys.argv[3])
dist.destroy_process_group()
