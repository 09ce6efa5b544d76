# SPDX-License-Identifier: Apache-2.0
"""A GAN on digits: two models, two optimizers, three forwards and two backwards per step."""

import torch
from torch import Tensor, nn

from benchmarks.workloads import data
from benchmarks.workloads.base import Batch, Training, Workload

_NOISE, _BATCH = 32, 128


def make() -> Training:
    generator = nn.Sequential(
        nn.Linear(_NOISE, 256),
        nn.BatchNorm1d(256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, 256),
        nn.BatchNorm1d(256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, 64),
        nn.Sigmoid(),
    )
    critic = nn.Sequential(
        nn.Linear(64, 256),
        nn.LeakyReLU(0.2),
        nn.Dropout(0.2),
        nn.Linear(256, 256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, 1),
    )
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loss_of = nn.BCEWithLogitsLoss()
    real_label, fake_label = torch.ones(_BATCH, 1), torch.zeros(_BATCH, 1)

    def step(batch: Batch) -> Tensor:
        """Returns the critic's loss, which falls from 2 ln 2 as it learns to tell real digits from generated ones."""
        real, noise = batch
        fake = generator(noise)
        critic_optimizer.zero_grad(set_to_none=True)
        critic_loss = loss_of(critic(real), real_label) + loss_of(critic(fake.detach()), fake_label)
        critic_loss.backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad(set_to_none=True)
        loss_of(critic(fake), real_label).backward()
        generator_optimizer.step()
        return critic_loss.detach()

    noise = torch.randn(1797, _NOISE, generator=data.generator(12))
    batches = data.shuffled_batches(data.digits()[0], noise, batch=_BATCH, count=14, seed=12)
    optimizers = [generator_optimizer, critic_optimizer]
    return Training({"generator": generator, "critic": critic}, step, batches, optimizers=optimizers)


WORKLOAD = Workload("gan", "two models and optimizers, BatchNorm, dropout, digits", 12, make)
