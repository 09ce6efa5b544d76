# SPDX-License-Identifier: Apache-2.0
"""Published architectures can be sent to the compile child: every region is exported, read back and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx

from agspeed.graph_spec.export import GraphSpec, export
from agspeed.graph_spec.read import rebuild
from agspeed.regions.region import lift_tensors
from agspeed.torch_compat.checkpoint import with_plain_parts
from agspeed.tuning.child.operator_homes import find_homes
from benchmarks import architectures

CHOSEN: dict[str, tuple[bool, list[str]]] = {
    # keep-sorted
    "transformers/bloom": (True, []),
    "transformers/llama_checkpointed": (True, []),
    "transformers/mixtral": (False, ["transformers.integrations.moe"]),
    "transformers/reformer": (False, []),
}
"""True if there are bodies (checkpoints, custom autograd functions), and the modules that register operators."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_every_region_can_travel(name: str) -> None:
    torch._dynamo.reset()
    specs: list[GraphSpec] = []
    homes: set[str] = set()

    def backend(gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        lifted, _ = lift_tensors(with_plain_parts(gm))
        spec = export(lifted)
        back = rebuild(GraphSpec.from_json(spec.to_json(), spec.tensors))
        for path, part in lifted.named_modules():
            if isinstance(part, fx.GraphModule):
                assert back.get_submodule(path).code == part.code, path
        specs.append(spec)
        homes.update(find_homes(lifted).modules)
        return gm.forward

    training = architectures.load(name).build()
    for module in training.modules.values():
        module.compile(backend=backend)
    training.step(training.batches[0])
    has_bodies, modules = CHOSEN[name]
    assert specs and any(spec.bodies for spec in specs) == has_bodies
    assert sorted(homes) == modules
