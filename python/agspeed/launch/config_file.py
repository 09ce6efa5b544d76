# SPDX-License-Identifier: Apache-2.0
"""horovodrun's --config-file: settings as YAML, by the names in Horovod's documentation.

Each key stands for a flag. The file overrides flags before --config-file, and flags behind it override the file. YAML
is read as plain data: tags do not create objects.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agspeed.errors import UserError

__all__ = ["ConfigFile", "read"]

_CONTROLLERS = ("gloo", "mpi")
_SECTIONS: dict[str, dict[str, tuple[str, type]]] = {
    # section: key: (the flag's name among the parsed arguments, the type of its value)
    "params": {
        "cache_capacity": ("cache_capacity", int),
        "cycle_time_ms": ("cycle_time_ms", float),
        "fusion_threshold_mb": ("fusion_threshold_mb", int),
        "hierarchical_allgather": ("hierarchical_allgather", bool),
        "hierarchical_allreduce": ("hierarchical_allreduce", bool),
        "torus_allreduce": ("torus_allreduce", bool),
    },
    "autotune": {
        "bayes_opt_max_samples": ("autotune_bayes_opt_max_samples", int),
        "enabled": ("autotune", bool),
        "gaussian_process_noise": ("autotune_gaussian_process_noise", float),
        "log_file": ("autotune_log_file", str),
        "steps_per_sample": ("autotune_steps_per_sample", int),
        "warmup_samples": ("autotune_warmup_samples", int),
    },
    "timeline": {
        "filename": ("timeline_filename", str),
        "mark_cycles": ("timeline_mark_cycles", bool),
    },
    "stall_check": {
        "enabled": ("stall_check", bool),
        "shutdown_time_seconds": ("stall_check_shutdown_time_seconds", int),
        "warning_time_seconds": ("stall_check_warning_time_seconds", int),
    },
    "library_options": {
        "ccl_bgt_affinity": ("ccl_bgt_affinity", int),
        "gloo_timeout_seconds": ("gloo_timeout_seconds", int),
        "mpi_threads_disable": ("mpi_threads_disable", bool),
        "num_nccl_streams": ("num_nccl_streams", int),
        "thread_affinity": ("thread_affinity", int),
    },
    "logging": {
        "level": ("log_level", str),
        "with_timestamp": ("log_with_timestamp", bool),
    },
}
_NAMES = {bool: "true or false", float: "a number", int: "a whole number", str: "a text"}


class ConfigFile(argparse.Action):
    """Replaces the values of earlier flags by the file's."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        for name, value in read(Path(str(values))).items():
            setattr(namespace, name, value)


def read(path: Path) -> dict[str, Any]:
    """Returns the file's values, by the flags' names among the parsed arguments.

    Raises: UserError for a file that cannot be read or is not YAML, and for keys or values that no flag has.
    """
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise UserError("--config-file needs PyYAML: pip install pyyaml, or write its settings as flags.") from None
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--config-file {path}: {error.strerror}; name a file that can be read.") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--config-file {path} is not valid YAML: {reason}.") from None
    values: dict[str, Any] = {}
    for section, given in _mapping(path, "the file", {} if found is None else found).items():
        if section == "controller":
            values |= _controller(path, given)
            continue
        if section not in _SECTIONS:
            known = ", ".join(["controller", *_SECTIONS])
            raise UserError(f"--config-file {path}: there is no section {section!r}; there are {known}.")
        for key, value in _mapping(path, section, {} if given is None else given).items():
            if value is not None:
                name, kind = _key(path, section, key)
                values[name] = _checked(f"--config-file {path}: {section}.{key}", value, kind)
    return values


def _controller(path: Path, value: Any) -> dict[str, bool]:
    name = str(value).lower()
    if name not in _CONTROLLERS:
        raise UserError(
            f"--config-file {path}: No such controller supported: {value}; write gloo, or leave it out: both mean the "
            "same here."
        )
    return {each: each == name for each in _CONTROLLERS}


def _mapping(path: Path, what: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise UserError(f"--config-file {path}: {what} holds {value!r}; write keys with values, as in `params:`.")
    return value


def _key(path: Path, section: str, key: Any) -> tuple[str, type]:
    keys = _SECTIONS[section]
    if key not in keys:
        raise UserError(f"--config-file {path}: {section} has no key {key!r}; it has {', '.join(keys)}.")
    return keys[key]


def _checked(where: str, value: Any, kind: type) -> Any:
    is_kind = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
    if not is_kind or (kind is not bool and isinstance(value, bool)):
        raise UserError(f"{where} is {value!r}; write {_NAMES[kind]}.")
    return value
