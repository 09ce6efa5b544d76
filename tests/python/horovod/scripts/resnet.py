# SPDX-License-Identifier: Apache-2.0
"""Like Horovod's ImageNet example: a ResNet with float16 gradients, clipped between the reduction and the step."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchvision import models

STEPS = 50
IS_FP16 = True
CLIP = 1.0


def make_model():
    return models.resnet18(num_classes=10)


def make_optimizer(model, size):
    return torch.optim.SGD(model.parameters(), lr=0.0125 * size, momentum=0.9, weight_decay=5e-5)


def make_loader(rank, size):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1).expand(-1, 3, -1, -1) / 16
    data = TensorDataset(F.interpolate(images, scale_factor=4), torch.tensor(digits.target))
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, num_replicas=size, rank=rank))


def train(model, optimizer, loader, has_hooks=True):
    model.train()
    for step, (images, labels) in enumerate(loader):
        if step == STEPS:
            break
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        if has_hooks:
            optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        if has_hooks:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", required=True)
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(42 + hvd.rank())
    model = make_model()
    optimizer = make_optimizer(model, hvd.size())
    compression = hvd.Compression.fp16 if IS_FP16 else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression, backward_passes_per_step=1
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(model, optimizer, make_loader(hvd.rank(), hvd.size()))
    epoch = hvd.broadcast(torch.tensor(7 + hvd.rank()), root_rank=0, name="resume_from_epoch").item()
    if hvd.rank() == 0:
        torch.save(model.state_dict(), args.save)
        print("ranks", hvd.size(), "epoch", epoch)


if __name__ == "__main__":
    main()
