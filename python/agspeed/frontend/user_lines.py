# SPDX-License-Identifier: Apache-2.0
"""Whose code a file is, and the user's own lines in the traceback of an error that a captured graph raises.

A captured graph runs as generated code, whose lines mean nothing to the user. Each of its nodes remembers the stack
of user code it came from; when the graph raises, those frames are put into the exception's traceback. Type, message
and identity of the exception stay as they are. Pure functions; safe on any thread.
"""

from __future__ import annotations

import os
import re
import sysconfig
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from agspeed.torch_compat.graphs import node_index

PACKAGE = str(Path(__file__).parent.parent) + os.sep
_LIBRARIES = (PACKAGE, str(Path(torch.__file__).parent) + os.sep, str(Path(os.__file__).parent) + os.sep)
_INSTALLED = tuple(sysconfig.get_path(kind) + os.sep for kind in ("purelib", "platlib"))
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def is_installed(path: str) -> bool:
    """Whether a file belongs to a package that was installed, which may know of compilers."""
    return path.startswith(_INSTALLED)


def is_users(path: str) -> bool:
    """False for files of torch, agspeed and the standard library."""
    return not path.startswith(_LIBRARIES)


def showing_user_lines(gm: fx.GraphModule) -> Callable[..., Sequence[Any]]:
    """Runs `gm`; its exceptions get the frames of the user's code that the failing node came from."""
    forward = gm.forward

    def run(*args: Any) -> Sequence[Any]:
        try:
            return forward(*args)  # type: ignore[no-any-return]
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
    """A frame object that looks like `name` in `path`; what it ran is a division by zero."""
    code = compile("1 / 0", path, "exec").replace(co_name=name, co_qualname=name, co_firstlineno=line)
    try:
        exec(code, {})
    except ZeroDivisionError as error:
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        return error.__traceback__.tb_next.tb_frame
    raise AssertionError("unreachable")
