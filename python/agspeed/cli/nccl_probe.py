# SPDX-License-Identifier: Apache-2.0
"""Loads NCCL and the network plug-in as NCCL does, calls the plug-in's table v11 and sends a message from this process
to itself. It runs in a child process, because the loaded libraries stay loaded and may crash.

Layout of the table: comm/nccl_net/abi/net.h. No torch.
"""

from __future__ import annotations

import ctypes
import os
import time
from ctypes import byref, c_int, c_size_t, c_uint64, c_ulong, c_void_p
from typing import Any

__all__ = ["MESSAGE_BYTES", "probe"]

MESSAGE_BYTES, _LIMIT_S = 4 << 20, 20.0
_HANDLE_BYTES, _FUNCTIONS = 128, 22
_INIT, _DEVICES, _LISTEN, _CONNECT, _ACCEPT, _SEND, _RECEIVE, _TEST, _FINALIZE = 1, 2, 4, 5, 6, 10, 11, 13, 20
# ctypes passes a log line's format and its first argument, which is the plug-in's sentence.
_Logger = ctypes.CFUNCTYPE(None, c_int, c_ulong, ctypes.c_char_p, c_int, ctypes.c_char_p, ctypes.c_char_p)


class _FailedError(Exception):
    """A function of the table returned an error."""


class _Table:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = (c_void_p * _FUNCTIONS).in_dll(library, "ncclNetPlugin_v11")

    def call(self, at: int, *arguments: Any) -> None:
        """Calls a function of the table. arguments: pointers, `bytes`, ctypes values, and ints, which are passed as C
        ints. Raises: _FailedError with the function's result."""
        given = [c_int(each) if isinstance(each, int) else each for each in arguments]
        if result := ctypes.CFUNCTYPE(c_int)(self._functions[at] or 0)(*given):
            raise _FailedError(f"function {at} of the table returned {result}")


def probe(nccl: str, plugin: str) -> dict[str, Any]:
    """Returns the findings. They contain the version of NCCL, or `nccl_error`. They also contain the result of `init`,
    the plug-in's message (`said`), whether the message `arrived` (else `why` not) and each interface's traffic, or
    `plugin_error`.
    """
    found: dict[str, Any] = {}
    try:
        version = c_int()
        ctypes.CDLL(nccl).ncclGetVersion(byref(version))
        found["nccl"] = version.value
    except (OSError, AttributeError) as error:
        found["nccl_error"] = str(error)
    try:
        found.update(_try(_Table(ctypes.CDLL(plugin))))
    except (OSError, ValueError) as error:
        found["plugin_error"] = str(error)
    return found


def _try(table: _Table) -> dict[str, Any]:
    lines: list[str] = []
    logger = _Logger(lambda level, subsystems, file, line, text, first: lines.append((first or text or b"").decode()))
    context, count = c_void_p(), c_int()
    try:
        table.call(_INIT, byref(context), c_uint64(1), None, logger, None)
        table.call(_DEVICES, byref(count))
    except _FailedError as failure:
        return {"init": 1, "said": lines[-1] if lines else str(failure)}
    found: dict[str, Any] = {"init": 0, "devices": count.value, "said": lines[-1], "arrived": True}
    try:
        _pass_message(table, context)
    except _FailedError as failure:
        found.update(arrived=False, why=f"{failure}: {lines[-1]}")
    first = len(lines)
    table.call(_FINALIZE, context)
    found["traffic"] = [line for line in lines[first:] if "bytes sent" in line]
    return found


def _pass_message(table: _Table, context: c_void_p) -> None:
    until = time.monotonic() + _LIMIT_S

    def wait(what: str, is_over: Any) -> None:
        while not is_over():
            if time.monotonic() > until:
                raise _FailedError(f"{what} took more than {_LIMIT_S:g} s")

    handle, listener = ctypes.create_string_buffer(_HANDLE_BYTES), c_void_p()
    sender, receiver = c_void_p(), c_void_p()
    table.call(_LISTEN, context, 0, handle, byref(listener))

    def are_connected() -> bool:
        if not sender:
            table.call(_CONNECT, context, 0, handle, byref(sender), None)
        if not receiver:
            table.call(_ACCEPT, listener, byref(receiver), None)
        return bool(sender and receiver)

    wait("connecting", are_connected)
    sent, came = ctypes.create_string_buffer(os.urandom(MESSAGE_BYTES)), ctypes.create_string_buffer(MESSAGE_BYTES + 1)
    sending, receiving, none = c_void_p(), c_void_p(), c_void_p()
    target, length, tag = c_void_p(ctypes.addressof(came)), c_size_t(MESSAGE_BYTES), c_int(0)
    lists = [byref(each) for each in (target, length, tag, none, none, receiving)]
    table.call(_RECEIVE, receiver, 1, *lists)
    table.call(_SEND, sender, sent, c_size_t(MESSAGE_BYTES), 0, None, None, byref(sending))

    def is_done(request: c_void_p) -> bool:
        done = c_int()
        table.call(_TEST, request, byref(done), None)
        return bool(done)

    wait("sending", lambda: is_done(sending))
    wait("receiving", lambda: is_done(receiving))
    if came.raw != sent.raw:
        raise _FailedError("the received bytes differ from the sent bytes")
