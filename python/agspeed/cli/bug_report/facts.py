# SPDX-License-Identifier: Apache-2.0
"""Collects the facts of a bug report: sections of rows (name, value).

To add a fact, add a row to a section. To add a section, write a function here and add it to `SECTIONS`. Values pass a
`Redactor` before they are shown. Facts are read, and nothing is changed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

import agspeed
from agspeed import config
from agspeed.cli import checks, net_checks
from agspeed.cli.config import shown
from agspeed.cli.probe import installed_version, probe
from agspeed.devices import driver
from agspeed.errors import UserError
from agspeed.reporting import environment
from agspeed.reporting import format as fmt

__all__ = ["SECTIONS", "Row", "public", "rows"]

Row = tuple[str, str]

_COMPILERS = ("g++", "clang++", "nvcc", "ptxas")
_LONGEST_ANSWER_S = 10
_VECTOR_BITS = {"avx512_bf16": 512, "avx512": 512, "avx2": 256, "avx": 256, "x86_64": 128, "neon": 128}
_PACKAGES = ("numpy", "triton")


def rows(section: Callable[[], Iterator[Row]]) -> list[Row]:
    """Returns the rows of a section. An error becomes a row: a report is written most often where something is
    broken."""
    found: list[Row] = []
    try:
        found.extend(section())
    except Exception as error:
        found.append(("not all facts", f"{type(error).__name__}: {error}"))
    return found


def public() -> list[str]:
    """Returns texts that a report may contain even if a variable of the environment has the same value. None of them
    comes from an error message."""
    native = probe().get("native", {})
    programs = [str(probe().get(name, "")) for name in ("torch", "torch_flavour")]
    packages = [version for name in (*_PACKAGES, "torch") if (version := installed_version(name)) is not None]
    system = [platform.python_version(), platform.platform(terse=True), _distribution(), environment.cpu_name()]
    cards = [text for gpu in driver.look().gpus for text in (gpu.name, driver.kernel_driver())]
    return [agspeed.__version__, *map(str, native.values()), *programs, *packages, *system, *cards, environment.isa()]


def versions() -> Iterator[Row]:
    yield "agspeed", agspeed.__version__
    native = probe().get("native")
    if native is None:
        yield "native extension", f"cannot be loaded: {probe().get('native_error', 'unknown')}"
    else:
        yield "native extension", ", ".join(f"{key} {value}" for key, value in native.items())
    if "torch" in probe():
        yield "torch", f"{probe()['torch']}, built for {probe().get('torch_flavour', 'unknown')}"
    else:
        installed = installed_version("torch")
        reason = f"{installed} cannot be loaded: {probe().get('torch_error', 'unknown')}"
        yield "torch", "not installed" if installed is None else reason
    yield "Python", f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}"
    for package in _PACKAGES:
        yield package, installed_version(package) or "not installed"


def machine() -> Iterator[Row]:
    yield "system", _distribution()
    yield "kernel", platform.platform(terse=True)
    yield "processor", f"{environment.cpu_name()}, {platform.machine()}"
    isa = environment.isa()
    yield "vectors", f"{_VECTOR_BITS[isa]} bits ({isa})" if isa in _VECTOR_BITS else f"of unknown width ({isa})"
    cores, threads = environment.cores(), probe().get("threads", "an unknown number of")
    used = f"{fmt.plural(cores, 'core')} of {os.cpu_count() or cores} may be used"
    yield "threads", f"torch uses {threads}, {used}"
    yield "memory", f"{fmt.size(checks.available_memory())} free of {fmt.size(environment.memory_bytes())}"


def gpus() -> Iterator[Row]:
    found = driver.look()
    if not found.gpus:
        yield "gpu", f"none: {found.why_none}"
        return
    yield "driver", f"{driver.kernel_driver() or 'version unknown'}, serves CUDA {found.cuda}"
    for index, gpu in enumerate(found.gpus):
        facts = f"sm_{gpu.capability[0]}{gpu.capability[1]}, {fmt.size(gpu.memory_bytes)}"
        yield f"gpu {index}", f"{gpu.name}, {facts}, compute mode {gpu.compute_mode}"
    yield "torch", "uses them" if probe().get("cuda", False) else "does not use them"


def compilers() -> Iterator[Row]:
    """Yields the version of each compiler. The row of the variable CXX shows the program's name and no arguments."""
    chosen = os.environ.get("CXX", "").split()[:1]
    for name in chosen:
        path = shutil.which(name)
        yield "CXX", "names a program that does not exist" if path is None else f"{Path(path).name}: {_version(path)}"
    for name in _COMPILERS:
        path = shutil.which(name)
        yield name, "none" if path is None else _version(path)


def parts_of_torch() -> Iterator[Row]:
    parts: dict[str, str] = probe().get("torch_parts", {})
    for name, misfit in parts.items():
        yield name, misfit or "fits"
    if not parts:
        yield "parts", "unknown: they were not probed"


def settings() -> Iterator[Row]:
    """Yields all settings with their origins; a secret is "set" or "unset"."""
    try:
        effective = config.resolve()
    except UserError as error:
        yield "not valid", str(error)
        return
    for name, entry in effective.to_dict().items():
        yield name, f"{shown(entry['value'])} ({entry['origin']})"


def interfaces() -> Iterator[Row]:
    """Yields a row for each address of an interface. It has the number of the address's network, not the address."""
    found = net_checks.all_interfaces()
    networks: dict[IPv4Network | IPv6Network, int] = {}
    for each in found:
        number = networks.setdefault(each.network, len(networks) + 1)
        facts = [f"IPv{each.network.version}, network {number} ({each.prefix_bits} bits, {_kind(each.network)})"]
        facts += ["up" if each.is_up else "down", *each.hardware]
        taken = "selected" if each.is_selected else "left out"
        yield each.name, f"{', '.join(facts)}: {taken}, {each.reason}"
    if not found:
        reason = probe().get("native_error") or probe().get("network_error", "the system has none")
        yield "interfaces", f"cannot be listed: {reason}"


def cache_folder() -> Iterator[Row]:
    try:
        folder = config.resolve().cache_dir
    except UserError:
        yield "folder", "unknown, because the settings are not valid"
        return
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    yield "folder", f"{folder}" + ("" if existing == folder else " (does not exist yet)")
    yield "file system", checks.filesystem(existing) or "unknown"
    usage = shutil.disk_usage(existing)
    yield "space", f"{fmt.size(usage.free)} free of {fmt.size(usage.total)}"


SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "Versions": versions,
    "Machine": machine,
    "GPUs": gpus,
    "Compilers": compilers,
    "Parts of torch": parts_of_torch,
    "Settings": settings,
    "Network interfaces": interfaces,
    "Cache folder": cache_folder,
}


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return platform.system()


def _version(program: str) -> str:
    """Returns the line of the program's answer to --version that has the version."""
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LONGEST_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not say its version: {error}"
    lines = done.stdout.decode(errors="replace").splitlines()
    return next((line.strip() for line in lines if re.search(r"\d\.\d", line)), "version unknown")


def _kind(network: IPv4Network | IPv6Network) -> str:
    if network.is_loopback:
        return "loopback"
    if network.is_link_local:
        return "link-local"
    return "private" if network.is_private else "public"
