# SPDX-License-Identifier: Apache-2.0
"""Real data that ships inside installed packages: nothing is downloaded and nothing is synthetic.

Digits, tables and two photographs come from scikit-learn; text is torch's own Python source. Every function is
deterministic for its arguments; sampling uses a private generator, so torch's global random stream is left alone.
"""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

PairBatches = list[tuple[Tensor, Tensor]]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def digits() -> tuple[Tensor, Tensor]:
    """1,797 hand-written digits: float images [n, 64] in 0..1 and labels [n]."""
    bunch = datasets.load_digits()
    return torch.from_numpy(bunch.data).float() / 16, torch.from_numpy(bunch.target).long()


@cache
def table(name: str) -> tuple[Tensor, Tensor]:
    """A scikit-learn table ("breast_cancer", "wine", "diabetes", "iris"), columns standardised; targets as float."""
    bunch = getattr(datasets, f"load_{name}")()
    columns = np.asarray(bunch.data, dtype=np.float64)
    columns = (columns - columns.mean(0)) / columns.std(0)
    return torch.from_numpy(columns).float(), torch.from_numpy(np.asarray(bunch.target)).float()


@cache
def photo(name: str) -> Tensor:
    """The sample photograph "china.jpg" or "flower.jpg" as float [3, 427, 640] in 0..1."""
    return torch.from_numpy(datasets.load_sample_image(name).copy()).permute(2, 0, 1).float() / 255


def photo_patches(size: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random square patches [count, 3, size, size] labelled 0..7 by photograph and quadrant."""
    chosen = generator(seed)
    patches, labels = [], []
    for index in range(count):
        label = index % 8
        image = photo("china.jpg" if label < 4 else "flower.jpg")
        height, width = image.shape[1] // 2, image.shape[2] // 2
        top = int(torch.randint(0, height - size + 1, (), generator=chosen)) + height * (label % 4 // 2)
        left = int(torch.randint(0, width - size + 1, (), generator=chosen)) + width * (label % 2)
        patches.append(image[:, top : top + size, left : left + size])
        labels.append(label)
    return torch.stack(patches), torch.tensor(labels)


@cache
def source_text() -> str:
    """Python source of torch's functional module: about 260,000 characters, clipped to ASCII."""
    path = Path(torch.nn.functional.__file__)
    return path.read_text(encoding="utf-8").encode("ascii", "ignore").decode("ascii")


@cache
def characters() -> Tensor:
    """`source_text` as character codes 0..127."""
    return torch.tensor(list(source_text().encode("ascii")))


@cache
def words(vocabulary: int) -> Tensor:
    """`source_text` as word ids by falling frequency; the last id stands for every rarer word."""
    tokens = source_text().split()
    found, counts = np.unique(tokens, return_counts=True)
    frequent = found[np.argsort(-counts, kind="stable")][: vocabulary - 1]
    ids = {word: index for index, word in enumerate(frequent)}
    return torch.tensor([ids.get(token, vocabulary - 1) for token in tokens])


def next_token_batches(tokens: Tensor, batch: int, length: int, count: int, seed: int) -> PairBatches:
    """`count` batches of random windows: inputs [batch, length] and the same windows one token later."""
    chosen, result = generator(seed), []
    for _ in range(count):
        starts = torch.randint(0, len(tokens) - length - 1, (batch, 1), generator=chosen)
        index = starts + torch.arange(length)
        result.append((tokens[index], tokens[index + 1]))
    return result


def shuffled_batches(inputs: Tensor, targets: Tensor, batch: int, count: int, seed: int) -> PairBatches:
    """`count` batches drawn without replacement (reshuffled when the data are used up)."""
    chosen, result, order = generator(seed), [], torch.empty(0, dtype=torch.long)
    for _ in range(count):
        while len(order) < batch:
            order = torch.cat([order, torch.randperm(len(inputs), generator=chosen)])
        result.append((inputs[order[:batch]].contiguous(), targets[order[:batch]].contiguous()))
        order = order[batch:]
    return result
