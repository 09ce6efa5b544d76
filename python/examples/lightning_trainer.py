# SPDX-License-Identifier: Apache-2.0
"""Lightning: calls agspeed.optimize() on the network inside the LightningModule.

python python/examples/lightning_trainer.py
"""

import lightning
import torch
from digits import classifier, dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import agspeed


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = agspeed.optimize(classifier())

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        return cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


module = Digits()
trainer = lightning.Trainer(
    max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(module, DataLoader(dataset(), batch_size=256, shuffle=True, drop_last=True))
print(agspeed.report(module.network))
