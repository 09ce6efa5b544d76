# SPDX-License-Identifier: Apache-2.0
"""The folder to which the native compiler writes all stages of one graph, if the setting `dump` names a folder.

The folder is called "graph-" and 12 hexadecimal digits that follow from the graph, so the compile child, the training
process and all ranks write the same files. Only this user can enter it. This module writes the graph as torch and as
the compiler's input. The compiler adds its own stages. compiler/README.md lists all names.

Stateless; any thread.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from torch import fx

from agspeed import files
from agspeed.log import warn_once

__all__ = ["begin"]

_HASH_DIGITS = 12


def begin(dump_dir: str, graphs: Mapping[str, fx.GraphModule], specs: Mapping[str, str]) -> str:
    """Makes the folder of a graph and writes the graph into it.

    Args:
        dump_dir: an absolute path, or "" for no dump.
        graphs, specs: by entry, the graph and its GraphSpec text.
    Returns: the folder's path; "" if there is no dump, or if it cannot be written, which is a warning.
    """
    if not dump_dir:
        return ""
    text = "\n".join(f"{entry} {specs[entry]}" for entry in sorted(specs))
    folder = Path(dump_dir) / f"graph-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}"
    try:
        _make_private(folder)
        for entry, graph in graphs.items():
            files.write(folder / f"{entry}-fx.txt", graph.print_readable(print_output=False) + "\n")
            files.write(folder / f"{entry}-spec.json", specs[entry] + "\n")
    except OSError as error:
        reason = error.strerror or error
        warn_once(("dump", dump_dir), f"AGSPEED_DUMP: {folder} cannot be written ({reason}): graphs are not dumped")
        return ""
    return str(folder)


def _make_private(folder: Path) -> None:
    """Makes the folder. Raises: OSError if that is impossible, or if other users may enter it."""
    files.make_folder(folder)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "it is not a folder of this user's alone", os.fspath(folder))
