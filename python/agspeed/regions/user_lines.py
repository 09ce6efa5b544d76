# SPDX-License-Identifier: Apache-2.0
"""Distinguishes the user's files from libraries, and adds the user's own lines to tracebacks of captured graphs.

A captured graph runs as generated code, whose lines mean nothing to the user. Each of its nodes records the stack of
user code that it came from. If the graph raises, these frames are added to the exception's traceback. Type, message and
identity of the exception stay the same. Pure functions; safe on any thread.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from agspeed.backends.base import Runner
from agspeed.torch_compat.graphs import node_index

PACKAGE = str(Path(__file__).parent.parent) + os.sep
_LIBRARIES = (PACKAGE, str(Path(torch.__file__).parent) + os.sep, str(Path(os.__file__).parent) + os.sep)
_INSTALLED = tuple(sysconfig.get_path(kind) + os.sep for kind in ("purelib", "platlib"))
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def is_installed(path: str) -> bool:
    """Returns whether a file belongs to an installed package, which may have its own support for compilers."""
    return path.startswith(_INSTALLED)


def is_users(path: str) -> bool:
    """Returns False for files of torch, agspeed and the standard library, True for all others."""
    return not path.startswith(_LIBRARIES)


def graph_location(gm: fx.GraphModule) -> str:
    """Returns "file.py:12" for the graph's first operator, in the user's code if possible, else for the user's call."""
    for node in gm.graph.nodes:
        traced = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
        found = [(path, line) for path, line in traced if not path.startswith(PACKAGE)]
        users = [(path, line) for path, line in found if is_users(path)]
        for path, line in reversed(users or found):
            return f"{path}:{line}"
    files = ((frame.filename, frame.lineno) for frame in reversed(traceback.extract_stack()))
    return next((f"{path}:{line}" for path, line in files if is_users(path) and not path.startswith("<")), "")


def showing_user_lines(gm: fx.GraphModule) -> Runner:
    """Returns a function that runs `gm`. Its exceptions get the frames of the failing node's user code."""
    forward: Runner = gm.forward

    def run(*args: Any) -> Sequence[Any]:
        try:
            return forward(*args)
        except Exception as error:
            raise error.with_traceback(_with_user_frames(gm, error.__traceback__)) from error.__cause__

    return run


def _with_user_frames(gm: fx.GraphModule, inner: types.TracebackType | None) -> types.TracebackType | None:
    node = _failing_node(gm, inner)
    places = _FRAME.findall(node.meta.get("stack_trace") or "") if node is not None else []
    for path, line, name in reversed(places):
        inner = types.TracebackType(inner, _frame_in(path, int(line), name), -1, int(line))
    return inner


def _failing_node(gm: fx.GraphModule, traceback: types.TracebackType | None) -> fx.Node | None:
    code = gm.forward.__code__
    while traceback is not None and traceback.tb_frame.f_code is not code:
        traceback = traceback.tb_next
    if traceback is None:
        return None
    nodes = list(gm.graph.nodes)
    index = node_index(gm, traceback.tb_lineno)
    return nodes[index] if index is not None and index < len(nodes) else None


def _frame_in(path: str, line: int, name: str) -> types.FrameType:
    """Returns a frame object that looks like function `name` in `path`. A division by zero creates it."""
    code = compile("1 / 0", path, "exec").replace(co_name=name, co_qualname=name, co_firstlineno=line)
    try:
        exec(code, {})
    except ZeroDivisionError as error:
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        return error.__traceback__.tb_next.tb_frame
    raise AssertionError("unreachable")
