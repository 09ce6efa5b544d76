# SPDX-License-Identifier: Apache-2.0
"""Images per second of a model of torchvision trained on random images, as Horovod users measure it.

    agspeed run -np 2 --as-horovod python -m benchmarks.horovod.synthetic --model resnet50 --batch-size 8

The script uses Horovod's API only, so it also runs with real Horovod. Options that Horovod's published benchmark has,
too, have the same names here. Rank 0 prints. The script compares nothing: RESULTS_RANKS.md has the paired cases.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import horovod.torch as hvd
import torch
from torch import nn
from torchvision import models


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", choices=models.list_models(module=models))
    parser.add_argument("--batch-size", type=int, default=32, help="images of a rank (default 32)")
    parser.add_argument("--image-size", type=int, default=224, help="pixels of a side (default 224)")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10, help="measurements (default 10)")
    parser.add_argument("--threads", type=int, default=1, help="of a rank (default 1)")
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    parser.add_argument("--use-adasum", action="store_true")
    return parser.parse_args()


def training(args: argparse.Namespace) -> Callable[[], None]:
    """Returns a function that runs one step on this rank. All ranks start from rank 0's weights."""
    torch.manual_seed(hvd.rank())
    model: nn.Module = models.get_model(args.model, weights=None)
    lr = 0.01 * (1 if args.use_adasum else hvd.size())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    labels = torch.randint(0, 1000, (args.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    args = arguments()
    hvd.init()
    torch.set_num_threads(args.threads)
    step = training(args)
    for _ in range(args.num_warmup_batches):
        step()
    rates = []
    for _ in range(args.num_iters):
        begin = time.perf_counter()
        for _ in range(args.num_batches_per_iter):
            step()
        rates.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - begin))
    if hvd.rank() == 0:
        mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
        print(f"{args.model}, {hvd.size()} ranks: {mean:.1f} (± {spread:.1f}) images per second and rank,")
        print(f"{hvd.size() * mean:.1f} (± {hvd.size() * spread:.1f}) in all")


if __name__ == "__main__":
    main()
