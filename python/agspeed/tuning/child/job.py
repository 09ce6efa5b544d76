# SPDX-License-Identifier: Apache-2.0
"""A region on its way to the compile child: its graph, modes and captured inputs, in a private folder.

    region.json   GraphSpec of the graph, the homes of its operators and the ambient modes
    tensors.pt    constants of the graph and the captured inputs (torch.save; read back with weights_only)

The folder belongs to one training process, lies in a directory only its user may enter, and is deleted with the child.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from agspeed.backends.ambient import AmbientModes
from agspeed.graph_spec.export import GraphSpec, export
from agspeed.graph_spec.read import example_inputs, rebuild
from agspeed.tuning.build import BuildableRegion
from agspeed.tuning.child.operator_homes import Homes, find_homes, load_homes
from agspeed.tuning.gate.sizes import InputSizes
from agspeed.tuning.proof import Proof


@dataclass
class RebuiltRegion:
    """What `build` needs, made from files."""

    gm: fx.GraphModule
    example_inputs: list[Any]
    modes: AmbientModes
    sample: list[Any] | None
    other_sizes: list[InputSizes]
    where: str
    proofs: dict[str, Proof]


def write_region(region: BuildableRegion, folder: Path) -> None:
    """Writes `region` into `folder` (created; not left behind half written).

    Raises:
        UnsupportedError: its graph cannot be exported, or another process cannot know its operators.
        OSError, RuntimeError: there is no room for it.
    """
    spec, homes = export(region.gm), find_homes(region.gm)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _write(region, spec, homes, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(region: BuildableRegion, spec: GraphSpec, homes: Homes, folder: Path) -> None:
    header = {"graph": json.loads(spec.to_json()), "homes": asdict(homes), "modes": _modes_to_json(region.modes)}
    header |= {"where": region.where, "other_sizes": region.other_sizes}
    is_parameter = [isinstance(value, torch.nn.Parameter) for value in region.sample or []]
    with torch.no_grad():
        sample = [value.detach() if isinstance(value, torch.Tensor) else value for value in region.sample or []]
    requires_grad = [isinstance(value, torch.Tensor) and value.requires_grad for value in region.sample or []]
    torch.save(
        {
            "constants": {name: tensor.detach() for name, tensor in spec.tensors.items()},
            "sample": sample if region.sample is not None else None,
            "is_parameter": is_parameter,
            "requires_grad": requires_grad,
        },
        folder / "tensors.pt",
    )
    (folder / "region.json").write_text(json.dumps(header), encoding="utf-8")


def read_region(folder: Path) -> RebuiltRegion:
    """Inverse of `write_region`, in the child. Raises: what importing a home of the graph's operators raises, too."""
    header = json.loads((folder / "region.json").read_text(encoding="utf-8"))
    load_homes(Homes(**header["homes"]))
    tensors = torch.load(folder / "tensors.pt", weights_only=True)
    spec = GraphSpec.from_json(json.dumps(header["graph"]), tensors["constants"])
    gm = rebuild(spec)
    sample = tensors["sample"]
    if sample is not None:
        flags = zip(sample, tensors["is_parameter"], tensors["requires_grad"], strict=True)
        sample = [_as_it_was(value, is_parameter, needs_grad) for value, is_parameter, needs_grad in flags]
    modes = _modes_from_json(header["modes"])
    return RebuiltRegion(gm, example_inputs(gm), modes, sample, header["other_sizes"], header["where"], proofs={})


def _as_it_was(value: Any, is_parameter: bool, needs_grad: bool) -> Any:
    if is_parameter:
        return torch.nn.Parameter(value, requires_grad=needs_grad)
    return value.requires_grad_(needs_grad) if isinstance(value, torch.Tensor) else value


def _modes_to_json(modes: AmbientModes) -> dict[str, Any]:
    return {
        "grad_enabled": modes.grad_enabled,
        "inference_mode": modes.inference_mode,
        "autocast": [[device, enabled, str(dtype)] for device, enabled, dtype in modes.autocast],
        "default_dtype": str(modes.default_dtype),
        "flags": [list(flag) for flag in modes.flags],
    }


def _modes_from_json(value: dict[str, Any]) -> AmbientModes:
    return AmbientModes(
        grad_enabled=value["grad_enabled"],
        inference_mode=value["inference_mode"],
        autocast=tuple((device, enabled, _dtype(name)) for device, enabled, name in value["autocast"]),
        default_dtype=_dtype(value["default_dtype"]),
        flags=tuple((name, flag) for name, flag in value["flags"]),
    )


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype
