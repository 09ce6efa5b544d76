# SPDX-License-Identifier: Apache-2.0
"""Loads the native extension that was built for this process's torch and replaces itself with it in `sys.modules`.

Raises ImportError with one sentence if no file fits. The package itself loads the extension through agspeed/native.py.
_native.pyi describes its contents.
"""

import importlib.machinery
import importlib.util
import sys

import torch

from agspeed.native_files import extension_for

_path, _why_not = extension_for(torch.__version__)
if _path is None:
    raise ImportError(_why_not, name=__name__)
_loader = importlib.machinery.ExtensionFileLoader(__name__, str(_path))
_spec = importlib.util.spec_from_file_location(__name__, _path, loader=_loader)
assert _spec is not None
_module = importlib.util.module_from_spec(_spec)
_loader.exec_module(_module)
sys.modules[__name__] = _module
