# SPDX-License-Identifier: Apache-2.0
"""A program text that hides torch and the extension from the program after it."""

from __future__ import annotations

BLOCKER = """
import importlib.abc, importlib.metadata, sys
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch" or name == "agspeed._native":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
original = importlib.metadata.version
def version(package):
    if package == "torch":
        raise importlib.metadata.PackageNotFoundError(package)
    return original(package)
importlib.metadata.version = version
"""
