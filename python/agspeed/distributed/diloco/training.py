# SPDX-License-Identifier: Apache-2.0
"""Runs local steps: counts the steps of an optimizer by its hooks, and synchronizes when it is due.

Threading: the training thread. All ranks take equally many steps, so all of them reach the same synchronizations. The
optimizer's hooks own the object.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn

from agspeed.distributed.codecs import driver
from agspeed.distributed.codecs.codec import agree
from agspeed.distributed.codecs.pipeline import GroupWire
from agspeed.distributed.diloco import refusals
from agspeed.distributed.diloco.dense import average_gradients, send_from_first
from agspeed.distributed.diloco.pieces import Piece, fragments_of
from agspeed.distributed.diloco.refusals import parameters_of
from agspeed.errors import UserError

__all__ = ["LocalSteps", "Options"]

_COMPRESSIONS = ("int8", "none")
_DIFFERENT_CALLS = (
    "the ranks have called local_steps differently ({}): pass the same options and models of equal shapes at all of "
    "them."
)
_DIFFERENT_STATES = "the ranks load states that do not belong together ({}): load those of one checkpoint."


@dataclass(frozen=True)
class Options:
    """The options of `local_steps`."""

    every: int
    warmup: int
    fragments: int
    outer_lr: float
    outer_momentum: float
    compression: str

    def check(self) -> None:
        """Raises: UserError for an option that is out of range."""
        if self.every < 1:
            raise UserError(f"every={self.every} is not valid: write the number of local steps, 1 or more.")
        if self.warmup < 0:
            raise UserError(f"warmup={self.warmup} is not valid: write 0, or the number of dense steps.")
        if not 1 <= self.fragments <= self.every:
            raise UserError(f"fragments={self.fragments} is not valid: write a number from 1 to every={self.every}.")
        if not self.outer_lr > 0:
            raise UserError(f"outer_lr={self.outer_lr} is not valid: write a number above 0, such as 0.7.")
        if not 0 <= self.outer_momentum < 1:
            raise UserError(f"outer_momentum={self.outer_momentum} is not valid: write a number in [0, 1).")
        if self.compression not in _COMPRESSIONS:
            listed = ", ".join(_COMPRESSIONS)
            raise UserError(f"compression={self.compression!r} is not valid: write one of {listed}.")


class LocalSteps:
    """The local steps of one optimizer. `local_steps` makes it.

    Attributes:
        num_steps: the steps of the optimizer so far, with the warm-up.
        num_synchronizations: how often a fragment was synchronized.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, options: Options, group: Any) -> None:
        self._options, self._group, self._wire = options, group, GroupWire(group)
        self._parameters = self._checked(model, optimizer)
        self._model, self._stepped = model, parameters_of(optimizer)
        self.num_steps = self.num_synchronizations = 0
        self._fragments: list[list[Piece]] = []
        self._synchronized_at: list[int] = []
        with torch.no_grad():
            send_from_first([*model.parameters(), *model.buffers()], group)
            if not options.warmup:
                self._begin()
        refusals.note_optimizer(optimizer)
        optimizer.register_step_pre_hook(torch.compiler.disable(self._before_step))
        optimizer.register_step_post_hook(torch.compiler.disable(self._after_step))
        self._call_hook: Any = model.register_forward_pre_hook(torch.compiler.disable(self._before_call))
        self._is_scaler_checked = False

    @torch.no_grad()
    def synchronize(self) -> None:
        """Synchronizes all fragments that have stepped since their last synchronization, and sends rank 0's buffers.

        All ranks call it after the same step. Afterwards all of them have equal parameters. Call it before the model is
        evaluated, saved by one rank, or used after the training. Does nothing during the warm-up, when ranks are equal
        anyway.

        Raises: UserError if a parameter of any rank has NaN or infinity; the outer parameters are unchanged then.
        """
        if self._fragments:
            due = [at for at in range(len(self._fragments)) if self._synchronized_at[at] != self.num_steps]
            self._synchronize(due)
            send_from_first(self._model.buffers(), self._group)

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state for a checkpoint, with copies of tensors by the parameters' names.

        Each rank saves its own, beside its own model and optimizer. After `synchronize()`, the state, model and
        optimizer of one rank are enough for all: the other ranks then begin without a residual.
        """
        values = {name: state for piece in self._pieces() for name, state in piece.state().items()}
        return {
            "num_steps": self.num_steps,
            "synchronized_at": list(self._synchronized_at),
            "rank": self._wire.rank,
            "parameters": values,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a result of `state_dict`. All ranks call it before their next step, and load the parameters
        of the model and the optimizer's state themselves.

        Raises, at all ranks: UserError if a state does not fit the model or the options, or if the ranks load states of
        different steps.
        """
        problem = self._problem_of(state)
        text = problem or f"step {state['num_steps']}, outer parameters with the checksum {self._checksum(state):08x}"
        self._agree(text, _DIFFERENT_STATES, _device_of(self._model))
        if problem:
            raise UserError(problem)
        self.num_steps = int(state["num_steps"])
        self._fragments = []
        if state["parameters"]:
            self._begin()
            self._synchronized_at = [int(each) for each in state["synchronized_at"]]
            for piece in self._pieces():
                piece.load(state["parameters"], has_residuals=state["rank"] == self._wire.rank)

    def _problem_of(self, state: Any) -> str | None:
        try:
            values, num_steps = state["parameters"], int(state["num_steps"])
            sizes = {name: tuple(each["outer"].shape) for name, each in values.items()}
            num_fragments = len(state["synchronized_at"])
            assert "rank" in state
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
            return "this is no state of local steps: load the result of state_dict()."
        if bool(values) != (num_steps >= self._options.warmup):
            return (
                f"a state of step {num_steps} does not fit warmup={self._options.warmup}: pass the options of that run."
            )
        own = {name: tuple(each.shape) for name, each in self._parameters.items()}
        if values and sizes != own:
            name = next(name for name in [*own, *sizes] if own.get(name) != sizes.get(name))
            return (
                f"{name} has the shape {own.get(name)} here and {sizes.get(name)} in the state: load this model's own."
            )
        if values and num_fragments != len(self._parts()):
            return f"the state has {num_fragments} fragments: pass the options of that run."
        return None

    def _checksum(self, state: Mapping[str, Any]) -> int:
        """Returns a checksum of the outer parameters in a state."""
        found = 0
        for name in self._parameters if state["parameters"] else ():
            outer = state["parameters"][name]["outer"].detach().cpu().contiguous()
            found = zlib.crc32(outer.view(-1).view(torch.uint8).numpy().tobytes(), found)
        return found

    def _checked(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """Returns the parameters to synchronize. Raises, at all ranks: the errors of `local_steps`."""
        found: dict[str, torch.Tensor] = {}
        try:
            self._options.check()
            found = refusals.stepped_parameters(model, optimizer)
        except UserError as error:
            if distributed.is_available() and distributed.is_initialized():
                self._agree(str(error), _DIFFERENT_CALLS, _device_of(model))
            raise
        shapes = "".join(f"{name}{tuple(each.shape)}{each.dtype}" for name, each in found.items())
        text = f"{self._options}, parameters with the checksum {zlib.crc32(shapes.encode()):08x}"
        self._agree(text, _DIFFERENT_CALLS, _device_of(model))
        return found

    def _agree(self, text: str, sentence: str, device: torch.device) -> None:
        driver.finish([driver.Run(agree(text, self._wire, device, sentence), lambda: None)])

    def _parts(self) -> list[list[dict[str, torch.Tensor]]]:
        return fragments_of(self._parameters, self._options.fragments)

    def _begin(self) -> None:
        """Begins local steps from the current parameters."""
        is_coded = self._options.compression == "int8"
        self._fragments = [[Piece(part, is_coded=is_coded) for part in parts] for parts in self._parts()]
        self._synchronized_at = [self.num_steps] * len(self._fragments)

    def _pieces(self) -> Iterable[Piece]:
        return [piece for fragment in self._fragments for piece in fragment]

    def _before_call(self, _model: nn.Module, _arguments: Any) -> None:
        if torch.is_grad_enabled():
            refusals.check_call()
            self._call_hook.remove()  # a script calls its model in the same way each time

    @torch.no_grad()
    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
        if not self._is_scaler_checked:
            refusals.check_scaler()
            self._is_scaler_checked = True
        current = parameters_of(optimizer)
        if len(current) != len(self._stepped) or not all(map(operator.is_, current, self._stepped)):
            raise UserError(
                "the optimizer's parameters have changed since local_steps was called: call it after the last change."
            )
        if any(each is not None for each in (*arguments[1:], *keywords.values())):
            raise UserError("local_steps takes no closure: compute the loss, call backward(), and then step().")
        if self.num_steps < self._options.warmup:
            average_gradients(list(self._parameters.values()), self._wire)

    @torch.no_grad()
    def _after_step(self, _optimizer: torch.optim.Optimizer, _arguments: Any, _keywords: Any) -> None:
        self.num_steps += 1
        local = self.num_steps - self._options.warmup
        if local == 0:
            # Equal gradients may have moved parameters differently on other processors.
            send_from_first([*self._parameters.values(), *self._model.buffers()], self._group)
            self._begin()
        elif local > 0:
            count, every = len(self._fragments), self._options.every
            self._synchronize([at for at in range(count) if (local - (at + 1) * every // count) % every == 0])
            if local % every == 0:
                send_from_first(self._model.buffers(), self._group)

    def _synchronize(self, due: list[int]) -> None:
        pieces = [piece for at in due for piece in self._fragments[at]]
        driver.finish([driver.Run(piece.exchange(self._wire), lambda: None) for piece in pieces])
        for piece in pieces:
            if not piece.is_exchanged:
                raise UserError(
                    f"{_some(piece.names)} had NaN or infinity at some rank after step {self.num_steps}, so no rank "
                    "has synchronized: load an earlier checkpoint, and lower the learning rate."
                )
        for piece in pieces:
            piece.apply(self._options.outer_lr, self._options.outer_momentum)
        for at in due:
            self._synchronized_at[at] = self.num_steps
        self.num_synchronizations += len(due)


def _device_of(model: Any) -> torch.device:
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    return next((parameter.device for parameter in parameters), torch.device("cpu"))


def _some(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} or one of {len(names) - 1} other parameters"
