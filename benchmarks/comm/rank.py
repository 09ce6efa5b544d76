# SPDX-License-Identifier: Apache-2.0
"""One rank of one side: joins its group, then runs the functions that the worker requests.

It ends when the worker closes the connection. Started on a host of the bed with `python -m benchmarks.comm.rank SOCKET
BACKEND STORE`. A request is a function's name and its arguments. The name is "module.function" in this folder or
"folder.module.function" in another. The answer is (True, the function's result) or (False, the traceback).
"""

import contextlib
import datetime
import importlib
import os
import sys
import traceback
from multiprocessing.connection import Client, Connection

_TIMEOUT = datetime.timedelta(seconds=100)


def main(socket_path: str, backend: str, store: str) -> None:
    with Client(socket_path, "AF_UNIX") as connection, contextlib.suppress(EOFError, ConnectionError):
        connection.send(int(os.environ["RANK"]))
        import torch
        from torch import distributed

        import agspeed  # noqa: F401 - registers its backend

        torch.set_num_threads(1)
        distributed.init_process_group(
            backend,
            init_method=f"file://{store}",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=_TIMEOUT,
        )
        _serve(connection)
    os._exit(0)  # a thread that still waits for another rank must not keep this process alive


def _serve(connection: Connection) -> None:
    while True:
        name, arguments = connection.recv()
        module, function = name.rsplit(".", 1)
        path = f"benchmarks.{module}" if "." in module else f"benchmarks.comm.{module}"
        try:
            answer = (True, getattr(importlib.import_module(path), function)(**arguments))
        except Exception:
            answer = (False, traceback.format_exc())
        connection.send(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
