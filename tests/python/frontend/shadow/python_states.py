# SPDX-License-Identifier: Apache-2.0
"""Modules that read or change Python state in forward. `turn` changes the state that they read, during training."""

from __future__ import annotations

import collections
import enum
import random
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

WIDTH = 4


class Reading(nn.Module):
    """Scales a layer's output by what `factor` returns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.prepare()

    def prepare(self) -> None:
        """Sets the initial state that forward reads."""

    def turn(self) -> None:
        """Changes that state."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x)) * self.factor(x)

    def factor(self, x: torch.Tensor) -> Any:
        raise NotImplementedError


class Config:
    tau = 1.0
    count = 1
    name = "small"

    @classmethod
    def scale(cls) -> float:
        return cls.tau

    @property
    def shown(self) -> float:
        return self.tau


class Mode(enum.Enum):
    LOW = 1
    HIGH = 2


class _OfConfig(Reading):
    def prepare(self) -> None:
        Config.tau, Config.count, Config.name = 1.0, 1, "small"
        self.config = Config()

    def turn(self) -> None:
        Config.tau, Config.count, Config.name = 3.0, 3, "large"


class ClassFloat(_OfConfig):
    def factor(self, x: torch.Tensor) -> Any:
        return Config.tau


class ClassInt(_OfConfig):
    def factor(self, x: torch.Tensor) -> Any:
        return Config.count


class ClassString(_OfConfig):
    def factor(self, x: torch.Tensor) -> Any:
        return 2.0 if Config.name == "large" else 0.5


class ClassAttributeOfAnInstance(_OfConfig):
    def factor(self, x: torch.Tensor) -> Any:
        return self.config.tau


class ClassMethod(_OfConfig):
    def factor(self, x: torch.Tensor) -> Any:
        return Config.scale()


class Property(_OfConfig):
    def factor(self, x: torch.Tensor) -> Any:
        return self.config.shown


class GetAttribute(_OfConfig):
    def factor(self, x: torch.Tensor) -> Any:
        return getattr(Config, "tau", 0.0)


class OwnClass(Reading):
    tau = 1.0

    def prepare(self) -> None:
        OwnClass.tau = 1.0

    def turn(self) -> None:
        OwnClass.tau = 3.0

    def factor(self, x: torch.Tensor) -> Any:
        return self.tau


class OwnClassByType(OwnClass):
    def prepare(self) -> None:
        OwnClassByType.tau = 1.0

    def turn(self) -> None:
        OwnClassByType.tau = 3.0

    def factor(self, x: torch.Tensor) -> Any:
        return type(self).tau


class ClassEnum(Reading):
    mode = Mode.LOW

    def prepare(self) -> None:
        ClassEnum.mode = Mode.LOW

    def turn(self) -> None:
        ClassEnum.mode = Mode.HIGH

    def factor(self, x: torch.Tensor) -> Any:
        return 2.0 if ClassEnum.mode is Mode.HIGH else 0.5


class ClassTuple(Reading):
    pair = (1.0, 2.0)

    def prepare(self) -> None:
        ClassTuple.pair = (1.0, 2.0)

    def turn(self) -> None:
        ClassTuple.pair = (3.0, 2.0)

    def factor(self, x: torch.Tensor) -> Any:
        return ClassTuple.pair[0]


class ClassDict(Reading):
    table: ClassVar[dict[str, float]] = {"a": 1.0}

    def prepare(self) -> None:
        ClassDict.table = {"a": 1.0}

    def turn(self) -> None:
        ClassDict.table["a"] = 3.0

    def factor(self, x: torch.Tensor) -> Any:
        return ClassDict.table["a"]


FACTOR = 1.0


class GlobalFloat(Reading):
    def prepare(self) -> None:
        global FACTOR
        FACTOR = 1.0

    def turn(self) -> None:
        global FACTOR
        FACTOR = 3.0

    def factor(self, x: torch.Tensor) -> Any:
        return FACTOR


class OwnAttribute(Reading):
    def prepare(self) -> None:
        self.value = 1.0

    def turn(self) -> None:
        self.value = 3.0

    def factor(self, x: torch.Tensor) -> Any:
        return self.value


@dataclass
class Options:
    tau: float = 1.0


class DataclassField(Reading):
    def prepare(self) -> None:
        self.options = Options()

    def turn(self) -> None:
        self.options.tau = 3.0

    def factor(self, x: torch.Tensor) -> Any:
        return self.options.tau


class Closure(Reading):
    def prepare(self) -> None:
        value = 1.0

        def read() -> float:
            return value

        def change() -> None:
            nonlocal value
            value = 3.0

        self.read, self.turn = read, change  # type: ignore[method-assign]

    def factor(self, x: torch.Tensor) -> Any:
        return self.read()


class DefaultArgument(Reading):
    def prepare(self) -> None:
        def read(value: float = 1.0) -> float:
            return value

        self.read = read

    def turn(self) -> None:
        self.read.__defaults__ = (3.0,)

    def factor(self, x: torch.Tensor) -> Any:
        return self.read()


class ReplacedMethod(Reading):
    def turn(self) -> None:
        self.factor = lambda x: 3.0  # type: ignore[method-assign]

    def factor(self, x: torch.Tensor) -> Any:
        return 1.0


class CountsOnItsClass(Reading):
    calls = 0

    def prepare(self) -> None:
        CountsOnItsClass.calls = 0

    def factor(self, x: torch.Tensor) -> Any:
        CountsOnItsClass.calls += 1
        return float(CountsOnItsClass.calls % 3)


class ListOnItsClass(Reading):
    seen: ClassVar[list[int]] = []

    def prepare(self) -> None:
        ListOnItsClass.seen = []

    def factor(self, x: torch.Tensor) -> Any:
        ListOnItsClass.seen.append(1)
        return float(len(ListOnItsClass.seen) % 3)


class FullDeque(Reading):
    def prepare(self) -> None:
        self.recent: collections.deque[float] = collections.deque(maxlen=3)
        self.count = 0

    def factor(self, x: torch.Tensor) -> Any:
        self.count += 1
        self.recent.append(float(self.count % 4))
        return sum(self.recent)


class MoveToEnd(Reading):
    def prepare(self) -> None:
        self.order = collections.OrderedDict(a=1.0, b=2.0, c=3.0)

    def factor(self, x: torch.Tensor) -> Any:
        first = next(iter(self.order))
        self.order.move_to_end(first)
        return self.order[first]


class PythonRandom(Reading):
    def factor(self, x: torch.Tensor) -> Any:
        return random.random()


class DetachInPlace(Reading):
    def factor(self, x: torch.Tensor) -> Any:
        y = self.layer(x) * 2
        y.detach_()
        return 1.0 if not y.requires_grad else y


class IsCompiling(Reading):
    def prepare(self) -> None:
        self.calls = 0

    def factor(self, x: torch.Tensor) -> Any:
        if not torch.compiler.is_compiling():
            self.calls += 1
        return 1.0 + 0.1 * self.calls


class AnotherIsCompiling(Reading):
    def factor(self, x: torch.Tensor) -> Any:
        from transformers.utils.import_utils import is_torchdynamo_compiling

        return 3.0 if is_torchdynamo_compiling() or torch.compiler.is_dynamo_compiling() else 1.0


class CountsItsCalls(Reading):
    def prepare(self) -> None:
        self.calls = 0

    def factor(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return float(self.calls % 3)


STATES = sorted(
    (
        kind
        for kind in list(globals().values())
        if isinstance(kind, type)
        and issubclass(kind, Reading)
        and kind is not Reading
        and not kind.__name__.startswith("_")
    ),
    key=lambda kind: kind.__name__,
)
