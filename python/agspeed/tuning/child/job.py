# SPDX-License-Identifier: Apache-2.0
"""Transfers a region to the compile child in one file that torch.save writes and torch.load(weights_only=True) reads:

    header      JSON: the graph as GraphSpec, where its operators come from, and the ambient modes
    constants   the graph's constants
    sample      the captured inputs

The file has no name; the child receives its descriptor. Parameters and batch leave the disk when the last process that
has the file open ends, even if that process is killed.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import fx

from agspeed.backends.ambient import AmbientModes
from agspeed.graph_spec.export import GraphSpec, export
from agspeed.graph_spec.read import example_inputs, rebuild
from agspeed.regions.proof import Proof
from agspeed.regions.sizes import InputSizes
from agspeed.reporting.parts import Json
from agspeed.tuning.build import BuildableRegion
from agspeed.tuning.child.operator_homes import Homes, find_homes, load_homes


@dataclass
class RebuiltRegion:
    """A region as `build` needs it, read back from a file."""

    gm: fx.GraphModule
    example_inputs: list[Any]
    modes: AmbientModes
    sample: list[Any] | None
    other_sizes: list[InputSizes]
    where: str
    proofs: dict[str, Proof]


def write_region(region: BuildableRegion, folder: Path) -> BinaryIO:
    """Writes `region` to a file on the disk of `folder`. Returns the file, read-only; the caller closes it.

    Raises:
        UnsupportedError: the graph cannot be exported, or another process cannot load its operators.
        OSError, RuntimeError: there is no room for the file.
    """
    spec, homes = export(region.gm), find_homes(region.gm)
    with tempfile.TemporaryFile(dir=folder) as file:
        torch.save(_content(region, spec, homes), file)
        file.flush()
        return open(f"/proc/self/fd/{file.fileno()}", "rb")


def _content(region: BuildableRegion, spec: GraphSpec, homes: Homes) -> Json:
    header = {"graph": json.loads(spec.to_json()), "homes": asdict(homes), "modes": _modes_to_json(region.modes)}
    header |= {"where": region.where, "other_sizes": region.other_sizes}
    is_parameter = [isinstance(value, torch.nn.Parameter) for value in region.sample or []]
    with torch.no_grad():
        sample = [value.detach() if isinstance(value, torch.Tensor) else value for value in region.sample or []]
    requires_grad = [isinstance(value, torch.Tensor) and value.requires_grad for value in region.sample or []]
    return {
        "header": json.dumps(header),
        "constants": {name: tensor.detach() for name, tensor in spec.tensors.items()},
        "sample": sample if region.sample is not None else None,
        "is_parameter": is_parameter,
        "requires_grad": requires_grad,
    }


def read_region(file: BinaryIO) -> RebuiltRegion:
    """Inverse of `write_region`, used in the child. Raises: also what the modules that define the graph's operators
    raise on import."""
    file.seek(0)  # all processes that have the file share its position
    found = torch.load(file, weights_only=True)
    header = json.loads(found["header"])
    load_homes(Homes(**header["homes"]))
    spec = GraphSpec.from_json(json.dumps(header["graph"]), found["constants"])
    gm = rebuild(spec)
    sample = found["sample"]
    if sample is not None:
        flags = zip(sample, found["is_parameter"], found["requires_grad"], strict=True)
        sample = [_as_it_was(value, is_parameter, needs_grad) for value, is_parameter, needs_grad in flags]
    modes = _modes_from_json(header["modes"])
    return RebuiltRegion(gm, example_inputs(gm), modes, sample, header["other_sizes"], header["where"], proofs={})


def _as_it_was(value: object, is_parameter: bool, needs_grad: bool) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.nn.Parameter(value, requires_grad=needs_grad) if is_parameter else value.requires_grad_(needs_grad)


def _modes_to_json(modes: AmbientModes) -> Json:
    return {
        "grad_enabled": modes.grad_enabled,
        "inference_mode": modes.inference_mode,
        "autocast": [[device, enabled, str(dtype)] for device, enabled, dtype in modes.autocast],
        "default_dtype": str(modes.default_dtype),
        "flags": [list(flag) for flag in modes.flags],
    }


def _modes_from_json(value: Json) -> AmbientModes:
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
