# SPDX-License-Identifier: Apache-2.0
"""Like Horovod's first example: a small convolutional net whose gradients hooks reduce. Digits replace MNIST."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from horovod.common.exceptions import HorovodInternalError  # noqa: F401 - as scripts that catch it do
from horovod.torch.mpi_ops import allreduce_async  # noqa: F401 - by the path that older scripts know
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEPS = 50


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.conv2_drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(128, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2_drop(self.conv2(x))).flatten(1)
        x = F.dropout(F.relu(self.fc1(x)), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


def make_model():
    return Net()


def make_optimizer(model, size):
    return torch.optim.SGD(model.parameters(), lr=0.01 * size, momentum=0.5)


def make_loader(rank, size):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    return DataLoader(data, batch_size=16, sampler=DistributedSampler(data, num_replicas=size, rank=rank))


def train(model, optimizer, loader):
    model.train()
    for step, (images, labels) in enumerate(loader):
        if step == STEPS:
            break
        optimizer.zero_grad()
        F.nll_loss(model(images), labels).backward()
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
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
    train(model, optimizer, make_loader(hvd.rank(), hvd.size()))
    total = hvd.allreduce(torch.tensor(1.0 + hvd.rank()), name="avg")
    if hvd.rank() == 0:
        torch.save(model.state_dict(), args.save)
        print("ranks", hvd.size(), "average", total.item())


if __name__ == "__main__":
    main()
