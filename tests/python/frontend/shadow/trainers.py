# SPDX-License-Identifier: Apache-2.0
"""Ten ways in which people train: trainers of three packages, and loops of several forwards, models or precisions.

Every function trains for a number of optimizer steps and returns its optimized models. Their data are random.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

import agspeed


def optimized(model: nn.Module) -> Any:
    """Returns the model with a captured plan from the first steps on, chosen without timing."""
    return agspeed.optimize(model, mode="deterministic", backends=["native", "aot"])


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(64), nn.Linear(64, 4))


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 16), torch.randint(0, 4, (size,))


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,))), batch_size=8, shuffle=True)


class Sentences(Dataset[dict[str, Tensor]]):
    """Random token ids with a label each."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        made = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(0, 64, (12,), generator=made), "labels": torch.tensor(index % 2)}


def _transformers(num_steps: int, **arguments: Any) -> list[nn.Module]:
    import transformers

    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model = optimized(transformers.BertForSequenceClassification(config))
    with tempfile.TemporaryDirectory() as folder:
        wanted = transformers.TrainingArguments(
            folder, max_steps=num_steps, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, **arguments
        )
        transformers.Trainer(model=model, args=wanted, train_dataset=Sentences()).train()
    return [model]


def transformers_trainer(num_steps: int) -> list[nn.Module]:
    return _transformers(num_steps)


def transformers_accumulation_in_bf16(num_steps: int) -> list[nn.Module]:
    return _transformers(num_steps, gradient_accumulation_steps=2, bf16=True)


def accelerate_accumulation(num_steps: int) -> list[nn.Module]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    model = optimized(model)
    for _ in range(-(-2 * num_steps // len(batches))):
        for inputs, labels in batches:
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model(inputs), labels))
                optimizer.step()
                optimizer.zero_grad()
    return [model]


def lightning_clipping(num_steps: int) -> list[nn.Module]:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = optimized(classifier())

        def training_step(self, item: tuple[Tensor, Tensor]) -> Tensor:
            return cross_entropy(self.model(item[0]), item[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    module = Module()
    trainer = lightning.Trainer(
        max_steps=num_steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=1.0,
    )  # fmt: skip
    trainer.fit(module, loader())
    return [module.model]


def mixed_precision(num_steps: int) -> list[nn.Module]:
    model = optimized(classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(2 * num_steps):
        inputs, labels = batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(inputs), labels)
        (loss / 2).backward()
        if step % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    return [model]


def sharpness_aware(num_steps: int) -> list[nn.Module]:
    """Foret et al. 2021: the gradient is taken at weights that are moved up the first gradient."""
    model = optimized(classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parameters = list(model.parameters())
    for _ in range(num_steps):
        inputs, labels = batch()
        cross_entropy(model(inputs), labels).backward()
        moves = [0.05 * value.grad / (value.grad.norm() + 1e-6) for value in parameters]
        with torch.no_grad():
            torch._foreach_add_(parameters, moves)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        with torch.no_grad():
            torch._foreach_sub_(parameters, moves)
        optimizer.step()
        optimizer.zero_grad()
    return [model]


def adversarial(num_steps: int) -> list[nn.Module]:
    """Goodfellow et al. 2014: a generator and a discriminator in turn."""
    generator = optimized(nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)))
    critic = optimized(nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)))
    steps = [torch.optim.Adam(each.parameters(), lr=1e-3, betas=(0.5, 0.999)) for each in (generator, critic)]
    for _ in range(num_steps):
        made, real = generator(torch.randn(8, 8)), torch.randn(8, 16)
        steps[1].zero_grad()
        (critic(made.detach()).mean() - critic(real).mean()).backward()
        steps[1].step()
        steps[0].zero_grad()
        (-critic(made).mean()).backward()
        steps[0].step()
    return [generator, critic]


def mean_teacher(num_steps: int) -> list[nn.Module]:
    """Tarvainen and Valpola 2017: a teacher whose weights are the moving average of the student's."""
    student = classifier()
    teacher = copy.deepcopy(student).eval()
    student = optimized(student)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for _ in range(num_steps):
        inputs, labels = batch()
        with torch.no_grad():
            target = teacher(inputs)
        outputs = student(inputs)
        (cross_entropy(outputs, labels) + mse_loss(outputs, target)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.01)
    return [student]


def contrastive(num_steps: int) -> list[nn.Module]:
    """Chen et al. 2020: two views of each sample go through one model, in two forwards with one backward."""
    model = optimized(classifier())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for _ in range(num_steps):
        inputs, _ = batch()
        views = [model(inputs + 0.1 * torch.randn_like(inputs)) for _ in range(2)]
        likeness = cosine_similarity(views[0][:, None], views[1][None], dim=-1)
        cross_entropy(likeness / 0.1, torch.arange(len(inputs))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [model]


class Checkpointed(nn.Module):
    """Computes its blocks again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1), nn.BatchNorm1d(16)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def checkpointed(num_steps: int) -> list[nn.Module]:
    model = optimized(Checkpointed())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(num_steps):
        inputs, labels = batch(16)
        cross_entropy(model(inputs)[:, :4], labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [model]


TRAINERS: tuple[Callable[[int], list[nn.Module]], ...] = (
    transformers_trainer,
    transformers_accumulation_in_bf16,
    accelerate_accumulation,
    lightning_clipping,
    mixed_precision,
    sharpness_aware,
    adversarial,
    mean_teacher,
    contrastive,
    checkpointed,
)
