# SPDX-License-Identifier: Apache-2.0
"""Like Horovod's elastic example: state is committed during training. The number of ranks stays the same here."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

STEPS = 50


def make_model():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def make_optimizer(model, size):
    return torch.optim.Adam(model.parameters(), lr=0.001 * size)


def make_loader(rank, size):
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    return [(images[at::size][:16], labels[at::size][:16]) for at in range(rank, 16 * size * STEPS, 16 * size)]


def train(model, optimizer, loader):
    for images, labels in loader:
        train_one_batch(model, optimizer, images, labels)


def train_one_batch(model, optimizer, images, labels):
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()


@hvd.elastic.run
def train_elastically(state, loader):
    while state.batch < STEPS:
        train_one_batch(state.model, state.optimizer, *loader[state.batch])
        state.batch += 1
        if state.batch % 10 == 0:
            state.commit()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", required=True)
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(42 + hvd.rank())
    model = make_model()
    optimizer = hvd.DistributedOptimizer(make_optimizer(model, hvd.size()), named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, batch=0)
    train_elastically(state, make_loader(hvd.rank(), hvd.size()))
    if hvd.rank() == 0:
        torch.save(model.state_dict(), args.save)
        print("ranks", hvd.size(), "batch", state.batch)


if __name__ == "__main__":
    main()
