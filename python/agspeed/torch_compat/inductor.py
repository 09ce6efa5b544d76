# SPDX-License-Identifier: Apache-2.0
"""TorchInductor: its compiler, its settings, its custom passes, and its checks of the machine.

Without this part, Inductor's candidates are lost, and everything else works. All needs exist since torch 2.11.
Importing this module loads nothing; its functions load Inductor, which takes seconds. Threads: as for Inductor itself.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

from agspeed.torch_compat import compiler_cache
from agspeed.torch_compat.part import Part
from agspeed.torch_compat.release import minor

if TYPE_CHECKING:
    from torch._inductor.cpu_vec_isa import VecISA
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
    from torch._inductor.dependencies import WeakDep

__all__ = ["CustomGraphPass", "VecISA", "WeakDep", "get_hash_for_files"]

PART = Part(
    "inductor",
    __name__,
    exports=(
        "torch._inductor.cpu_vec_isa.VecISA",
        "torch._inductor.custom_graph_pass.CustomGraphPass",
        "torch._inductor.custom_graph_pass.get_hash_for_files",
        "torch._inductor.dependencies.WeakDep",
    ),
    needs=(
        "torch._inductor.codecache.CacheBase.get_local_cache_path",
        "torch._inductor.codecache._HEADER_DIR",
        "torch._inductor.codecache._HEADER_LOCK_DIR",
        "torch._inductor.codecache._precompile_header",
        "torch._inductor.codecache.default_cache_dir",
        "torch._inductor.compile_fx.compile_fx(inner_compile, decompositions)",
        "torch._inductor.compile_fx.compile_fx_inner",
        "torch._inductor.config._pre_fusion_custom_pass",
        "torch._inductor.config.cpp.cxx",
        "torch._inductor.config.cpp.threads",
        "torch._inductor.config.fallback_random",
        "torch._inductor.config.layout_optimization",
        "torch._inductor.config.patch",
        "torch._inductor.config.reorder_for_locality",
        "torch._inductor.cpu_vec_isa.VecISA._avx_py_load",
        "torch._inductor.cpu_vec_isa.VecISA.bit_width",
        "torch._inductor.cpu_vec_isa.VecISA.build_arch_flags",
        "torch._inductor.cpu_vec_isa.VecISA.check_build",
        "torch._inductor.cpu_vec_isa.pick_vec_isa",
        "torch._inductor.decomposition.select_decomp_table",
        "torch._inductor.runtime.runtime_utils.default_cache_dir",
        "torch._inductor.scheduler.BaseSchedulerNode.add_fake_dep",
        "torch._inductor.scheduler.Scheduler.compute_ancestors",
        "torch._inductor.scheduler.Scheduler.topological_sort_schedule",
    ),
    lost="the candidates inductor, inductor-staged, inductor-max-autotune and inductor-cudagraphs are lost",
)
if not TYPE_CHECKING:
    __getattr__ = PART.load
_OVERLAPS = (2, 14)


def load() -> None:
    """Imports the compiler. Raises: any error of the import; UnsupportedError if a need is missing."""
    importlib.import_module("torch._inductor.compile_fx")
    PART.require()


def compile_both(
    gm: Any, inputs: Sequence[Any], inner_compile: Callable[..., Any], decompositions: Mapping[Any, Callable[..., Any]]
) -> Any:
    """Traces a torch-level graph and passes the graph of each direction to `inner_compile`.

    decompositions: they take precedence over Inductor's own.
    """
    from torch._inductor import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    table = {**select_decomp_table(), **decompositions}
    return compile_fx.compile_fx(gm, list(inputs), inner_compile=inner_compile, decompositions=table)


def compile_graph(graph: Any, inputs: Sequence[Any], **keywords: Any) -> Any:
    """Compiles the ATen graph of one direction."""
    from torch._inductor import compile_fx

    return compile_fx.compile_fx_inner(graph, inputs, **keywords)


def settings(changed: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Inside the block, Inductor has these settings."""
    from torch._inductor import config

    patch: contextlib.AbstractContextManager[Any] = config.patch(changed)
    return patch


def before_fusion(scheduling: CustomGraphPass) -> dict[str, Any]:
    """The setting that makes Inductor's scheduler call a pass that reorders its nodes before it fuses them."""
    return {"_pre_fusion_custom_pass": scheduling}


def collectives_in_place() -> dict[str, Any]:
    """The settings that keep collectives at their place in a graph.

    Since torch 2.14, Inductor by default moves a collective away from its wait, to compute meanwhile. Ranks that run
    the region with another candidate do not move it.
    """
    return {"aten_distributed_optimizations.enable_simple_overlap": False} if minor() >= _OVERLAPS else {}


def has_broken_pool_gradients() -> bool:
    """Whether Inductor reads the gradient of average pooling before it has written it, for channels-last feature maps.

    torch 2.11 does.
    """
    return minor() < (2, 12)


@contextlib.contextmanager
def keeping_code_below(cache_dir: str) -> Iterator[None]:
    """Inside the block, Inductor keeps all of its code in the folder of `compiler_cache.using`.

    This includes precompiled headers, for which Inductor ignores the variable and uses another folder. It also forgets
    the paths of other folders. Requires: Inductor is loaded.
    """
    from torch._inductor import codecache
    from torch._inductor.runtime import runtime_utils

    forget: Any = codecache.CacheBase.get_local_cache_path
    with compiler_cache.using(cache_dir) as folder:
        headers = os.path.join(folder, "precompiled_headers")
        own: dict[str, Any] = {"_HEADER_DIR": headers, "_HEADER_LOCK_DIR": os.path.join(headers, "locks")}
        changed = {**own, "_precompile_header": _precompiling(headers), "default_cache_dir": lambda: folder}
        forget.cache_clear()
        try:
            with (
                mock.patch.multiple(codecache, **changed),
                mock.patch.object(runtime_utils, "default_cache_dir", lambda: folder),
            ):
                yield
        finally:
            forget.cache_clear()


@functools.cache
def _precompiling(_folder: str) -> Callable[..., str]:
    """Inductor's function with a cache of its own, which holds the headers of one folder."""
    from torch._inductor import codecache

    function: Any = codecache._precompile_header
    return functools.cache(function.__wrapped__)


def compilers() -> list[str]:
    """The C++ compilers that Inductor looks for."""
    from torch._inductor import config

    return [name for name in config.cpp.cxx if name]


def pick_vector_isa() -> None:
    """Makes Inductor find out which vector instructions it may use. `asking` sets who answers."""
    from torch._inductor import cpu_vec_isa

    cpu_vec_isa.pick_vec_isa()


def asking(answer: Callable[[Any, str], bool], load_code: str) -> contextlib.AbstractContextManager[Any]:
    """Inside the block, Inductor calls `answer(isa, code)` to check whether code with vector instructions works.

    "Works" means that it compiles and loads. `load_code` is the program by which Inductor's own `VecISA.check_build`
    loads the code, if `answer` calls it.
    """
    from torch._inductor.cpu_vec_isa import VecISA

    return mock.patch.multiple(VecISA, check_build=answer, _avx_py_load=load_code)
