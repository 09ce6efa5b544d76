# SPDX-License-Identifier: Apache-2.0
"""Horovod's API over agspeed's transport.

    import agspeed.horovod.torch as hvd      replaces `import horovod.torch as hvd` in a script
    python -m agspeed.horovod train.py       runs a script with `import horovod.torch as hvd` unchanged
    agspeed.horovod.install_alias()          does the same within a program, before it imports horovod
    agspeed.horovod.run(function, num_proc=4)  calls a function at every rank of a job

Importing this package is cheap; only agspeed.horovod.torch imports torch.
"""

from __future__ import annotations

from agspeed.horovod.alias import install_alias
from agspeed.horovod.function_job import run
from agspeed.version import __version__

__all__ = ["__version__", "install_alias", "run"]
